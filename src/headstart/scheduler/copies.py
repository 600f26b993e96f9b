"""Copies between the model's cache and main memory, block by block.

Only the loop can make them, because that needs libllama's context; so beside requests they take a
small part of a step, and go on in the next. A cache without blocks is copied at once.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from headstart.scheduler.host_cache import HostCache, StoredBlock, StoredPrompt
from headstart.scheduler.sequence import Cells
from headstart.structures.prefix_index import packed
from headstart.types import Engine

BLOCK = 64  # tokens: 1 MiB of a small model, 8 of one with 8 B
# of copies in a step, or so much of the last step; the block that is copied then is finished
STEP_SECONDS, STEP_SHARE = 0.003, 0.04


class Copies:
    """What a step may copy, and how."""

    def __init__(
        self, cells: list[Cells], store: HostCache, engine: Engine, clock: Callable[[], float]
    ) -> None:
        self._cells, self._store = cells, store
        self._engine, self._clock = engine, clock
        self._until = inf  # when the copies of this step end

    def begin_step(self, last_seconds: float) -> None:
        """Copies get their time again, after a step that took so long; inf: without a limit."""
        self._until = self._clock() + max(STEP_SECONDS, STEP_SHARE * last_seconds)

    @property
    def has_time(self) -> bool:
        """Whether copies of this step may go on."""
        return self._until == inf or self._clock() < self._until

    def save(self, cells: Cells) -> tuple[StoredBlock, ...]:
        """Copy what idle cells hold, or its beginning if the step has no time left. Blocks that
        main memory has of a text that begins alike are not copied again.

        Raises:
            EngineError, MemoryError: they cannot be copied.
        """
        seq_id, length = cells.seq_id, cells.length
        # cells of an image share positions, in which libllama counts
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
        """Put blocks into idle cells, see `HostPrompts.restore`.

        Returns how many tokens the cells held of them before, how many they hold now, and whether
        all are back; None: not yet.
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
