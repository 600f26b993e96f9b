"""A separate cache for prefill, where that is faster than in the shared one.

In the shared cache, attention on a CPU scans the cells of all texts for every tile of a prompt's
rows: answers decoded together interleave their cells, and later prompts land among them. Here a
prompt has cells of its own. Before its answer begins, they are copied to the shared cache.

This context may also have weights of its own. Those that libllama repacks for a CPU are faster for
few rows; on some processors many rows are computed up to 1.7 times as fast with the weights as they
are in the file.
"""

from __future__ import annotations

import logging
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import finalize

from headstart.config import EngineConfig
from headstart.engine.c_batch import c_batch
from headstart.engine.devices import FLASH_TILE, attention_tile
from headstart.engine.groups import runs_of
from headstart.engine.library import api, take_errors
from headstart.engine.parameters import Facts, Limits
from headstart.types import Batch, ContextFullError

if TYPE_CHECKING:
    from headstart.engine.model import Model
    from headstart.engine.sequences import Sequences

log = logging.getLogger(__name__)

CELLS = 4096  # a longer prompt mostly attends to itself: it is here for unpacked weights only
LEAST_OTHERS = 256  # cells of other texts; with fewer there is nothing to gain ...
LEAST_ROWS = 32  # ... except by unpacked weights, if a decode has as many rows


