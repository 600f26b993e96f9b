"""Texts as tokens in an SQLite file, safe against a kill at any moment.

One process at a time locks the file. Each text has a checksum, because SQLite has none. A damaged
file is copied, and the texts before the damage are kept.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from array import array
from collections.abc import Sequence
from itertools import count as count_from
from pathlib import Path
from zlib import crc32

from headstart.structures.suffix_index import SEPARATOR
from headstart.structures.vocabulary_id import VocabularyId
from headstart.types.errors import ConfigError, ModelError

log = logging.getLogger(__name__)

_MAGIC = b"SQLite format 3\0"
_APPLICATION_ID = 0x48535458  # "HSTX", in the header of the file

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

    def __init__(
        self, path: Path, vocabulary: VocabularyId, patience_seconds: float = 10.0
    ) -> None:
        self.path, self._vocabulary = path, vocabulary
        self.texts: list[StoredText] = []
        self._create()
        self._db = self._connect()
        try:
            self._hold(patience_seconds)
            self._read_texts()
        except (sqlite3.DatabaseError, ValueError) as error:
            codes = sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB
            if isinstance(error, sqlite3.DatabaseError) and _code(error) not in codes:
                self.close()
                raise self._unusable(error) from error
            self._begin_anew()
        except BaseException:
            self.close()
            raise

    def _create(self) -> None:
        """Create the file if it does not exist."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            head = os.read(descriptor, len(_MAGIC))
            os.close(descriptor)
        except OSError as error:
            raise ConfigError(
                f"corpus file {self.path} cannot be opened for writing: {error.strerror}; name a "
                "file in a folder that exists and can be written"
            ) from error
        if head and head != _MAGIC:
            raise self._foreign()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self.path, timeout=0.0, isolation_level=None, check_same_thread=False
        )

    def _hold(self, patience_seconds: float) -> None:
        try:
            self._lock()
            return
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY:
                raise
        log.warning(
            "corpus file %s is in use by another process; waiting for up to %g s",
            self.path,
            patience_seconds,
        )
        self._db.execute(f"PRAGMA busy_timeout = {int(1000 * patience_seconds)}")
        try:
            self._lock()
        except sqlite3.OperationalError as error:
            raise ConfigError(
                f"corpus file {self.path} is in use by another process; stop it or name another "
                "file"
            ) from error

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

    def _read_texts(self) -> None:
        """Read all texts, up to damage.

        Raises:
            ValueError, sqlite3.DatabaseError: there is damage, or the disk failed.
            ModelError: it belongs to another vocabulary or is not a corpus.
        """
        if not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            self._make_tables()
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        if application != _APPLICATION_ID:
            raise self._foreign()
        about = self._db.execute("SELECT size, digest FROM vocabulary").fetchone()
        size, digest = about or (0, b"")
        if VocabularyId(size, digest) != self._vocabulary:
            raise ModelError(
                f"corpus file {self.path} was made with another vocabulary ({size} tokens, the "
                f"model has {self._vocabulary.size}); name another file for this model"
            )
        for row, namespace, data, checksum in self._db.execute("SELECT * FROM texts ORDER BY id"):
            if not isinstance(data, bytes) or crc32(data, crc32(namespace)) != checksum:
                raise ValueError(f"text {row} is not what was written")
            tokens = array("i")
            tokens.frombytes(data)
            known = {*tokens} - {SEPARATOR}  # which replaces images
            if not known or not 0 <= min(known) <= max(known) < self._vocabulary.size:
                raise ValueError(f"text {row} has tokens of another vocabulary")
            self.texts.append((row, namespace, tokens))
        (found,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise ValueError(found)

    def _make_tables(self) -> None:
        with self._db:
            self._db.executescript(
                f"BEGIN; PRAGMA application_id = {_APPLICATION_ID};"
                "CREATE TABLE vocabulary (size INTEGER, digest BLOB);"
                "CREATE TABLE texts ("
                "id INTEGER PRIMARY KEY, namespace BLOB, tokens BLOB, checksum INTEGER);"
            )
            about = (self._vocabulary.size, self._vocabulary.digest)
            self._db.execute("INSERT INTO vocabulary VALUES (?, ?)", about)
            self._db.execute("COMMIT")

    def _begin_anew(self) -> None:
        """Copy the damaged file, and start a new one with the texts read."""
        copy = next(
            path
            for number in count_from(1)
            if not (path := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists()
        )
        try:
            shutil.copy(self.path, copy)
            self.close()
            os.truncate(self.path, 0)
            self._db, texts, self.texts = self._connect(), self.texts, []
            self._lock()
            self._make_tables()
            for _, namespace, tokens in texts:
                self.texts.append((self.add(namespace, tokens), namespace, tokens))
        except (OSError, sqlite3.DatabaseError) as error:
            self.close()
            raise self._unusable(error) from error
        log.warning(
            "corpus file %s is damaged; copied it to %s, and using the texts before the damage",
            self.path,
            copy,
        )

    def _foreign(self) -> ModelError:
        return ModelError(f"{self.path} is not a corpus file of headstart; name another file")

    def _unusable(self, error: Exception) -> ConfigError:
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


def _code(error: Exception) -> int:
    """SQLite's primary error code."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
