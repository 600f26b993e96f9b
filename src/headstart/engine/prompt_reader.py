"""A cache of its own for prompts that are read while other texts are in the shared one.

In the shared cache a processor's attention looks at the cells of all texts for every tile of a
prompt's rows, and answers that are decoded together have their cells between each other, where the
next prompts come to lie. Here a prompt has its cells for itself. Before its answer begins, its
state is moved to the shared cache, by a copy of its cells.
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

CELLS = 2048  # a longer prompt looks at itself, most of the time
LEAST_OTHERS = 256  # cells of other texts, below which there is nothing to gain


class PromptReader:
    """The second context of a model. Sequences have the same numbers in both; each is in one."""

    def __init__(self, model: Any, params: Any, shared: Any) -> None:
        """`params`, `shared`: parameters and memory of the first. Nothing is allocated before a
        prompt comes.
        """
        self.handle, self.memory, self._shared = None, None, shared
        self._size = int(min(CELLS, params.n_ctx))
        self.lengths: dict[int, int] = {}  # of the sequences that are here
        self._model, self._params = model, reader_params(params)

    def place(self, batch: Batch, shared: Sequences, *, is_plain: bool) -> Any:
        """This context, if it computes the batch; then all its sequences are here, otherwise none.

        Args:
            shared: the sequences of the shared cache.
            is_plain: whether this context can compute the batch.

        Raises:
            ContextFullError: the shared cache has no room for them.
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
        """Where each sequence ends after this batch; empty if these are not prompts to read here:
        beginnings, or the next rows of what is here.
        """
        ends = dict[int, int]()
        for start, end, _ in runs_of(batch):
            seq_id, first = int(batch.seq_ids[start]), int(batch.positions[start])
            # moving what is known takes less time than the rows only where it is short
            if first != self.lengths.get(seq_id, first if first <= end - start else -1):
                return {}
            ends[seq_id] = first + end - start
        return ends

    def _has_room(self, ends: dict[int, int]) -> bool:
        return sum((self.lengths | ends).values()) <= self._size

    def _take(self, ends: dict[int, int], shared: Sequences) -> bool:
        """Have these prompts here, if that pays and is possible."""
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
        """Tokens of a sequence in the shared cache, where no image is."""
        return int(api.llama_memory_seq_pos_max(self._shared, seq_id)) + 1

    def open(self) -> bool:
        """Allocate it, if that was not done; False if it cannot be had."""
        if self.handle is None and self._size:
            self.handle = api.llama_init_from_model(self._model, self._params)
            if not self.handle:
                log.warning("prompts are processed in the shared cache: %s", take_errors())
                self._size = 0
                return False
            self.memory = api.llama_get_memory(self.handle)
        return self._size > 0

    def drop(self, seq_id: int) -> None:
        """Forget a sequence, which is or is not here."""
        if self.lengths.pop(seq_id, None) is not None:
            api.llama_memory_seq_rm(self.memory, seq_id, -1, -1)

    def close(self) -> None:
        if self.handle is not None:
            api.llama_free(self.handle)
            self.handle = None


def reads_apart(facts: Facts, config: EngineConfig, limits: Limits) -> bool:
    """Whether a model with these settings has it."""
    adapters = config.lora, config.lora_scaled, config.control_vector, config.control_vector_scaled
    is_plain = not (facts.is_recurrent or facts.window or limits.is_heads or any(adapters))
    # in longer contexts keys are rotated by other factors
    is_alike = not CELLS <= facts.original_context < (config.context or facts.train_context)
    is_several = limits.num_sequences > 1 and attention_tile(config) > 1
    return is_plain and is_alike and is_several


def reader_params(params: Any) -> Any:
    """Of the context that reads prompts beside one with these."""
    own = type(params).from_buffer_copy(params)
    own.n_ctx, own.n_outputs_max = min(CELLS, params.n_ctx), params.n_seq_max
    return own
