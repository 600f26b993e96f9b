"""`Engine` over a llama_context: decode batches, keep sequences, never let libllama abort.

Limits that libllama enforces by aborting the process are checked here or hold by construction:
rows <= n_batch, outputs <= n_outputs_max, sequence ids < n_seq_max, partial copies only in a
unified cache.
"""

from __future__ import annotations

import ctypes
import os
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.config import CACHE_TYPES, EngineConfig
from headstart.engine.filters import LlamaFilters
from headstart.engine.library import api, get_logits, take_errors, use_reference_kernels
from headstart.engine.model import Model
from headstart.errors import ConfigError, EngineError, ModelError
from headstart.sampling.params import SamplingParams
from headstart.types import Batch, ContextFullError, Filters, Logits, MemoryKind

_GGML_TYPES = dict(zip(CACHE_TYPES, (0, 1, 30, 8, 2, 3, 20, 6, 7), strict=True))
_FLASH = {"auto": -1, "off": 0, "on": 1}
_UNLIMITED = 2**30


class LlamaEngine:
    """One model with one cache of sequences. One thread at a time."""

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        *,
        num_sequences: int,
        max_outputs: int,
        max_draft: int,
    ) -> None:
        """Create the context.

        Args:
            num_sequences: sequences the cache can hold, ids 0 .. num_sequences - 1.
            max_outputs: most rows with logits in one decode.
            max_draft: longest draft that will ever have to be rolled back.

        Raises:
            ModelError: libllama cannot create it (usually memory).
            ConfigError: the context is larger than memory or the limits contradict each other.
        """
        self.model = model
        self.vocab_size = model.vocab.size
        self.deterministic = config.deterministic
        self.num_sequences = num_sequences
        context = config.context or automatic_context(
            model, num_sequences if config.deterministic else 1
        )
        params = self._params(config, context, max_outputs, max_draft)
        self.max_batch_tokens: int = params.n_batch
        self.max_outputs: int = params.n_outputs_max
        take_errors()
        self.handle: Any = api.llama_init_from_model(model.handle, params)
        if not self.handle:
            reason = take_errors() or "libllama gave no reason"
            raise ModelError(
                f"cannot create a context of {context} tokens for {model.path}: {reason}; try a "
                "smaller --context"
            )
        self._memory = api.llama_get_memory(self.handle)
        self.context_size: int = min(context, api.llama_n_ctx_seq(self.handle))
        self.num_cells: int = self.context_size * (num_sequences if self.deterministic else 1)
        self.memory, self.max_rollback = self._memory_kind()
        self._batches: dict[int, tuple[Batch, Any, Any]] = {}
        self._last_rows: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        if self.deterministic:
            use_reference_kernels(self.handle)
            self._staging = Batch(self.max_batch_tokens)

    def _params(self, config: EngineConfig, context: int, max_outputs: int, max_draft: int) -> Any:
        params = api.llama_context_default_params()
        params.n_seq_max = self.num_sequences
        params.kv_unified = not config.deterministic
        # Deterministic rows may be padded past the end of a sequence, hence the spare cells.
        params.n_ctx = context if not config.deterministic else (context + 256) * self.num_sequences
        params.n_batch = min(config.batch, max(context, 64))
        params.n_ubatch = (
            params.n_batch if config.deterministic else min(config.ubatch, params.n_batch)
        )
        params.n_outputs_max = max(self.num_sequences, min(max_outputs, params.n_batch))
        params.n_rs_seq = max_draft if self.model.is_recurrent else 0
        params.n_threads = config.threads or default_threads()
        params.n_threads_batch = config.threads_batch or params.n_threads
        params.flash_attn_type = 1 if config.deterministic else _FLASH[config.flash_attn]
        params.type_k = _GGML_TYPES[config.cache_type_k]
        params.type_v = _GGML_TYPES[config.cache_type_v]
        if config.deterministic and self.model.is_recurrent:
            raise ConfigError(
                f"--deterministic needs a model with attention only, and {self.model.path} keeps a "
                "recurrent state"
            )
        if config.deterministic and config.flash_attn == "off":
            raise ConfigError("--deterministic needs flash attention; drop --flash-attn off")
        return params

    def _memory_kind(self) -> tuple[MemoryKind, int]:
        if not self.model.is_recurrent:
            return MemoryKind.CUT, _UNLIMITED
        limit = int(api.llama_n_rs_seq(self.handle))
        return (MemoryKind.ROLLBACK, limit) if limit > 0 else (MemoryKind.CHECKPOINT, 0)

    def decode(self, batch: Batch) -> Logits:
        """Decode all rows; logits of the output rows, shape (num_outputs, vocab_size).

        A view into libllama's memory, valid until the next decode (a copy when deterministic).
        """
        if batch.num_rows > self.max_batch_tokens or batch.num_outputs > self.max_outputs:
            raise EngineError(
                f"a batch of {batch.num_rows} rows with {batch.num_outputs} outputs exceeds the "
                "limits "
                f"{self.max_batch_tokens} and {self.max_outputs}"
            )
        if self.deterministic:
            return self._decode_invariant(batch)
        if self.memory is not MemoryKind.CUT:
            self._note_rows(batch)
        return self._decode(batch)

    def _decode(self, batch: Batch) -> Logits:
        known = self._batches.get(id(batch))
        if known is None:
            known = self._batches[id(batch)] = (batch, *_c_batch(batch))
        c_batch = known[1]
        c_batch.n_tokens = batch.num_rows
        status = api.llama_decode(self.handle, c_batch)
        if status == 1:
            raise ContextFullError
        if status != 0:
            raise EngineError(
                f"llama_decode returned {status} for {batch.num_rows} rows: "
                f"{take_errors() or 'no reason given'}"
            )
        count = batch.num_outputs * self.vocab_size
        if not count:
            return np.empty((0, self.vocab_size), np.float32)
        memory: Any = (ctypes.c_float * count).from_address(get_logits(self.handle))
        logits: Logits = np.frombuffer(memory, np.float32).reshape(
            batch.num_outputs, self.vocab_size
        )
        return logits

    def _decode_invariant(self, batch: Batch) -> Logits:
        """Decode so that a row's logits do not depend on what else is in the batch.

        Every call computes at least two rows, all of them in one micro-batch: short runs of rows
        are padded to the same length with tokens that are forgotten at once, long ones (prompt
        chunks) go alone. Measured on x86-64: one-row calls take other kernels than all others.
        """
        runs = _runs(batch)
        outputs = np.empty((batch.num_outputs, self.vocab_size), np.float32)
        for group in _groups(runs, self.max_batch_tokens):
            width = max(2, max(end - start for start, end, _ in group))
            staging = self._staging
            staging.clear()
            for start, end, _ in group:
                self._stage(batch, start, end, width)
            logits = self._decode(staging)
            offset = 0
            for start, end, first in group:
                wanted = int(batch.wants_logits[start:end].sum())
                outputs[first : first + wanted] = logits[offset : offset + wanted]
                offset += wanted
                if end - start < width:
                    length = int(batch.positions[end - 1]) + 1
                    api.llama_memory_seq_rm(self._memory, int(batch.seq_ids[start]), length, -1)
        return outputs

    def _stage(self, batch: Batch, start: int, end: int, width: int) -> None:
        """Copy rows start:end to the staging batch and pad them to `width` rows without output."""
        staging, first = self._staging, self._staging.num_rows
        seq_id, position = int(batch.seq_ids[start]), int(batch.positions[start])
        padding = [int(batch.tokens[end - 1])] * (width - (end - start))
        staging.add(seq_id, position, [*batch.tokens[start:end].tolist(), *padding], 0)
        staging.wants_logits[first : first + end - start] = batch.wants_logits[start:end]
        staging.num_outputs += int(batch.wants_logits[start:end].sum())

    def _note_rows(self, batch: Batch) -> None:
        """Remember each sequence's rows in this decode: recurrent rollback is limited to them."""
        for start, end, _ in _runs(batch):
            seq_id = int(batch.seq_ids[start])
            self._last_rows[seq_id] = end - start
            self._lengths[seq_id] = int(batch.positions[end - 1]) + 1

    def truncate(self, seq_id: int, length: int) -> bool:
        """Keep the first `length` tokens. False (and nothing changed) if this memory cannot."""
        if self.memory is not MemoryKind.CUT and not self._can_roll_back(seq_id, length):
            return False
        return bool(api.llama_memory_seq_rm(self._memory, seq_id, length, -1))

    def _can_roll_back(self, seq_id: int, length: int) -> bool:
        """libllama says yes to some rollbacks that silently corrupt the state; allow only the sound
        ones.
        """
        dropped = self._lengths.get(seq_id, 0) - length
        if length == 0 or dropped <= 0:
            self._lengths[seq_id] = min(length, self._lengths.get(seq_id, 0))
            return True
        if dropped > min(self.max_rollback, self._last_rows.get(seq_id, 0) - 1):
            return False
        self._lengths[seq_id] = length
        self._last_rows[seq_id] = 0  # a second rollback of the same decode is not possible
        return True

    def copy_prefix(self, source: int, target: int, length: int) -> bool:
        """Make `target` share the first `length` tokens of `source`; its own are dropped."""
        if self.memory is not MemoryKind.CUT:
            return False
        self.clear(target)
        if self.deterministic:  # caches of their own: only whole sequences can be copied
            api.llama_memory_seq_cp(self._memory, source, target, -1, -1)
            api.llama_memory_seq_rm(self._memory, target, length, -1)
        else:
            api.llama_memory_seq_cp(self._memory, source, target, 0, length)
        return True

    def clear(self, seq_id: int) -> None:
        """Forget the sequence and free its cells."""
        self._lengths.pop(seq_id, None)
        api.llama_memory_seq_rm(self._memory, seq_id, -1, -1)

    def make_filters(self, params: SamplingParams) -> Filters:
        return LlamaFilters(self.model.vocab, self.model.train_context, params)

    def close(self) -> None:
        if getattr(self, "handle", None):
            api.llama_free(self.handle)
            self.handle = None

    def __del__(self) -> None:
        self.close()


