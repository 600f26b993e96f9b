"""A separate cache for prefill while other texts are in the shared cache.

In the shared cache, attention on a CPU scans the cells of all texts for every tile of a prompt's
rows: answers decoded together interleave their cells, and later prompts land among them. Here a
prompt has cells of its own. Before its answer begins, they are copied to the shared cache.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from headstart.config import EngineConfig
from headstart.engine.devices import FLASH_TILE, attention_tile
from headstart.engine.groups import runs_of
from headstart.engine.library import api, take_errors
from headstart.engine.parameters import Facts, Limits
from headstart.types import Batch, ContextFullError

if TYPE_CHECKING:
    from headstart.engine.sequences import Sequences

log = logging.getLogger(__name__)

CELLS = 2048  # a longer prompt mostly attends to itself
LEAST_OTHERS = 256  # cells of other texts; with fewer there is nothing to gain


class PromptReader:
    """The second context of a model. A sequence has the same id in both, and is in one of them."""

    def __init__(self, model: Any, params: Any, shared: Any) -> None:
        """`params`, `shared`: parameters and memory of the first context. Nothing is allocated
        before a prompt comes.
        """
        self.handle, self.memory, self._shared = None, None, shared
        self._size = int(min(CELLS, params.n_ctx))
        self.lengths: dict[int, int] = {}  # of the sequences here
        self._model, self._params = model, reader_params(params)

    def place(self, batch: Batch, shared: Sequences, *, is_plain: bool) -> Any:
        """This context if it computes the batch; moves all its sequences here, otherwise back.

        Args:
            shared: the sequences of the shared cache.
            is_plain: whether this context can compute the batch.

        Raises:
            ContextFullError: the shared cache has no room for the sequences.
        """
        most_outputs = self._params.n_outputs_max
        if is_plain and batch.num_rows >= FLASH_TILE and batch.num_outputs <= most_outputs:
            ends = self._ends(batch)
            if not self._has_room(ends):
                for seq_id in self.lengths.keys() - ends.keys():
                    shared.gather(seq_id)
            if ends and self._has_room(ends) and self._take(ends, shared):
                return self.handle
        if self.lengths:
            for seq_id in self.lengths.keys() & set(batch.seq_ids[: batch.num_rows].tolist()):
                if not shared.gather(seq_id):
                    raise ContextFullError
        return None

    def _ends(self, batch: Batch) -> dict[int, int]:
        """The end of each sequence after this batch; empty unless all are prompts to decode here:
        either new ones, or the next rows of sequences here.
        """
        ends = dict[int, int]()
        for start, end, _ in runs_of(batch):
            seq_id, first = int(batch.seq_ids[start]), int(batch.positions[start])
            # moving the cached part is only faster than decoding it if it is short
            if first != self.lengths.get(seq_id, first if first <= end - start else -1):
                return {}
            ends[seq_id] = first + end - start
        return ends

    def _has_room(self, ends: dict[int, int]) -> bool:
        return sum((self.lengths | ends).values()) <= self._size

    def _take(self, ends: dict[int, int], shared: Sequences) -> bool:
        """Move these prompts here, if that pays and is possible."""
        new = ends.keys() - self.lengths.keys()
        if new:
            others = set(range(self._params.n_seq_max)) - ends.keys()
            if sum(map(self._num_shared, others)) < LEAST_OTHERS or not self.open():
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
            self.handle = api.llama_init_from_model(self._model, self._params)
            if not self.handle:
                log.warning("prompts are processed in the shared cache: %s", take_errors())
                self._size = 0
                return False
            self.memory = api.llama_get_memory(self.handle)
        return self._size > 0

    def drop(self, seq_id: int) -> None:
        """Forget a sequence, if it is here."""
        if self.lengths.pop(seq_id, None) is not None:
            api.llama_memory_seq_rm(self.memory, seq_id, -1, -1)

    def close(self) -> None:
        if self.handle is not None:
            api.llama_free(self.handle)
            self.handle = None


def reads_apart(facts: Facts, config: EngineConfig, limits: Limits) -> bool:
    """Whether a model with these settings uses a separate prefill cache."""
    adapters = config.lora, config.lora_scaled, config.control_vector, config.control_vector_scaled
    is_own = limits.is_heads or limits.embeds
    is_plain = not (facts.is_recurrent or facts.window or is_own or any(adapters))
    # longer contexts rotate keys by other factors
    is_alike = not CELLS <= facts.original_context < (config.context or facts.train_context)
    is_several = limits.num_sequences > 1 and attention_tile(config) > 1
    return is_plain and is_alike and is_several


def reader_params(params: Any) -> Any:
    """Parameters of the prefill context, derived from those of the first."""
    own = type(params).from_buffer_copy(params)
    own.n_ctx, own.n_outputs_max = min(CELLS, params.n_ctx), params.n_seq_max
    return own
