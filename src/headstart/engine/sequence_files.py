"""Files of one sequence, in libllama's own format.

magic, version, number of tokens (uint32 each), the tokens (int32), the state. They are read and
written here, because libllama's own function aborts the process on a file that ends early; of a
state in memory it only says that it cannot use it. Source: llama.cpp src/llama-context.cpp,
state_seq_save_file and state_seq_load_file.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headstart.engine.library import api
from headstart.errors import EngineError, InvalidParameterError
from headstart.structures.atomic import replace_file

_HEADER = struct.Struct("<III")


def write(path: Path, tokens: Sequence[int], state: bytes | bytearray) -> int:
    """Save a sequence, whole or not at all; returns the bytes written.

    Raises:
        EngineError: the file cannot be written.
    """
    head = _HEADER.pack(api.LLAMA_STATE_SEQ_MAGIC, api.LLAMA_STATE_SEQ_VERSION, len(tokens))
    data = head + np.array(tokens, "<i4").tobytes() + bytes(state)
    try:
        replace_file(path, data)
    except OSError as error:
        raise EngineError(f"{path.name} cannot be written: {error.strerror}") from error
    return len(data)


def read(path: Path, context_size: int, vocab_size: int) -> tuple[list[int], memoryview, int]:
    """Tokens, state, and the bytes of the file.

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
    if num_tokens > context_size:
        raise InvalidParameterError(
            f"{path.name} has {num_tokens} tokens but the context is {context_size}; start with "
            "a larger --ctx-size"
        )
    end = _HEADER.size + 4 * num_tokens
    tokens = np.frombuffer(data[_HEADER.size : end][: len(data[_HEADER.size :]) // 4 * 4], "<i4")
    if len(tokens) < num_tokens:
        raise InvalidParameterError(f"{path.name} is damaged: it ends inside its tokens")
    if num_tokens and not 0 <= tokens.min() <= tokens.max() < vocab_size:
        raise InvalidParameterError(
            f"{path.name} has token ids outside the vocabulary (0 to {vocab_size - 1}); it is "
            "damaged, or of another model"
        )
    return tokens.tolist(), data[end:], len(data)
