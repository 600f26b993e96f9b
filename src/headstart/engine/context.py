"""`Engine` over a llama_context: decode batches, keep sequences, never let libllama abort.

Limits that libllama enforces by aborting the process are checked here or hold by construction:
rows <= n_batch, outputs <= n_outputs_max, sequence ids < n_seq_max, partial copies only in a
unified cache.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.config import EngineConfig
from headstart.engine import sequence_files
from headstart.engine.adapters import apply_adapters
from headstart.engine.asynchrony import Asynchrony
from headstart.engine.c_batch import c_batch
from headstart.engine.devices import attention_tile
from headstart.engine.filters import LlamaFilters
from headstart.engine.hidden_states import HiddenStates
from headstart.engine.library import api, get_logits, take_errors, use_reference_kernels
from headstart.engine.model import Model
from headstart.engine.parameters import Limits, context_params
from headstart.engine.runs import Run, groups_of, runs_of
from headstart.engine.sequences import CacheRules, Sequences
from headstart.structures.checkpoints import Checkpoints
from headstart.types import (
    Batch,
    CacheKind,
    ContextFullError,
    Filters,
    Logits,
    Meanwhile,
    SavedSequence,
)
from headstart.types.errors import EngineError, InvalidParameterError, ModelError
from headstart.types.sampling_params import SamplingParams

_UNLIMITED = 2**30


class LlamaEngine:
    """One model with one cache of sequences. One thread at a time."""

    def __init__(self, model: Model, config: EngineConfig, limits: Limits) -> None:
        """Create the context.

        Raises:
            ModelError: libllama cannot create it (usually memory), or an adapter does not fit.
            ConfigError: the limits contradict each other.
        """
        self.model = model
        self.vocab_size = model.vocab.size
        self.deterministic = config.deterministic
        self.num_sequences = limits.num_sequences
        context = config.context or model.facts.train_context
        params = context_params(model.facts, config, limits, context)
        self._adjust(params)
        self.params = params
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
        self.adapters = apply_adapters(model, self.handle, config)
        self._memory = api.llama_get_memory(self.handle)
        self.context_size: int = min(context, api.llama_n_ctx_seq(self.handle))
        self.num_cells: int = self.context_size * (
            limits.num_sequences if self.deterministic else 1
        )
        rules = self._rules(config)
        self.cache_kind, self.max_rollback = rules.kind, rules.max_rollback
        if rules.kind is CacheKind.CHECKPOINT and config.ctx_checkpoints:
            self.max_rollback = _UNLIMITED  # `keep_for_draft` makes it possible
        self.can_shift = rules.kind is CacheKind.CUT and bool(
            api.llama_memory_can_shift(self._memory)
        )
        has_spare = params.n_seq_max > limits.num_sequences and rules.kind is CacheKind.CUT
        self.padding_sequence: int | None = limits.num_sequences if has_spare else None
        self.sends_graphs = config.rpc is not None
        self.attention_tile = attention_tile(config) if rules.kind is CacheKind.CUT else 1
        self._sequences = Sequences(
            self.handle,
            rules,
            Checkpoints(config.ctx_checkpoints, limits.checkpoint_bytes),
        )
        self._batches: dict[int, tuple[Batch, Any, Any]] = {}
        self._published = HiddenStates(self.handle, model.handle, model.facts)
        self._states: dict[int, NDArray[np.float32]] = {}  # of the last decode
        self._asynchrony = Asynchrony()
        if self.deterministic:
            use_reference_kernels(self.handle)
        if self.deterministic or rules.kind is CacheKind.ROLLBACK:
            self._staging = Batch(self.max_batch_tokens)

    def _adjust(self, params: Any) -> None:
        """Change libllama's parameters before the context is made; for other kinds of contexts."""

    def _rules(self, config: EngineConfig) -> CacheRules:
        """What libllama made of the parameters: it clamps some that the model cannot have."""
        window = self._window(config)
        num_snapshots = int(api.llama_n_rs_seq(self.handle))
        kind, max_rollback = CacheKind.CUT, _UNLIMITED
        if num_snapshots:
            kind, max_rollback = CacheKind.ROLLBACK, num_snapshots
        elif self.model.facts.is_recurrent:
            kind, max_rollback = CacheKind.CHECKPOINT, 0
        elif window:
            kind = CacheKind.WINDOW
        return CacheRules(kind, max_rollback, window, is_split=self.deterministic)

    def _window(self, config: EngineConfig) -> int:
        """Tokens that sliding windows keep; 0 if all layers keep the whole context."""
        if (
            config.swa_full
            or self.model.facts.is_recurrent
            or self.model.facts.window >= self.context_size
        ):
            return 0
        # Some models name a window that their layers do not have. Only in a cache with windows is
        # the part that cannot be cut smaller than all of it, also of an empty sequence.
        whole, partial = (api.llama_state_seq_get_size_ext(self.handle, 0, f) for f in (0, 1))
        return self.model.facts.window if partial < whole else 0

    @property
    def is_asynchronous(self) -> bool:
        return self._asynchrony.is_proven

    def decode(self, batch: Batch, meanwhile: Meanwhile | None = None) -> Logits:
        """Decode all rows; logits of the output rows, shape (num_outputs, vocab_size).

        Mostly a view into libllama's memory, valid until the next decode.
        """
        if batch.num_rows > self.max_batch_tokens or batch.num_outputs > self.max_outputs:
            raise EngineError(
                f"a batch of {batch.num_rows} rows with {batch.num_outputs} outputs exceeds the "
                "limits "
                f"{self.max_batch_tokens} and {self.max_outputs}"
            )
        runs = runs_of(batch) if self.cache_kind is not CacheKind.CUT else []
        if self.cache_kind is CacheKind.ROLLBACK and len(runs) > 1:
            return self._decode_evenly(batch, runs, meanwhile)
        self._settle(batch, runs)
        if self.deterministic:
            logits = self._decode_invariant(batch, meanwhile)
        else:
            logits = self._decode(batch, meanwhile)
            self._states = self._published.of(batch.num_rows)
        self._note(batch, runs)
        return logits

    def _settle(self, batch: Batch, runs: Sequence[Run]) -> None:
        if self.cache_kind is CacheKind.ROLLBACK:
            for start, _, _ in runs:  # rows that a decode before was padded with
                self._sequences.truncate(int(batch.seq_ids[start]), int(batch.positions[start]))
            rows = {int(batch.seq_ids[start]): end - start for start, end, _ in runs}
            self._sequences.settle(rows)

    def _note(self, batch: Batch, runs: Sequence[Run]) -> None:
        for start, end, _ in runs:
            length = int(batch.positions[end - 1]) + 1
            self._sequences.note_rows(int(batch.seq_ids[start]), end - start, length)

    def _decode_evenly(
        self, batch: Batch, runs: Sequence[Run], meanwhile: Meanwhile | None
    ) -> Logits:
        """Decode so that each sequence with a draft can be rolled back afterwards.

        A snapshot is good until libllama computes other sequences, also in a later micro-batch of
        the same decode; and each length of rows is a micro-batch. So prompts come first, by
        themselves, then all others, the shorter ones padded: `rewind` drops what was added.
        """
        drafts = [
            (start, end, first)
            for start, end, first in runs
            if end - start <= 1 + self.max_rollback and batch.wants_logits[start:end].all()
        ]
        prompts = [run for run in runs if run not in drafts]
        width = max((end - start for start, end, _ in drafts), default=0)
        # prompts are to be undone if there is no room for the drafts, and only then
        most = self._sequences.num_tokens + batch.num_rows + width * len(drafts)
        is_tight = bool(drafts) and most > self.num_cells
        groups = [group for group in (prompts, drafts) if group]
        outputs = self._outputs_of(batch, groups)
        held = {
            int(batch.seq_ids[run[0]]): self._sequences.hold(int(batch.seq_ids[run[0]]))
            for run in prompts
            if is_tight
        }
        self._states = {}
        for group in groups:
            staging = self._staging
            staging.clear()
            for start, end, _ in group:
                self._stage(batch, start, end, width if group is drafts else end - start)
            staged = runs_of(staging)
            self._settle(staging, staged)
            try:
                logits, offset = self._decode(staging, meanwhile), 0
            except ContextFullError:
                for seq_id, state in held.items() if group is drafts else ():
                    self._sequences.put_back(seq_id, state)
                raise
            states = self._published.of(staging.num_rows)
            for (start, end, first), (at, _, _) in zip(group, staged, strict=True):
                self._copy_states(batch, states, (start, end), at)
                wanted = int(batch.wants_logits[start:end].sum())
                if outputs is not None:
                    outputs[first : first + wanted] = logits[offset : offset + wanted]
                offset += wanted
            self._note(staging, staged)
        for start, end, _ in prompts:  # what they had is not good any more
            self._sequences.note_rows(
                int(batch.seq_ids[start]), 1, int(batch.positions[end - 1]) + 1
            )
        return logits if outputs is None else outputs

    def _outputs_of(self, batch: Batch, groups: Sequence[Sequence[Run]]) -> Logits | None:
        """Where the logits of several decodes are put together; None: there is only one, whose
        rows are in their order.
        """
        if len(groups) == 1:
            return None
        return np.empty((batch.num_outputs, self.vocab_size), np.float32)

    def _copy_states(
        self,
        batch: Batch,
        states: Mapping[int, NDArray[np.float32]],
        rows: tuple[int, int],
        at: int,
    ) -> None:
        """Take over the states of some rows of the batch, which were decoded as rows from `at`."""
        start, end = rows
        for layer, values in states.items():
            if layer not in self._states:
                self._states[layer] = np.empty((batch.num_rows, values.shape[1]), np.float32)
            self._states[layer][start:end] = values[at : at + end - start]

    def _decode(self, batch: Batch, meanwhile: Meanwhile | None) -> Logits:
        started = perf_counter()
        status = api.llama_decode(self.handle, self._c_batch_of(batch))
        if status == 1:
            raise ContextFullError
        if status != 0:
            raise EngineError(
                f"llama_decode returned {status} for {batch.num_rows} rows: "
                f"{take_errors() or 'no reason given'}"
            )
        self._sequences.has_copies = False
        handed_over = perf_counter()
        if meanwhile is not None:
            meanwhile()
        count = batch.num_outputs * self.vocab_size
        if not count:
            return np.empty((0, self.vocab_size), np.float32)
        address = get_logits(self.handle)  # waits for the result
        if meanwhile is None:
            self._asynchrony.observe(handed_over - started, perf_counter() - handed_over)
        memory: Any = (ctypes.c_float * count).from_address(address)
        logits: Logits = np.frombuffer(memory, np.float32).reshape(
            batch.num_outputs, self.vocab_size
        )
        return logits

    def _c_batch_of(self, batch: Batch) -> Any:
        """The same batch for libllama."""
        known = self._batches.get(id(batch))
        if known is None:
            known = self._batches[id(batch)] = (batch, *c_batch(batch))
        known[1].n_tokens = batch.num_rows
        return known[1]

    def _decode_invariant(self, batch: Batch, meanwhile: Meanwhile | None) -> Logits:
        """Decode so that a row's logits do not depend on what else is in the batch.

        Every call computes at least two rows, all of them in one micro-batch: short runs of rows
        are padded to the same length with tokens that are forgotten at once, long ones (prompt
        chunks) go alone. Measured on x86-64: one-row calls take other kernels than all others.
        """
        groups = groups_of(runs_of(batch), self.max_batch_tokens)
        outputs = self._outputs_of(batch, groups)
        self._states = {}
        for group in groups:
            width = max(2, max(end - start for start, end, _ in group))
            staging = self._staging
            staging.clear()
            for start, end, _ in group:
                self._stage(batch, start, end, width)
            logits = self._decode_outputs(staging, meanwhile)
            states, offset = self._published.of(staging.num_rows), 0
            for index, (start, end, first) in enumerate(group):
                self._copy_states(batch, states, (start, end), index * width)
                wanted = int(batch.wants_logits[start:end].sum())
                if outputs is not None:
                    outputs[first : first + wanted] = logits[offset : offset + wanted]
                offset += wanted
                if end - start < width:
                    length = int(batch.positions[end - 1]) + 1
                    api.llama_memory_seq_rm(self._memory, int(batch.seq_ids[start]), length, -1)
        return logits if outputs is None else outputs

    def _decode_outputs(self, batch: Batch, meanwhile: Meanwhile | None) -> Logits:
        """Decode with two outputs at least: behind the last layer only their rows are computed."""
        if batch.num_outputs != 1:
            return self._decode(batch, meanwhile)
        row = int(batch.wants_logits[: batch.num_rows].argmax())
        other = row + 1 if row + 1 < batch.num_rows else row - 1
        batch.wants_logits[other], batch.num_outputs = 1, 2
        return self._decode(batch, meanwhile)[int(other < row) :][:1]

    def _stage(self, batch: Batch, start: int, end: int, width: int) -> None:
        """Copy rows start:end to the staging batch and pad them to `width` rows without output."""
        staging, first = self._staging, self._staging.num_rows
        seq_id, position = int(batch.seq_ids[start]), int(batch.positions[start])
        padding = [int(batch.tokens[end - 1])] * (width - (end - start))
        staging.add(seq_id, position, [*batch.tokens[start:end].tolist(), *padding], 0)
        staging.wants_logits[first : first + end - start] = batch.wants_logits[start:end]
        staging.num_outputs += int(batch.wants_logits[start:end].sum())

    def publish_states(self, layers: Collection[int]) -> None:
        self._published.publish(layers)

    def hidden_states(self) -> Mapping[int, NDArray[np.float32]]:
        return self._states

    def truncate(self, seq_id: int, length: int) -> bool:
        return self._sequences.truncate(seq_id, length)

    def shift(self, seq_id: int, start: int, end: int) -> bool:
        return self._sequences.shift(seq_id, start, end)

    def reusable(self, seq_id: int, length: int, *, by_copy: bool = False) -> int:
        return self._sequences.reusable(seq_id, length, by_copy=by_copy)

    def rewind(self, seq_id: int, length: int) -> int:
        return self._sequences.rewind(seq_id, length)

    def checkpoint(self, seq_id: int) -> None:
        self._sequences.checkpoint(seq_id)

    def keep_for_draft(self, seq_id: int) -> bool:
        return self._sequences.keep_for_draft(seq_id)

    def copy_prefix(self, source: int, target: int, length: int) -> bool:
        return self._sequences.copy_prefix(source, target, length)

    def share_prefix(self, source: int, target: int, length: int) -> None:
        self._sequences.share_prefix(source, target, length)

    def clear(self, seq_id: int) -> None:
        self._sequences.clear(seq_id)

    def save_sequence(self, seq_id: int) -> bytearray:
        return self._sequences.save(seq_id)

    def restore_sequence(self, seq_id: int, data: bytes | bytearray | memoryview) -> bool:
        return self._sequences.restore(seq_id, data)

    def write_sequence(self, seq_id: int, path: Path, tokens: Sequence[int], num_exact: int) -> int:
        return sequence_files.write(path, tokens, self._sequences.state(seq_id), num_exact)

    def read_sequence(self, seq_id: int, path: Path) -> SavedSequence:
        self.clear(seq_id)
        saved, state = sequence_files.read(path, self.context_size, self.vocab_size)
        if self._sequences.set_state(seq_id, state) != len(saved.tokens):
            self.clear(seq_id)
            if self._sequences.lacks_cells:
                raise ContextFullError
            raise InvalidParameterError(
                f"{path.name} cannot be restored: it is damaged, of another model or of other "
                "cache types"
            )
        return saved

    def make_filters(self, params: SamplingParams) -> Filters:
        return LlamaFilters(self.model.vocab, self.model.facts.train_context, params)

    def close(self) -> None:
        if getattr(self, "handle", None):
            api.llama_free(self.handle)
            self.handle = None

    def __del__(self) -> None:
        self.close()
