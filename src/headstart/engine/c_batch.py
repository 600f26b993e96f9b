"""Batches in libllama's layout, and views of its results."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.engine.library import api
from headstart.types import Batch
from headstart.types.errors import EngineError


def c_batch(batch: Batch) -> Any:
    """A llama_batch over the arrays of `batch`, made once and kept in it."""
    made = _make(batch) if batch.native is None else batch.native[0]
    made.n_tokens = batch.num_rows
    return made


def _make(batch: Batch) -> Any:
    counts = np.ones(batch.capacity, np.int32)
    addresses = batch.seq_ids.ctypes.data + 4 * np.arange(batch.capacity, dtype=np.uint64)
    made = api.llama_batch()
    if batch.has_tokens:
        made.token = _pointer(batch.tokens, ctypes.c_int32)
    if batch.states.size:
        made.embd = _pointer(batch.states, ctypes.c_float)
    made.pos = _pointer(batch.positions, ctypes.c_int32)
    made.n_seq_id = _pointer(counts, ctypes.c_int32)
    made.seq_id = _pointer(addresses, ctypes.POINTER(ctypes.c_int32))
    made.logits = _pointer(batch.wants_logits, ctypes.c_int8)
    batch.native = made, counts, addresses  # `made` points to the others
    return made


@lru_cache(16)  # few distinct sizes; creating one takes 45 us after a decode
def floats_at(address: int | None, rows: int, width: int) -> NDArray[np.float32]:
    """Results of the last decode, shape (rows, width): a view, valid until the next decode.

    Raises:
        EngineError: libllama computed or kept nothing.
    """
    if not address:
        raise EngineError("libllama kept no such numbers of the last decode")
    memory: Any = (ctypes.c_float * (rows * width)).from_address(address)
    return np.frombuffer(memory, np.float32).reshape(rows, width)


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
