"""Who takes part in a step: all, or answers and prompts in turn, or those of one set of adapters.

On a GPU prompts are read beside the answers, because the weights are read from memory once for
both. On a processor that saves little, and attention takes it away: it computes whole tiles of
rows (`Engine.attention_tile`) and skips only cells that no row of a tile sees, so the rows of the
answers have 60 rows of a prompt look at the cells of all answers. There the two take turns: each
answer gets a token after every chunk, as it would beside it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from headstart.scheduler.batching import split
from headstart.scheduler.sequence import Sequence

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
    """Chooses the sequences of each step."""

    def __init__(self, attention_tile: int, prefill_chunk: int) -> None:
        """`prefill_chunk`: rows that a prompt may have beside answers."""
        self.adapters: AdapterTurns | None = None  # where requests may differ in them
        self._tile = attention_tile if prefill_chunk >= attention_tile else 1
        self._turn = _Turn.ALL

    def choose(self, running: list[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
        """The answers and the prompts that take part in the next step."""
        answers, prompts = split(self.adapters.choose(running) if self.adapters else running)
        if self._tile > 1:
            self._turn = self._next(answers, prompts)
            if self._turn is _Turn.ANSWERS:
                prompts = []
            elif self._turn is _Turn.PROMPTS:
                answers = []
        return answers, prompts

    def _next(self, answers: list[Sequence], prompts: list[Sequence]) -> _Turn:
        num_unread = sum(one.num_pending for one in prompts if one.leader is None)
        if not num_unread or len(answers) + num_unread < self._tile:
            return _Turn.ALL
        if sum(one.num_decoded for one in answers) < _FEW_CELLS:
            return _Turn.ALL
        return _Turn.PROMPTS if self._turn is _Turn.ANSWERS else _Turn.ANSWERS