def default_threads() -> int:
    """Physical cores this process may use; siblings of one core slow each other down."""
    allowed = (
        os.sched_getaffinity(0)
        if hasattr(os, "sched_getaffinity")
        else set(range(os.cpu_count() or 1))
    )
    cores = set()
    for cpu in allowed:
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as file:
                cores.add(file.read().strip())
        except OSError:
            return max(1, len(allowed) // 2) if len(allowed) > 4 else len(allowed)
    return max(1, len(cores))


def automatic_context(model: Model, copies: int) -> int:
    """The trained context, or what fits `copies` times into half of the memory free now."""
    try:
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        available = 8 << 30
    fitting = available // 2 // (model.kv_bytes_per_token * copies)
    return max(512, min(model.train_context, fitting // 256 * 256))


def _c_batch(batch: Batch) -> tuple[Any, Any]:
    """A llama_batch over the arrays of `batch`, and the arrays that it points to besides."""
    counts = np.ones(batch.capacity, np.int32)
    pointers = (ctypes.POINTER(ctypes.c_int32) * batch.capacity)()
    base = batch.seq_ids.ctypes.data
    for row in range(batch.capacity):
        pointers[row] = ctypes.cast(base + 4 * row, ctypes.POINTER(ctypes.c_int32))
    c_batch = api.llama_batch()
    c_batch.token = _pointer(batch.tokens, ctypes.c_int32)
    c_batch.pos = _pointer(batch.positions, ctypes.c_int32)
    c_batch.n_seq_id = _pointer(counts, ctypes.c_int32)
    c_batch.seq_id = ctypes.cast(pointers, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32)))
    c_batch.logits = _pointer(batch.wants_logits, ctypes.c_int8)
    return c_batch, (counts, pointers)


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


def _runs(batch: Batch) -> list[tuple[int, int, int]]:
    """Adjacent rows of one sequence as (start, end, index of their first output)."""
    ids = batch.seq_ids[: batch.num_rows]
    edges = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), batch.num_rows]
    outputs = np.concatenate(([0], np.cumsum(batch.wants_logits[: batch.num_rows]))).tolist()
    return [(start, end, outputs[start]) for start, end in pairwise(edges) if end > start]


def _groups(runs: list[tuple[int, int, int]], max_rows: int) -> list[list[tuple[int, int, int]]]:
    """Runs to decode together: the short ones padded to one width, each long one alone."""
    short = sorted((r for r in runs if r[1] - r[0] <= 32), key=lambda r: r[0])
    groups = [[r] for r in runs if r[1] - r[0] > 32]
    width = max(2, max((r[1] - r[0] for r in short), default=0))
    per_group = max(1, max_rows // width)
    groups += [short[i : i + per_group] for i in range(0, len(short), per_group)]
    return groups
