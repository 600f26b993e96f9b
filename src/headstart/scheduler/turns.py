"""Who takes part in a step: all, or those who generate and those who read their prompt in turn.

On a GPU prompts are read beside the answers, because the weights are read from memory once for
both. On a processor that saves little, and attention takes it away: it computes whole tiles of
rows (`Engine.attention_tile`) and skips only cells that no row of a tile sees, so the rows of the
answers have 60 rows of a prompt look at the cells of all answers. There the two take turns: each
answer gets a token after every chunk, as it would beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING

from headstart.scheduler.slot import ActiveRequest

if TYPE_CHECKING:
    from headstart.scheduler.adapter_turns import AdapterTurns

# Where the answers have fewer tokens, reading the weights twice takes longer than a tile that looks
# at all of them.
_FEW_CELLS = 256


class _Turn(Enum):
    ALL = auto()
    ANSWERS = auto()
    PROMPTS = auto()


class Turns:
    """Chooses the requests of each step."""

    def __init__(self, attention_tile: int, prefill_chunk: int) -> None:
        """`prefill_chunk`: rows that a prompt may have beside answers."""
        self.adapters: AdapterTurns | None = None  # where requests may differ in them
        self._tile = attention_tile if prefill_chunk >= attention_tile else 1
        self._turn = _Turn.ALL

    def begin_step(self, running: Sequence[ActiveRequest]) -> None:
        """Choose whose turn it is."""
        if self.adapters:
            self.adapters.begin_step(running)
        if self._tile > 1:
            self._turn = self._next(self._with_adapters(running))

    def sharing(self, running: Sequence[ActiveRequest]) -> Sequence[ActiveRequest]:
        """Those of the requests that take part in this step."""
        running = self._with_adapters(running)
        if self._turn is _Turn.ALL:
            return running
        wanted = self._turn is _Turn.ANSWERS
        return [active for active in running if active.is_generating is wanted]

    def _with_adapters(self, running: Sequence[ActiveRequest]) -> Sequence[ActiveRequest]:
        return self.adapters.sharing(running) if self.adapters else running

    def _next(self, running: Sequence[ActiveRequest]) -> _Turn:
        num_rows = num_cells = num_unread = 0
        for active in running:
            if active.is_generating:
                num_rows += 1
                num_cells += active.num_decoded
            elif active.leader is None:
                num_unread += active.num_pending
        if not num_unread or num_cells < _FEW_CELLS or num_rows + num_unread < self._tile:
            return _Turn.ALL
        return _Turn.PROMPTS if self._turn is _Turn.ANSWERS else _Turn.ANSWERS


__all__ = ["Turns"]
