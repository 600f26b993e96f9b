"""Files of one sequence, in libllama's own format.

magic, version, number of tokens (uint32 each), the tokens (int32), the state. In memory a state has
a magic and a sequence id in front (`_IN_MEMORY`), in a file it has not. Files are read and written
here, because libllama's own function aborts the process on a file that ends early; of a state in
memory it only says that it cannot use it. Source: llama.cpp src/llama-context.cpp,
state_seq_save_file and state_seq_load_file.

Behind the state, where libllama does not look, stand the number of exact tokens, which is less
where cells were moved, and a checksum (`_TRAILER`): a damaged state would change the text without
notice.

What llama-server puts in the place of the tokens is -1, a version, their number, the tokens, the
number of images and these (tools/server/server-common.cpp, server_tokens::serialize). It also reads
plain tokens, which are what is written here.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headstart.engine.library import api
from headstart.structures.atomic import replace_file
from headstart.types import SavedSequence
from headstart.types.errors import EngineError, InvalidParameterError

_HEADER = struct.Struct("<III")
_IN_MEMORY = struct.Struct("<Ii")
_STATE_MAGIC = 0xAF143CD8
_TRAILER = struct.Struct("<8sI16s")  # magic, exact tokens, checksum of all that stands before it
_TRAILER_MAGIC = b"HS SLOT1"
_PACKED, _PACKED_VERSION, _NUM_AROUND = -1, 1, 4  # of llama-server; numbers around the tokens


def write(path: Path, tokens: Sequence[int], state: bytes | bytearray, num_exact: int) -> int:
    """Save a sequence, whole or not at all; returns the bytes written.

    Raises:
        EngineError: the file cannot be written.
    """
    head = _HEADER.pack(api.LLAMA_STATE_SEQ_MAGIC, api.LLAMA_STATE_SEQ_VERSION, len(tokens))
    data = head + np.array(tokens, "<i4").tobytes() + bytes(state[_IN_MEMORY.size :])
    data += _TRAILER.pack(_TRAILER_MAGIC, num_exact, _checksum(data, num_exact))
    try:
        replace_file(path, data)
    except OSError as error:
        raise EngineError(f"{path.name} cannot be written: {error.strerror}") from error
    return len(data)


def read(path: Path, context_size: int, vocab_size: int) -> tuple[SavedSequence, bytes]:
    """What a file holds, and the state as in memory.

    Raises:
        InvalidParameterError: it is not a file of a sequence that fits here.
    """
    try:
        data = memoryview(path.read_bytes())
    except OSError as error:
        raise InvalidParameterError(f"{path.name} cannot be read: {error.strerror}") from error
    if len(data) < _HEADER.size:
        raise InvalidParameterError(f"{path.name} is not a saved slot: it is too short")
    magic, version, num_tokens = _HEADER.unpack(data[: _HEADER.size])
    if (magic, version) != (api.LLAMA_STATE_SEQ_MAGIC, api.LLAMA_STATE_SEQ_VERSION):
        raise InvalidParameterError(f"{path.name} is not a saved slot of this version")
    end = _HEADER.size + 4 * num_tokens
    if len(data) < end:
        raise InvalidParameterError(f"{path.name} is damaged: it ends inside its tokens")
    tokens = _unpacked(path.name, np.frombuffer(data[_HEADER.size : end], "<i4"))
    if len(tokens) > context_size:
        raise InvalidParameterError(
            f"{path.name} has {len(tokens)} tokens but the context is {context_size}; start with "
            "a larger --ctx-size"
        )
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab_size:
        raise InvalidParameterError(
            f"{path.name} has token ids outside the vocabulary (0 to {vocab_size - 1}); it is "
            "damaged, or of another model"
        )
    num_exact, num_bytes = len(tokens), len(data)
    if data[-_TRAILER.size :][: len(_TRAILER_MAGIC)] == _TRAILER_MAGIC:
        _, num_exact, checksum = _TRAILER.unpack(data[-_TRAILER.size :])
        data = data[: -_TRAILER.size]
        if _checksum(data, num_exact) != checksum:
            raise InvalidParameterError(
                f"{path.name} is damaged: its checksum is wrong; save the slot again"
            )
    state = b"".join((_IN_MEMORY.pack(_STATE_MAGIC, 0), data[end:]))  # the id is not looked at
    return SavedSequence(tokens.tolist(), num_exact, num_bytes), state


def _checksum(data: bytes | memoryview, num_exact: int) -> bytes:
    digest = hashlib.blake2b(data, digest_size=16)
    digest.update(num_exact.to_bytes(4, "little"))
    return digest.digest()


def _unpacked(name: str, numbers: NDArray[np.int32]) -> NDArray[np.int32]:
    """The tokens, of a file of llama-server's too."""
    if not len(numbers) or numbers[0] != _PACKED:
        return numbers
    if len(numbers) < _NUM_AROUND or numbers[1] != _PACKED_VERSION:
        raise InvalidParameterError(f"{name} is a slot of another version of llama-server")
    num_tokens = int(numbers[2])
    if not 0 <= num_tokens <= len(numbers) - _NUM_AROUND:
        raise InvalidParameterError(f"{name} is damaged: it ends inside its tokens")
    if len(numbers) != num_tokens + _NUM_AROUND or numbers[-1] != 0:
        raise InvalidParameterError(f"{name} has images, which cannot be read here")
    return numbers[3:-1]
