"""Copies between the model's cache and main memory, block by block.

Only the engine loop can copy, because that needs libllama's context. Beside requests they take a
small part of a step and continue in the next. A cache without blocks is copied at once.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from headstart.scheduler.host_cache import HostCache, StoredBlock, StoredPrompt
from headstart.scheduler.sequence import Cells
from headstart.structures.prefix_index import packed
from headstart.types import Engine

BLOCK = 64  # tokens: 1 MiB of a small model, 8 of one with 8 B
# time for copies in a step, or this share of the last step; a block once started is finished
STEP_SECONDS, STEP_SHARE = 0.003, 0.04


class Copies:
    """Copies blocks within the time limit of each step."""

    def __init__(
        self, cells: list[Cells], store: HostCache, engine: Engine, clock: Callable[[], float]
    ) -> None:
        self._cells, self._store = cells, store
        self._engine, self._clock = engine, clock
        self._until = inf  # when the copies of this step end

    def begin_step(self, last_seconds: float) -> None:
        """Reset the time limit of copies, given how long the last step took; inf: no limit."""
        self._until = self._clock() + max(STEP_SECONDS, STEP_SHARE * last_seconds)

    @property
    def has_time(self) -> bool:
        """Whether this step has time for more copies."""
        return self._until == inf or self._clock() < self._until

    def save(self, cells: Cells) -> tuple[StoredBlock, ...]:
        """Copy an idle slot, or its beginning if the step runs out of time. Blocks already in main
        memory, of a text with the same prefix, are not copied again.

        Raises:
            EngineError, MemoryError: copying failed.
        """
        seq_id, length = cells.seq_id, cells.length
        # the cells of an image share positions, and libllama addresses cells by position
        if not self._engine.has_blocks or min(cells.tokens) < 0:
            return (StoredBlock(0, length, self._engine.save_sequence(seq_id)),)
        alike, num_common = self._store.find(cells.namespace, packed(cells.tokens))
        whole = num_common - num_common % BLOCK
        blocks = list(alike.known(whole)) if alike is not None and not alike.is_whole else []
        while (start := blocks[-1].end if blocks else 0) < length and self.has_time:
            end = min(length, start + BLOCK - start % BLOCK)
            blocks.append(StoredBlock(start, end, self._engine.save_block(seq_id, start, end)))
        return tuple(blocks)

    def restore(
        self, stored: StoredPrompt, cells: Cells, num_tokens: int | None
    ) -> tuple[int, int, bool | None]:
        """Copy blocks into an idle slot, see `HostPrompts.restore`.

        Returns how many of the tokens the slot held before, how many it holds now, and whether all
        are restored; None: not yet.
        """
        wanted = len(stored.tokens) if num_tokens is None else num_tokens
        before = length = cells.length
        ends, tokens = {block.end for block in stored.blocks}, list(stored.tokens)
        if cells.num_common(stored.namespace, tokens) < length or length not in ends:
            others = [one for one in self._cells if one is not cells]
            shared = {one.seq_id: one.num_common(stored.namespace, tokens) for one in others}
            source = max(shared, key=shared.__getitem__, default=cells.seq_id)
            known = stored.known(min(shared.get(source, 0), wanted))
            before, length = 0, known[-1].end if known else 0
            self._engine.clear(cells.seq_id)
            if length and not self._engine.copy_prefix(source, cells.seq_id, length):
                length = 0
        for block in stored.blocks:
            if length <= block.start < wanted:
                if num_tokens is not None and not self.has_time:
                    return before, length, None
                if not self._engine.restore_block(cells.seq_id, block.data):
                    return before, length, False
                length = block.end
        return before, length, True