class PromptReader:
    """The second context of a model. A sequence has the same id in both, and is in one of them."""

    def __init__(self, model: Any, params: Any, shared: Any) -> None:
        """`params`, `shared`: parameters and memory of the first context. Nothing is allocated
        before a prompt comes.
        """
        self.handle, self.memory, self._shared = None, None, shared
        self._least = int(min(CELLS, params.n_ctx))  # cells at first
        self._size = self._most = self._least  # now, and how many there may be
        self.lengths: dict[int, int] = {}  # of the sequences here
        self._model, self._params = model, reader_params(params)
        self._unpacked: Model | None = None  # the weights used here, if not the first context's

    def unpack(self, model: Model | None, most_cells: int = 0) -> None:
        """Use these weights of the same file, or those of the first context again; no sequence may
        be here. `most_cells`: that may be allocated for longer prompts.
        """
        self.close()
        self._unpacked, self._most = model, max(self._least, most_cells)

    def speedup(self, first: Any) -> float:
        """How many times as fast as in the first context a prompt is decoded here; both must be
        empty. 0: this one cannot be allocated.
        """
        batch, fastest = Batch(LEAST_ROWS), [inf, inf]
        batch.add(0, 0, list(range(LEAST_ROWS)), 1)
        if not self.open():
            return 0.0
        begun, num_rounds = perf_counter(), 0
        while num_rounds < 2 or (num_rounds < 8 and perf_counter() - begun < 1.0):
            num_rounds += 1  # the first round also allocates, and reads the file
            for index, context in enumerate((first, self.handle)):
                started = perf_counter()
                api.llama_decode(context, c_batch(batch))
                api.llama_get_logits(context)  # waits for the result
                fastest[index] = min(fastest[index], perf_counter() - started)
                api.llama_memory_seq_rm(api.llama_get_memory(context), 0, -1, -1)
        return fastest[0] / fastest[1]

    def place(self, batch: Batch, shared: Sequences, *, is_plain: bool) -> Any:
        """This context if it computes the batch; moves all its sequences here, otherwise back.

        Args:
            shared: the sequences of the shared cache.
            is_plain: whether this context can compute the batch.

        Raises:
            ContextFullError: the shared cache has no room for the sequences.
        """
        most_outputs, least = self._params.n_outputs_max, FLASH_TILE
        if self._unpacked is not None:
            least = LEAST_ROWS
        if is_plain and batch.num_rows >= least and batch.num_outputs <= most_outputs:
            ends = self._ends(batch, shared)
            if not self._has_room(ends):
                self._make_room(ends, shared)
            if ends and self._has_room(ends) and self._take(ends, shared):
                return self.handle
        if self.lengths:
            for seq_id in self.lengths.keys() & set(batch.seq_ids[: batch.num_rows].tolist()):
                if not shared.gather(seq_id):
                    raise ContextFullError
        return None

    def _ends(self, batch: Batch, shared: Sequences) -> dict[int, int]:
        """The end of each sequence after this batch; empty unless all are prompts to decode here:
        either new ones, or the next rows of sequences here.
        """
        ends = dict[int, int]()
        share = 1 if self._unpacked is None else 32  # cached tokens that are moved for each row
        for start, end, _ in runs_of(batch):
            seq_id, first = int(batch.seq_ids[start]), int(batch.positions[start])
            # moving the cached part only pays if it is short
            most = share * (end - start)
            if shared.cache_kind.is_recurrent and end - start < 4 * LEAST_ROWS:
                most = 0  # however short, a state takes as long to move as these rows would save
            if shared.checkpoints.is_before_draft(seq_id, first):
                return {}  # an answer whose state before it would be lost
            if first != self.lengths.get(seq_id, first if first <= most else -1):
                return {}
            ends[seq_id] = first + end - start
        return ends

    def _has_room(self, ends: dict[int, int]) -> bool:
        return sum((self.lengths | ends).values()) <= self._size

    def _make_room(self, ends: dict[int, int], shared: Sequences) -> None:
        """Move others to the shared cache, and all of them if these need a larger one here."""
        grows = self._size < sum(ends.values()) <= self._most
        for seq_id in list(self.lengths):
            if grows or seq_id not in ends:
                shared.gather(seq_id)
        if grows and not self.lengths:
            self.close()
            self._size = self._params.n_ctx = self._most

    def _take(self, ends: dict[int, int], shared: Sequences) -> bool:
        """Move these prompts here, if that pays and is possible."""
        new = ends.keys() - self.lengths.keys()
        if new:
            others = set(range(self._params.n_seq_max)) - ends.keys()
            is_slow = self._unpacked is None and (
                shared.cache_kind.is_recurrent  # copies of states cost more than there is to gain
                or sum(map(self._num_shared, others)) < LEAST_OTHERS
            )
            if is_slow or not self.open():
                return False
        for seq_id in new:
            num = self._num_shared(seq_id)
            if num and not shared.hand_over(seq_id, num, self):
                return False
        self.lengths |= ends
        return True

    def _num_shared(self, seq_id: int) -> int:
        """Tokens of a sequence in the shared cache, if it has no images."""
        return int(api.llama_memory_seq_pos_max(self._shared, seq_id)) + 1

    def open(self) -> bool:
        """Allocate the context once; returns False if that fails."""
        if self.handle is None and self._size:
            model = self._model if self._unpacked is None else self._unpacked.handle
            self.handle = api.llama_init_from_model(model, self._params)
            if not self.handle:
                log.warning("prompts are processed in the shared cache: %s", take_errors())
                has_grown = self._size > self._least
                self._size = self._most = self._params.n_ctx = self._least if has_grown else 0
                return False
            self._free = finalize(self, api.llama_free, self.handle)
            self.memory = api.llama_get_memory(self.handle)
        return self._size > 0

    def drop(self, seq_id: int) -> None:
        """Forget a sequence, if it is here."""
        if self.lengths.pop(seq_id, None) is not None:
            api.llama_memory_seq_rm(self.memory, seq_id, -1, -1)

    def close(self) -> None:
        if self.handle is not None:
            self._free()
            self.handle = None


def reads_apart(context: Any, facts: Facts, config: EngineConfig, limits: Limits) -> bool:
    """Whether a model with these settings and first context has a separate prefill cache."""
    adapters = config.lora, config.lora_scaled, config.control_vector, config.control_vector_scaled
    is_own = limits.is_heads or limits.embeds
    is_plain = not (facts.window or is_own or any(adapters))
    if facts.is_recurrent:  # only for unpacked weights
        is_plain &= config.repack and not config.exact and not api.llama_n_rs_seq(context)
    # longer contexts rotate keys by other factors
    is_alike = not CELLS <= facts.original_context < (config.context or facts.train_context)
    return is_plain and is_alike and attention_tile(config) > 1


def reader_params(params: Any) -> Any:
    """Parameters of the prefill context, derived from those of the first."""
    own = type(params).from_buffer_copy(params)
    own.n_ctx, own.n_outputs_max = min(CELLS, params.n_ctx), params.n_seq_max
    own.n_rs_seq = 0
    return own
