"""Token documents in an append-only file that survives being killed at any moment.

    header   8 bytes magic, uint32 version, uint32 vocabulary size, 16 bytes vocabulary hash,
             uint32 CRC-32 of the fields before
    record   uint32 number of tokens, 16 bytes namespace, uint32 CRC-32 of tokens, uint32 CRC-32 of
             the fields before; then the tokens as int32. All little-endian, as every machine that
             runs libllama's backends is.

A record that the file's end cuts off was being written when the process died: it is dropped, and so
are zeros up to the end, which a power failure leaves. Any other mismatch is damage and refuses the
file. One process at a time holds the file (flock); another waits a little, because the engine of a
server that was killed lives until its step is over.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import sys
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count as count_from
from pathlib import Path
from zlib import crc32

from headstart.structures.atomic import replace_file, sync_folder
from headstart.types import Vocab
from headstart.types.errors import ConfigError, ModelError

if sys.platform != "win32":
    import fcntl

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0  # with another process that holds the file
_RETRY_SECONDS = 0.1
_MAGIC = b"HSTOKENS"
_VERSION = 1
_HEADER = struct.Struct("<8sII16s")
_RECORD = struct.Struct("<I16sI")
_CRC = struct.Struct("<I")
_RECORD_SIZE = _RECORD.size + _CRC.size
_HEADER_SIZE = _HEADER.size + _CRC.size


@dataclass(frozen=True, slots=True)
class VocabularyId:
    """What must agree for token ids to mean the same."""

    size: int
    digest: bytes  # 16 bytes over the spelling of every token

    @property
    def mark(self) -> int:
        """31 bits of the digest, for files that have room for a token id only."""
        return int.from_bytes(self.digest[:4], "little") >> 1

    @classmethod
    def of(cls, vocab: Vocab) -> VocabularyId:
        """Identify a vocabulary. O(vocab_size)."""
        digest = blake2b(digest_size=16)
        for token in range(vocab.size):
            text = vocab.token_text(token)
            digest.update(b"%d:%b" % (len(text), text))
        return cls(vocab.size, digest.digest())


@dataclass(frozen=True, slots=True)
class Record:
    """A document and the 16 bytes that stand for its namespace."""

    namespace: bytes
    tokens: array[int]

    def encode(self) -> bytes:
        body = self.tokens.tobytes()
        head = _RECORD.pack(len(self.tokens), self.namespace, crc32(body))
        return head + _CRC.pack(crc32(head)) + body


def _lock(descriptor: int, path: Path, patience_seconds: float) -> None:
    """Lock a file until it is closed.

    Raises:
        ConfigError: somebody else holds it, or its disk has no locks.
    """
    if sys.platform == "win32":
        return
    end, is_waiting = time.monotonic() + patience_seconds, False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() >= end:
                raise ConfigError(
                    f"corpus file {path} is in use by another process; stop it or name another file"
                ) from error
        except OSError as error:
            raise ConfigError(
                f"corpus file {path} cannot be locked: {error.strerror}; name a file on a disk of "
                "this machine"
            ) from error
        if not is_waiting:
            log.warning(
                "corpus file %s is in use by another process; waiting for up to %g s",
                path,
                patience_seconds,
            )
            is_waiting = True
        time.sleep(_RETRY_SECONDS)


@dataclass(slots=True)
class _Rewrite:
    """A file that is being written to replace the log."""

    descriptor: int
    path: Path
    records: Iterator[Record]  # left to be written
    start: int  # in the old file: what was appended since, and not copied yet
    num_tokens: int  # that the log has more once it is replaced


def _read_from(descriptor: int, start: int, size: int = -1) -> bytes:
    with open(os.dup(descriptor), "rb") as file:
        file.seek(start)
        return file.read(size)


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


class TokenLog:
    """An open log. `take_records` reads what it held; `append` adds; `begin_rewrite` replaces all.

    Args:
        patience_seconds: how long to wait for a process that holds the file.
        keeps_damaged: a damaged file is copied beside itself, and what comes before the damage is
            used, instead of refusing it.

    Raises (constructor):
        ModelError: the file belongs to another vocabulary, is damaged or is no token log.
        ConfigError: it cannot be opened or another process holds it.
    """

    def __init__(
        self,
        path: Path,
        vocabulary: VocabularyId,
        patience_seconds: float = PATIENCE_SECONDS,
        *,
        keeps_damaged: bool = False,
    ) -> None:
        self._keeps_damaged = keeps_damaged
        self.path = path.resolve()  # `rewrite` replaces the file, not a link to it
        self._vocabulary = vocabulary
        self._descriptor = self._open_current(path, patience_seconds)
        self._rewrite: _Rewrite | None = None
        try:
            data = _read_from(self._descriptor, 0)
            self._size = len(data)
            # new, or killed at once
            if len(data) < _HEADER_SIZE and self._header().startswith(data):
                self._reset()
                data = self._header()
            if not self._check_header(data):
                self._reset()
                data = self._header()
            self._records, end = self._parse(data)
            self.num_tokens = sum(len(record.tokens) for record in self._records)  # in the file
            os.ftruncate(self._descriptor, end)
            self._size = end
        except OSError as error:
            self.close()
            raise ConfigError(
                f"corpus file {self.path} cannot be read or written: {error.strerror or error}; "
                "make room, or name another file"
            ) from error
        except BaseException:
            self.close()
            raise

    def _open_current(self, path: Path, patience_seconds: float) -> int:
        """Open and hold the file of this name, not one that its holder just replaced."""
        while True:
            descriptor = self._open(path, os.O_RDWR | os.O_CREAT, patience_seconds)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
            os.close(descriptor)

    @staticmethod
    def _open(path: Path, flags: int, patience_seconds: float = 0.0) -> int:
        try:
            descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o600)
        except OSError as error:
            raise ConfigError(
                f"corpus file {path} cannot be opened for writing: {error.strerror}; name a file "
                "in a folder that "
                "exists and can be written"
            ) from error
        try:
            _lock(descriptor, path, patience_seconds)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _header(self) -> bytes:
        fields = _HEADER.pack(_MAGIC, _VERSION, self._vocabulary.size, self._vocabulary.digest)
        return fields + _CRC.pack(crc32(fields))

    def _reset(self) -> None:
        os.ftruncate(self._descriptor, 0)
        self._size = 0
        self._write(self._header())

    def _check_header(self, data: bytes) -> bool:
        """Whether what follows can be read; False if it was damaged and is set aside."""
        if len(data) < _HEADER_SIZE or not data.startswith(_MAGIC):
            raise ModelError(f"{self.path} is not a corpus file of headstart; name another file")
        fields, (crc,) = data[: _HEADER.size], _CRC.unpack_from(data, _HEADER.size)
        if crc32(fields) != crc:
            self._set_aside(data, 0)
            return False
        _, version, vocab_size, digest = _HEADER.unpack(fields)
        if version != _VERSION:
            raise ModelError(
                f"corpus file {self.path} has version {version} but this program reads {_VERSION}; "
                "name another file"
            )
        if VocabularyId(vocab_size, digest) != self._vocabulary:
            raise ModelError(
                f"corpus file {self.path} was made with another vocabulary ({vocab_size} tokens, "
                "the model "
                f"has {self._vocabulary.size}); name another file for this model"
            )
        return True

    def _parse(self, data: bytes) -> tuple[list[Record], int]:
        """All whole records and where they end."""
        records: list[Record] = []
        position = _HEADER_SIZE
        while position + _RECORD_SIZE <= len(data):
            fields = data[position : position + _RECORD.size]
            (head_crc,) = _CRC.unpack_from(data, position + _RECORD.size)
            if crc32(fields) != head_crc:
                if not any(data[position:]):
                    break
                self._set_aside(data, position)
                break
            count, namespace, body_crc = _RECORD.unpack(fields)
            start = position + _RECORD_SIZE
            body = data[start : start + 4 * count]
            if len(body) < 4 * count:
                break
            tokens = array("i")
            tokens.frombytes(body)
            if crc32(body) != body_crc and not any(data[start:]):
                break
            if (
                crc32(body) != body_crc
                or not count
                or not 0 <= min(tokens) <= max(tokens) < self._vocabulary.size
            ):
                self._set_aside(data, position)
                break
            records.append(Record(namespace, tokens))
            position = start + 4 * count
        return records, position

    def _set_aside(self, data: bytes, position: int) -> None:
        """Keep a copy of a damaged file, of which only the part before the damage is used.

        Raises:
            ModelError: that was not asked for.
            OSError: there is no room for the copy; the file is as it was.
        """
        where = f"at byte {position}" if position else "in its header"
        if not self._keeps_damaged:
            raise ModelError(
                f"corpus file {self.path} is damaged {where}; restore a copy, or move it away "
                f"(mv {self.path} {self.path}.damaged) to begin anew"
            )
        copy = next(
            path
            for number in count_from(1)
            if not (path := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists()
        )
        replace_file(copy, data)
        log.warning(
            "corpus file %s is damaged %s; a copy of it is %s, what comes before is used",
            self.path,
            where,
            copy,
        )

    def append(self, record: Record) -> None:
        """Write one record; after it returns, killing the process cannot lose it.

        Raises:
            OSError: the disk is full or gone; the file is as before.
        """
        try:
            self._write(record.encode())
            self.num_tokens += len(record.tokens)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise

    def _write(self, data: bytes) -> None:
        os.lseek(self._descriptor, self._size, os.SEEK_SET)
        _write_all(self._descriptor, data)
        self._size += len(data)

    @property
    def is_rewriting(self) -> bool:
        return self._rewrite is not None

    def begin_rewrite(self, records: Iterator[Record]) -> None:
        """Replace what the log holds now, in slices that `continue_rewrite` writes to another file.

        What is appended in the meantime stays behind these records.
        """
        path = self.path.with_name(f".{self.path.name}.tmp")
        descriptor = self._open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._rewrite = _Rewrite(descriptor, path, records, self._size, -self.num_tokens)
        _write_all(descriptor, self._header())

    def continue_rewrite(self, num_tokens: int) -> None:
        """Write records of about so many tokens, then what was appended since.

        When all is written, the new file replaces the old one: a crash leaves one of them.

        Raises:
            OSError: the disk is full or gone; the file is as before, and is not rewritten.
        """
        new = self._rewrite
        if new is None:
            return
        try:
            num_written = 0
            for record in new.records:
                _write_all(new.descriptor, record.encode())
                num_written += len(record.tokens)
                if num_written >= num_tokens:
                    break
            new.num_tokens += num_written
            if num_written < num_tokens:
                data = _read_from(self._descriptor, new.start, 4 * num_tokens)
                _write_all(new.descriptor, data)
                new.start += len(data)
            os.fsync(new.descriptor)  # at once: the last slice would wait for all of them
            if num_written < num_tokens and new.start == self._size:
                self._finish_rewrite(new)
        except BaseException:
            self._drop_rewrite()
            raise

    def _finish_rewrite(self, new: _Rewrite) -> None:
        os.replace(new.path, self.path)
        os.close(self._descriptor)
        self._descriptor, self._rewrite = new.descriptor, None
        self._size = os.fstat(new.descriptor).st_size
        self.num_tokens += new.num_tokens
        sync_folder(self.path.parent)

    def _drop_rewrite(self) -> None:
        new, self._rewrite = self._rewrite, None
        if new is not None:
            os.close(new.descriptor)
            new.path.unlink(missing_ok=True)

    def take_records(self) -> Iterator[Record]:
        """Yield what the file held when it was opened; nothing is kept in memory."""
        records, self._records = self._records, []
        yield from records

    def close(self) -> None:
        """Flush to the disk and release the file; doing it twice is harmless."""
        self._drop_rewrite()
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # a disk that fails now cannot be helped
                os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
