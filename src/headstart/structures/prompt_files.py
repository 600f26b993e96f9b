"""Files of prompts: tokens of one text, and the caches that were computed for them.

magic, sizes, a checksum of what stands before the caches (`_HEADER`); what there is (JSON), the
tokens (int32); the caches, one behind the other; a hash of the CRC-32 of each MiB of these, which
takes a fifth of the time of hashing them whole. So nothing is used that is not as it was written.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

from headstart.structures.checkpoints import Data

_HEADER = struct.Struct("<8sII16s")  # magic, bytes of JSON, tokens, checksum
_MAGIC, _CHECKSUM_SIZE = b"HSPROMP3", 16
_PIECE = 1 << 20  # bytes that are written without a rest, and have a checksum of their own


@dataclass(frozen=True, slots=True)
class PromptHead:
    """What a file says before its caches."""

    identity: str  # names all that the target's cache depends on
    namespace: str
    start: int  # tokens of the text that stand before these
    tokens: array[int]
    num_prompt: int  # of the text
    sizes: Mapping[str, int]  # bytes of the caches, by model and in order


def write_prompt(
    path: Path,
    head: PromptHead,
    caches: Iterable[Data],
    rest: Callable[[], object] = lambda: None,
) -> None:
    """Write a file that only this user may read, whole or not at all.

    It is not flushed to the disk: what a power failure takes is noticed, and read again. `rest` is
    called behind each piece of the caches.

    Raises:
        OSError: it cannot be written.
    """
    facts = {name: getattr(head, name) for name in ("identity", "namespace", "start")}
    facts |= {"num_prompt": head.num_prompt, "sizes": dict(head.sizes)}
    text, tokens = json.dumps(facts).encode(), head.tokens.tobytes()
    first = hashlib.blake2b(text + tokens, digest_size=_CHECKSUM_SIZE).digest()
    # another container's server may have the same process id
    temporary = path.with_suffix(f".{os.urandom(8).hex()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb", buffering=0) as file:
            digest = hashlib.blake2b(first, digest_size=_CHECKSUM_SIZE)
            start = _HEADER.pack(_MAGIC, len(text), len(head.tokens), first) + text + tokens
            _write_all(file, start)
            for cache in caches:
                for piece in _pieces(cache):
                    _write_all(file, piece)
                    digest.update(crc32(piece).to_bytes(4, "little"))
                    rest()
            _write_all(file, digest.digest())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def read_prompt(path: Path) -> tuple[PromptHead, dict[str, Data]]:
    """All that a file holds.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged, or another kind of file.
    """
    with path.open("rb", buffering=0) as file:
        head, first = _read_head(file)
        digest, caches = hashlib.blake2b(first, digest_size=_CHECKSUM_SIZE), dict[str, Data]()
        for name, size in head.sizes.items():
            cache = caches[name] = bytearray(size)
            view, at = memoryview(cache), 0
            while at < size and (count := file.readinto(view[at:])):
                at += count
            for piece in _pieces(cache):
                digest.update(crc32(piece).to_bytes(4, "little"))
        if file.read(_CHECKSUM_SIZE) != digest.digest():
            raise ValueError("its checksum is wrong")
    return head, caches


def _read_head(file: BinaryIO) -> tuple[PromptHead, bytes]:
    start = file.read(_HEADER.size)
    if len(start) < _HEADER.size or start[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it is no prompt of this version")
    _, text_size, num_tokens, first = _HEADER.unpack(start)
    tokens = array("i")
    num_bytes = os.fstat(file.fileno()).st_size
    if _HEADER.size + text_size + 4 * num_tokens > num_bytes:
        raise ValueError("it ends early")
    text = file.read(text_size)
    packed = file.read(4 * num_tokens)
    tokens.frombytes(packed)
    if hashlib.blake2b(text + packed, digest_size=_CHECKSUM_SIZE).digest() != first:
        raise ValueError("its checksum is wrong")
    facts = json.loads(text)
    sizes = {str(name): int(size) for name, size in facts["sizes"].items()}
    if file.tell() + sum(sizes.values()) + _CHECKSUM_SIZE != num_bytes:
        raise ValueError("its length is wrong")
    own = facts["identity"], facts["namespace"], int(facts["start"])
    return PromptHead(*own, tokens, int(facts["num_prompt"]), sizes), first


def _pieces(cache: Data) -> Iterator[memoryview]:
    view = memoryview(cache)
    return (view[at : at + _PIECE] for at in range(0, len(view), _PIECE))


def _write_all(file: BinaryIO, data: Data) -> None:
    view = memoryview(data)
    while len(view):
        view = view[file.write(view) :]
