"""`Engine` over a llama_context: decode batches, keep sequences, never let libllama abort.

Limits that libllama enforces by aborting the process are checked here or hold by construction:
rows <= n_batch, outputs <= n_outputs_max, sequence ids < n_seq_max, partial copies only in a
unified cache."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from time import perf_counter
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from headstart.config import EngineConfig
from headstart.engine import hidden_states
from headstart.engine.adapters import Adapters
from headstart.engine.c_batch import c_batch, floats_at
from headstart.engine.devices import attends_on_gpu, attention_tile
from headstart.engine.filters import LlamaFilters, begin_filters
from headstart.engine.groups import Group, GroupedBatch, Run, exact_groups, runs_of
from headstart.engine.library import api, libllama_error, take_errors
from headstart.engine.media import LlamaChunk
from headstart.engine.model import Model
from headstart.engine.parameters import Limits, context_params
from headstart.engine.prompt_reader import PromptReader, reads_apart
from headstart.engine.sequences import Sequences
from headstart.structures.checkpoints import Checkpoints
from headstart.types import FINAL_STATE, Batch, CacheKind, ContextFullError, Filters, Logits, Rows
from headstart.types.constraint import NO_LIMIT
from headstart.types.errors import EngineError, ModelError
from headstart.types.media import LoadedChunk
from headstart.types.sampling_params import SamplingParams
from headstart.types.widths import Widths


class LlamaEngine(Sequences):
    """One model with one cache of sequences. One thread at a time."""

    why_no_text = ""

    def __init__(self, model: Model, config: EngineConfig, limits: Limits) -> None:
        """Create the context.

        Raises:
            ModelError: libllama cannot create it (usually memory), or an adapter does not fit.
            ConfigError: the limits contradict each other.
        """
        self.model = model
        self.vocab_size = model.vocab.size
        self.is_exact, self.is_reference = config.exact, False
        is_split = model.facts.architecture == "deepseek4" and not limits.is_heads
        self.has_own_caches = config.exact or is_split
        # in exact mode: widths of decodes, those of prompts, and the time of a decode by width
        self.widths = self.prompt_widths = Widths()
        self.width_costs: dict[int, float] | None = {}  # None: sequences are decoded one by one
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
            raise libllama_error(
                ModelError,
                f"cannot make a context of {context} tokens for {model.path} (a smaller --context "
                "takes less memory)",
            )
        self._free = finalize(self, api.llama_free, self.handle)
        self.adapters = Adapters(model, self.handle, config)
        self.context_size: int = min(context, api.llama_n_ctx_seq(self.handle))
        num_caches = limits.num_sequences if self.has_own_caches else 1
        self.num_cells: int = self.context_size * num_caches
        self._find_kind()
        is_cut = self.cache_kind is CacheKind.CUT
        self.rows = Rows.TOGETHER
        if (self.has_own_caches and is_cut) or self.cache_kind is CacheKind.ROLLBACK:
            self.rows = Rows.PADDED
        elif self.cache_kind is CacheKind.CHECKPOINT and not self.is_exact:
            self.rows = Rows.EQUAL  # else one by one
        has_spare = params.n_seq_max > limits.num_sequences and is_cut
        checkpoints = Checkpoints(config.ctx_checkpoints, limits.checkpoint_bytes)
        super().__init__(self.handle, checkpoints, limits.num_sequences if has_spare else None)
        self.max_rollback = self.max_padding
        if self.cache_kind is CacheKind.CHECKPOINT and config.ctx_checkpoints:
            self.max_rollback = NO_LIMIT  # `keep_for_draft` makes it possible
        # shifted cells differ from decoding the same text again, after preemption or with a
        # speculator that follows the cells
        can_shift = is_cut and not config.exact
        self.can_shift = can_shift and bool(api.llama_memory_can_shift(self._memory))
        self.has_blocks = has_spare and not self.has_own_caches and not self.window
        self.attention_tile = attention_tile(config) if is_cut else 1
        self.has_reference = not attends_on_gpu(config)
        self._used = self.handle  # the context in use
        if reads_apart(self.handle, model.facts, config, limits):
            self.reader = PromptReader(model.handle, params, self._memory)
        self._layers: frozenset[int] = frozenset()  # layers whose hidden states are kept
        self._states: dict[int, NDArray[np.float32]] = {}  # hidden states of the last decode
        self._grouped: GroupedBatch | None = None  # if the launched batch takes several decodes
        self.is_asynchronous = False  # whether the last decode went on after llama_decode
        if self.is_exact or self.cache_kind.is_recurrent:
            self._staging = Batch(self.max_batch_tokens)

    def use_reference_kernels(self, *, is_on: bool) -> None:
        """Compute rows on a CPU without tiles of rows, and without dividing the attention of one
        among threads: less depends on what else is in the batch, and wide decodes are slower.

        Not in the public API: reaches the context's scheduler through an exported C++ method.
        """
        if is_on == self.is_reference:
            return
        self.is_reference = is_on
        scheduler = api.llama_context_get_sched(self.handle)
        for index in range(api.ggml_backend_sched_get_n_backends(scheduler)):
            backend = api.ggml_backend_sched_get_backend(scheduler, index)
            if api.ggml_backend_name(backend) == b"CPU":
                api.ggml_backend_cpu_set_use_ref(backend, is_on)

    def _adjust(self, params: Any) -> None:
        """Change libllama's parameters before the context is created; a hook for subclasses."""

    def _find_kind(self) -> None:
        """Read back the effective parameters: libllama clamps some that the model cannot have."""
        self.window = self._seen_window()
        num_snapshots = int(api.llama_n_rs_seq(self.handle))
        self.cache_kind, self.max_padding = CacheKind.CUT, NO_LIMIT
        if num_snapshots:
            self.cache_kind, self.max_padding = CacheKind.ROLLBACK, num_snapshots
        elif self.model.facts.is_recurrent:
            self.cache_kind, self.max_padding = CacheKind.CHECKPOINT, 0
        elif self.window and not self.params.swa_full:
            self.cache_kind = CacheKind.WINDOW

    def _seen_window(self) -> int:
        """Tokens that layers with sliding windows see; 0 if all see the whole context."""
        if self.model.facts.is_recurrent or self.model.facts.window >= self.context_size:
            return 0
        # Some models name a window that their layers do not have. Only in a cache with windows is
        # the non-truncatable part smaller than the whole, even for an empty sequence.
        whole, partial = (api.llama_state_seq_get_size_ext(self.handle, 0, f) for f in (0, 1))
        return self.model.facts.window if partial < whole else 0

    @property
    def has_prompt_widths(self) -> bool:
        return self.prompt_widths != self.widths

    def decode(self, batch: Batch) -> Logits:
        self.launch(batch)
        return self.wait()

    def launch(self, batch: Batch) -> None:
        """If a batch takes several decodes, all but the last have finished when this returns."""
        if batch.num_rows > self.max_batch_tokens or batch.num_outputs > self.max_outputs:
            raise EngineError(
                f"a batch of {batch.num_rows} rows with {batch.num_outputs} outputs exceeds the "
                "limits "
                f"{self.max_batch_tokens} and {self.max_outputs}"
            )
        self._grouped = None
        if self.cache_kind is CacheKind.ROLLBACK:
            self.forget_rows_of_others(batch)
        if self.reader is not None:
            is_plain = not (self._layers or self.gaps or batch.media)
            self._used = self.reader.place(batch, self, is_plain=is_plain) or self.handle
        if batch.media is not None:
            self._launch_media(batch, *batch.media)
            return
        runs = runs_of(batch) if self.is_exact or self.cache_kind is not CacheKind.CUT else []
        if self.is_exact:
            widths = self.widths, self.prompt_widths
            groups = exact_groups(batch, runs, widths, self.cache_kind, self.width_costs)
            self._launch_groups(batch, groups)
        elif self.cache_kind is CacheKind.ROLLBACK and len(runs) > 1:
            self._launch_evenly(batch, runs)
        elif self.rows is Rows.EQUAL and len(runs) > 1:
            self._launch_drafts_first(batch, runs)
        else:
            self._launch_runs(batch, runs)

    def wait(self) -> Logits:
        if self._grouped is not None:
            self._collect(self._grouped)
            self._states = self._grouped.states
            return self._grouped.logits
        logits = self._wait()
        self._states = self._states_of(self._launched)
        return logits

    def _drop_padding(self, batch: Batch, runs: Sequence[Run]) -> None:
        """Truncate the padding rows of the previous decode."""
        for start, _, _ in runs:
            self.truncate(int(batch.seq_ids[start]), int(batch.positions[start]))

    def _note(self, batch: Batch, runs: Sequence[Run]) -> None:
        for start, end, _ in runs:
            length = int(batch.positions[end - 1]) + 1
            self.note_rows(int(batch.seq_ids[start]), end - start, length)

    def _launch_runs(self, batch: Batch, runs: Sequence[Run]) -> None:
        """Decode the rows as they are."""
        if self.cache_kind is CacheKind.ROLLBACK:
            self._drop_padding(batch, runs)
        self._launch(batch)
        if self.cache_kind is not CacheKind.CUT:
            self._note(batch, runs)

    def _launch_evenly(self, batch: Batch, runs: Sequence[Run]) -> None:
        """Decode so that each draft can be rolled back afterwards: shorter ones are padded, and
        `rewind` drops the padding.

        A snapshot is valid until libllama computes other sequences, even in a later micro-batch of
        the same decode; and each length of rows is a micro-batch. So sequences with prompts cannot
        be rolled back.
        """
        width = max(end - start for start, end, _ in runs)
        if batch.num_outputs == batch.num_rows and width <= 1 + self.max_rollback:
            self._launch_groups(batch, [Group(list(runs), width)])
            return
        self._launch_runs(batch, runs)
        for start, end, _ in runs:
            self.note_rows(int(batch.seq_ids[start]), 1, int(batch.positions[end - 1]) + 1)

    def _launch_drafts_first(self, batch: Batch, runs: Sequence[Run]) -> None:
        """Decode sequences with drafts, then the others: two passes of equal lengths, where one
        decode would take rows of both, and then the rest of the drafts.
        """
        drafts = [run for run in runs if self._is_draft(batch, run)]
        others = [run for run in runs if run not in drafts]
        if not (drafts and others):
            self._launch_runs(batch, runs)
            return
        try:
            self._launch_groups(batch, [Group(drafts, 0), Group(others, 0)])
        except ContextFullError:
            for seq_id, start in (_begin(batch, run) for run in drafts):
                if self.rewind(seq_id, start) != start:
                    raise EngineError("the state before a draft is lost") from None
            raise

    def _is_draft(self, batch: Batch, run: Run) -> bool:
        """Whether these rows have a draft, before which the state was kept."""
        start, end, _ = run
        return end - start > 1 and self.checkpoints.is_before_draft(*_begin(batch, run))

    def _launch_media(self, batch: Batch, chunk: LoadedChunk, offset: int) -> None:
        """Decode cells of an image, which are the only rows of the batch."""
        assert isinstance(chunk, LlamaChunk)
        seq_id, start = int(batch.seq_ids[0]), int(batch.positions[0])
        num, run = batch.num_rows, (0, batch.num_rows, 0)
        if self.cache_kind is CacheKind.ROLLBACK:
            self._drop_padding(batch, [run])
        position = self.gaps.position(seq_id, start - offset)
        rows = chunk.rows(seq_id, start, position, offset, batch.tokens[:num].tolist())
        if self.is_exact:
            # attention of 64 rows sums by tiles of cells, and a window that was restored has others
            is_reference = self.window > 0 or self.prompt_widths.is_reference
            self.use_reference_kernels(is_on=is_reference)
        api.llama_set_causal_attn(self.handle, chunk.is_causal)
        try:
            self._decode(batch, c_batch(rows))
        finally:
            api.llama_set_causal_attn(self.handle, True)
        if self.cache_kind is not CacheKind.CUT:
            self._note(batch, [run])
        if offset + num == chunk.num_cells:
            self.gaps.add(seq_id, start + num, chunk.num_cells - chunk.num_positions)

    def _launch_groups(self, batch: Batch, groups: Sequence[Group]) -> None:
        """Decode the groups one by one; `wait` waits for the last one."""
        grouped = GroupedBatch(batch, self._staging, groups, self.vocab_size)
        for group in groups:
            if grouped.group.runs:
                self._collect(grouped)
            grouped.stage(group)
            if self.widths.sizes:  # else they are being compared
                self.use_reference_kernels(is_on=group.widths.is_reference)
            is_cut = self.cache_kind is CacheKind.CUT
            self._launch_runs(self._staging, () if is_cut else runs_of(self._staging))
            self._grouped = grouped

    def _collect(self, grouped: GroupedBatch) -> None:
        """Wait for the group launched last."""
        grouped.collect(self._wait(), self._states_of(self._staging))
        if not self.is_exact:
            return
        batch = grouped.batch
        for start, end, _ in grouped.group.runs:
            # a draft's snapshots are needed: padding is dropped together with rejected tokens
            is_draft = self.cache_kind is CacheKind.ROLLBACK and batch.wants_logits[end - 1]
            if end - start < grouped.group.width and not is_draft:
                self.truncate(int(batch.seq_ids[start]), int(batch.positions[end - 1]) + 1)

    def _launch(self, batch: Batch) -> None:
        if not self.gaps:
            self._decode(batch, c_batch(batch))
            return
        self.gaps.shift(batch, -1)
        try:
            self._decode(batch, c_batch(batch))
        finally:
            self.gaps.shift(batch, 1)

    def _decode(self, batch: Batch, c_rows: Any) -> None:
        started = perf_counter()
        status = api.llama_decode(self._used, c_rows)
        if status == 1:
            raise ContextFullError
        if status != 0:
            words = f"llama_decode returned {status} for {batch.num_rows} rows"
            raise libllama_error(EngineError, words)
        self.has_copies = False
        self.has_shifts &= self._used is not self.handle
        self._launched, self._handed_over = batch, perf_counter()
        self._decode_seconds = self._handed_over - started

    def _wait(self) -> Logits:
        """Logits of the last decode: a view."""
        num_outputs, asked = self._launched.num_outputs, perf_counter()
        if not num_outputs:
            return np.empty((0, self.vocab_size), np.float32)
        address = api.llama_get_logits(self._used)  # waits for the result
        times = self._decode_seconds, asked - self._handed_over, perf_counter() - asked
        self.is_asynchronous = was_asynchronous(*times, before=self.is_asynchronous)
        return floats_at(address, num_outputs, self.vocab_size)

    def publish_states(self, layers: Collection[int]) -> None:
        if reason := hidden_states.why_not(self.model.facts, layers):
            raise ModelError(f"{reason}; leave out the speculator that reads it")
        hidden_states.publish(self.handle, set(layers) - self._layers)
        self._layers |= set(layers)

    def show_final_states(self, *, is_on: bool) -> None:
        if not hidden_states.has_final_state(self.model.facts, self.model.handle, self.handle):
            return
        api.llama_set_embeddings(self.handle, is_on)
        shown = frozenset((FINAL_STATE,))
        self._layers = self._layers | shown if is_on else self._layers - shown

    def _states_of(self, batch: Batch) -> dict[int, NDArray[np.float32]]:
        model = self.model.handle
        return hidden_states.published(self.handle, model, self._layers, batch.num_rows)

    def hidden_states(self) -> Mapping[int, NDArray[np.float32]]:
        return self._states

    def begin_filters(self, params: SamplingParams) -> Future[Filters] | None:
        return begin_filters(self.model.vocab, self.context_size, params)

    def make_filters(self, params: SamplingParams) -> Filters:
        return LlamaFilters(self.model.vocab, self.context_size, params)

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self._free()


def was_asynchronous(decode: float, aside: float, wait: float, *, before: bool) -> bool:
    """Whether llama_decode returned before the device had finished; `before` if that is unknown.

    A GPU computes asynchronously, unless the last layer is left to the CPU, as with RPC workers.
    libllama does not say which applies, but the seconds do that llama_decode, other work after it,
    and the logits took. The device may have finished at any time during the other work.
    """
    least = 0.25 * (decode + aside + wait)  # a CPU's share of waiting is 0.00
    return wait > least or (before and aside + wait > least)


def _begin(batch: Batch, run: Run) -> tuple[int, int]:
    """The sequence of a run, and its length before it."""
    return int(batch.seq_ids[run[0]]), int(batch.positions[run[0]])
