"""Texts as tokens in an SQLite file, safe against a kill at any moment.

One process at a time locks the file. Each text has a checksum, because SQLite has none. A damaged
file is moved aside.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

from headstart.types import Vocab
from headstart.types.errors import ConfigError, ModelError

log = logging.getLogger(__name__)

StoredText = tuple[int, bytes, "array[int]"]
"""A text in the file: its row, the 16 bytes of its namespace, and its tokens."""


class TextStore:
    """An open file. `texts` has its initial contents, oldest first; the reader consumes them.

    Args:
        patience_seconds: how long to wait for a process that locks the file: the engine of a
            killed server lives until its step is over.

    Raises (constructor):
        ModelError: the file belongs to another vocabulary, or is not a corpus.
        ConfigError: it cannot be opened or another process locks it.
    """

    def __init__(self, path: Path, vocab: Vocab, patience_seconds: float = 10.0) -> None:
        self.path, self._vocabulary = path, (vocab.size, spelling_digest(vocab))
        self.texts: list[StoredText] = []
        try:
            self._open(patience_seconds)
        except ValueError as error:
            damaged = f"{path.resolve()}.damaged"
            try:
                os.replace(path.resolve(), damaged)
            except OSError as why:
                raise ConfigError(
                    f"corpus file {path} is damaged ({error}) and cannot be moved to {damaged}: "
                    f"{why.strerror}; move it away"
                ) from why
            log.warning("corpus file %s is damaged (%s); moved it to %s", path, error, damaged)
            self._open(patience_seconds)

    def _open(self, patience_seconds: float) -> None:
        """Open, lock and read the file, which is created if it does not exist.

        Raises:
            ValueError: it is damaged.
        """
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise ConfigError(
                f"corpus file {self.path} cannot be opened for writing: {error.strerror}; name a "
                "file in a folder that exists and can be written"
            ) from error
        self._db = sqlite3.connect(
            self.path, timeout=patience_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            self._lock()
            self.texts = self._read_texts()
        except sqlite3.Error as error:
            self.close()
            raise self._refusal(error) from error
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        """Lock the file until it is closed. Writes survive a killed process at once, and a power
        failure after a few more texts: the engine's loop waits for the disk every 128 pages, few
        enough to be short.
        """
        self._db.executescript(
            "PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; COMMIT;"
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
            "PRAGMA wal_autocheckpoint = 128"
        )

    def _read_texts(self) -> list[StoredText]:
        """Read all texts.

        Raises:
            ValueError: there is damage.
            ModelError: it belongs to another vocabulary.
        """
        if not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            self._make_tables()
        about = self._db.execute("SELECT size, digest FROM vocabulary").fetchone()
        if about is None:
            raise ValueError("it names no vocabulary")
        if about != self._vocabulary:
            raise ModelError(
                f"corpus file {self.path} was made with another vocabulary ({about[0]} tokens, the "
                f"model has {self._vocabulary[0]}); name another file for this model"
            )
        texts: list[StoredText] = []
        for row, namespace, data, checksum in self._db.execute("SELECT * FROM texts ORDER BY id"):
            is_whole = type(namespace) is type(data) is bytes
            if not is_whole or crc32(data, crc32(namespace)) != checksum:
                raise ValueError(f"text {row} is not what was written")
            texts.append((row, namespace, array("i", data)))
        return texts

    def _make_tables(self) -> None:
        self._db.executescript(
            "BEGIN; CREATE TABLE vocabulary (size INTEGER, digest BLOB);"
            "CREATE TABLE texts ("
            "id INTEGER PRIMARY KEY, namespace BLOB, tokens BLOB, checksum INTEGER);"
        )
        self._db.execute("INSERT INTO vocabulary VALUES (?, ?)", self._vocabulary)
        self._db.execute("COMMIT")

    def _is_sqlite(self) -> bool:
        """Whether the file begins as one of SQLite, whatever follows."""
        with self.path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"

    def _refusal(self, error: sqlite3.Error) -> Exception:
        """What an error of SQLite means for the caller."""
        match getattr(error, "sqlite_errorcode", 0) & 0xFF:
            case sqlite3.SQLITE_CORRUPT:
                return ValueError(str(error))
            case sqlite3.SQLITE_NOTADB if self._is_sqlite():
                return ValueError(str(error))
            case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_ERROR:  # no SQLite, or without our tables
                return ModelError(
                    f"{self.path} is not a corpus file of headstart; name another file"
                )
            case sqlite3.SQLITE_BUSY:
                return ConfigError(
                    f"corpus file {self.path} is in use by another process; stop it or name "
                    "another file"
                )
        return ConfigError(
            f"corpus file {self.path} cannot be read or written: {error}; make room, or name "
            "another file"
        )

    def add(self, namespace: bytes, tokens: array[int]) -> int:
        """Write a text; returns its row. From then on a kill cannot lose it.

        Raises:
            OSError: the disk is full or gone; the file is unchanged.
        """
        data = tokens.tobytes()
        row = (namespace, data, crc32(data, crc32(namespace)))
        try:
            added = self._db.execute("INSERT INTO texts VALUES (NULL, ?, ?, ?)", row).lastrowid
        except sqlite3.Error as error:
            raise OSError(str(error)) from error
        assert added is not None
        return added

    def drop(self, rows: Sequence[int]) -> None:
        """Remove texts; new ones reuse their space in the file.

        Raises:
            OSError: the disk is gone.
        """
        try:
            with self._db:
                self._db.execute("BEGIN")
                self._db.executemany("DELETE FROM texts WHERE id = ?", [(row,) for row in rows])
        except sqlite3.Error as error:
            raise OSError(str(error)) from error

    def close(self) -> None:
        """Flush to the disk and release the file; may be called twice."""
        self._db.close()


def spelling_digest(vocab: Vocab) -> bytes:
    """16 bytes over the spelling of every token, so that ids in a file keep their meaning."""
    digest = blake2b(digest_size=16)
    for token in range(vocab.size):
        text = vocab.token_text(token)
        digest.update(b"%d:%b" % (len(text), text))
    return digest.digest()
