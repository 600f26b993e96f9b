"""Files of one sequence, in libllama's format, so that llama-server reads ours and vice versa.

Format: magic, version, number of tokens (uint32 each), the tokens (int32), the state. In memory a
state is preceded by the gaps of its images (engine/gaps.py), a magic and a sequence id, which files
omit. Files are read and written here, because libllama's function aborts the process on a truncated
file; for a state in memory it only returns an error. This needs no context, so any thread may do
it. Source: llama.cpp src/llama-context.cpp, state_seq_save_file and state_seq_load_file.

The state is followed, where libllama does not look, by the gaps, the number of exact tokens, which
is lower if cells were shifted, that of the gaps, and a checksum: a damaged state would change the
text silently.

In place of the tokens, llama-server writes -1, a version, their number, the tokens, the number of
images and these (tools/server/server-common.cpp, server_tokens::serialize). It also reads plain
tokens, which we write.
"""

from __future__ import annotations

import hashlib
import os
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headstart.structures.atomic import replace_file
from headstart.types import Bytes, SavedState
from headstart.types.errors import EngineError, RequestError

# LLAMA_STATE_SEQ_MAGIC and LLAMA_STATE_SEQ_VERSION of llama.h
MAGIC, VERSION = 0x67677371, 3
_HEADER = struct.Struct("<III")
_NUM_GAPS, _GAP_BYTES = struct.Struct("<H"), 8  # in memory: the number of gaps, then the gaps
_FRONT = struct.Struct("<Ii")  # then a magic and an id, which is ignored
_TRAILER = struct.Struct("<8sIH")  # magic, exact tokens, gaps; then a checksum of all before it
_TRAILER_MAGIC, _CHECKSUM_BYTES = b"HS SLOT3", 16
_PACKED, _PACKED_VERSION, _NUM_AROUND = -1, 1, 4  # of llama-server; numbers around the tokens


@dataclass(frozen=True, slots=True)
class SavedSequence:
    """Contents of a sequence's file."""

    tokens: list[int]
    num_exact: int  # tokens whose cells were computed after the tokens that precede them
    num_bytes: int  # of the file
    data: SavedState  # for `Engine.restore_sequence`


def write(path: Path, tokens: Sequence[int], data: SavedState, num_exact: int) -> int:
    """Write the result of `Engine.save_sequence` atomically; returns the file's size.

    Raises:
        EngineError: the file cannot be written.
    """
    head = _HEADER.pack(MAGIC, VERSION, len(tokens)) + array("i", tokens).tobytes()
    state = memoryview(data.state)
    (num_gaps,) = _NUM_GAPS.unpack(state[: _NUM_GAPS.size])
    end = _NUM_GAPS.size + _GAP_BYTES * num_gaps
    pieces: list[Bytes] = [head, state[end + _FRONT.size :], state[_NUM_GAPS.size : end]]
    pieces.append(_TRAILER.pack(_TRAILER_MAGIC, num_exact, num_gaps))
    pieces.append(_checksum(pieces))
    try:
        replace_file(path, *pieces)
    except OSError as error:
        raise EngineError(f"{path.name} cannot be written: {error.strerror}") from error
    return sum(map(len, pieces))


def read(path: Path, context_size: int, vocab_size: int) -> SavedSequence:
    """Read a file.

    Raises:
        RequestError: it is not a file of a sequence that fits here.
    """
    try:
        with path.open("rb") as file:
            num_bytes = os.fstat(file.fileno()).st_size
            head = file.read(_HEADER.size)
            end = _end_of_tokens(path.name, head, num_bytes)
            file.seek(max(end, num_bytes - _TRAILER.size - _CHECKSUM_BYTES))
            trailer, checksum = file.read(_TRAILER.size), file.read()
            num_exact = num_gaps = 0
            if is_ours := trailer.startswith(_TRAILER_MAGIC) and len(checksum) == _CHECKSUM_BYTES:
                _, num_exact, num_gaps = _TRAILER.unpack(trailer)
            file.seek(_HEADER.size)
            head += file.read(end - _HEADER.size)
            start = _NUM_GAPS.size + _GAP_BYTES * num_gaps
            num_behind = _GAP_BYTES * num_gaps + is_ours * (len(trailer) + len(checksum))
            size = max(0, num_bytes - end - num_behind)
            place = memoryview(bytearray(start + _FRONT.size + size))
            place[: _NUM_GAPS.size] = _NUM_GAPS.pack(num_gaps)
            place[start : start + _FRONT.size] = _FRONT.pack(0xAF143CD8, 0)
            gaps, state = place[_NUM_GAPS.size : start], place[start + _FRONT.size :]
            if file.readinto(state) != len(state) or file.readinto(gaps) != len(gaps):
                raise RequestError(f"{path.name} became shorter while it was read")
    except OSError as error:
        raise RequestError(f"{path.name} cannot be read: {error.strerror}") from error
    tokens = _unpacked(path.name, np.frombuffer(head[_HEADER.size :], "<i4"))
    if len(tokens) > context_size:
        raise RequestError(
            f"{path.name} has {len(tokens)} tokens but the context is {context_size}; start with "
            "a larger --ctx-size"
        )
    # in our files, negative ids are cells of images (types/media.py)
    is_below = not is_ours and tokens.min(initial=0) < 0
    if is_below or tokens.max(initial=0) >= vocab_size:
        raise RequestError(
            f"{path.name} has token ids outside the vocabulary (0 to {vocab_size - 1}); it is "
            "damaged, or of another model"
        )
    if is_ours and _checksum([head, state, gaps, trailer]) != checksum:
        raise RequestError(f"{path.name} is damaged: its checksum is wrong; save the slot again")
    num_exact = num_exact if is_ours else len(tokens)
    return SavedSequence(tokens.tolist(), num_exact, num_bytes, SavedState(place))


def _end_of_tokens(name: str, header: bytes, num_bytes: int) -> int:
    if len(header) < _HEADER.size:
        raise RequestError(f"{name} is not a saved slot: it is too short")
    magic, version, num_tokens = _HEADER.unpack(header)
    if (magic, version) != (MAGIC, VERSION):
        raise RequestError(f"{name} is not a saved slot of this version")
    end = _HEADER.size + 4 * int(num_tokens)
    if num_bytes < end:
        raise RequestError(f"{name} is damaged: it ends inside its tokens")
    return end


def _checksum(pieces: Sequence[Bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=_CHECKSUM_BYTES)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def _unpacked(name: str, numbers: NDArray[np.int32]) -> NDArray[np.int32]:
    """The tokens, also from llama-server's format."""
    if not len(numbers) or numbers[0] != _PACKED:
        return numbers
    if len(numbers) < _NUM_AROUND or numbers[1] != _PACKED_VERSION:
        raise RequestError(f"{name} is a slot of another version of llama-server")
    num_tokens = int(numbers[2])
    if not 0 <= num_tokens <= len(numbers) - _NUM_AROUND:
        raise RequestError(f"{name} is damaged: it ends inside its tokens")
    if len(numbers) != num_tokens + _NUM_AROUND or numbers[-1] != 0:
        raise RequestError(f"{name} has images, which cannot be read here")
    return numbers[3:-1]
