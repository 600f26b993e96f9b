"""What a draft model has to read before it can draft, and which part of that one draft has to earn.

A model that has not read a request's prompt reads it once, for all its drafts of this request. They
share that by the tokens of the steps that they are made in. How many tokens those will be is

    share of the tokens that came of steps with its drafts, where it was used before
    * tokens still to come

The end of an answer is not known. Lengths of answers vary so much that what has been written says
little about what is left, so that is taken to be the mean answer, or what max_tokens leaves.

Later the model falls behind while texts draft without it. What it has to catch up then is shared in
the same way. (A price of its own for each gap, shared by the drafts until the next one, gained less
than 0.6 % in every cell of `benchmarks.replay`, and was dropped.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from headstart.control.codec import Checks, count, number
from headstart.control.values import ModelSlot

SHARE = 0.5  # of the tokens come of steps with a model's drafts, until it was used


@dataclass(slots=True)
class AnswerLength:
    """How long answers are."""

    mean: float = 128.0  # tokens; until some were seen
    count: int = 0

    def end(self, num_tokens: int) -> None:
        """An answer is over."""
        self.count += 1
        self.mean += max(0.05, 1.0 / (self.count + 4)) * (num_tokens - self.mean)

    def left(self, slot: ModelSlot) -> float:
        """Tokens still to come."""
        return max(1.0, min(slot.num_left, self.mean))


@dataclass(slots=True)
class _RequestUse:
    """Of one request, since the model was first used for it."""

    start: int  # tokens of the answer before that
    tokens: float = 0.0  # expected of the steps with its drafts


@dataclass(slots=True)
class CatchUpEstimate:
    """Of one draft model."""

    SAVED: ClassVar[Checks] = {"share": number(0.0, 1.0), "num_shares": count}

    share: float = SHARE
    num_shares: int = 0  # averaged so far: the prior counts as one answer
    _used: dict[int, _RequestUse] = field(default_factory=dict)  # by seq_id

    def part(self, num_left: float) -> float:
        """Which part of what has to be read first each token of a step with a draft has to earn;
        `num_left` tokens are to come.
        """
        return 1.0 / max(1.0, self.share * num_left)

    def granted(self, slot: ModelSlot) -> None:
        """It may draft for this slot because that pays."""
        if slot.seq_id not in self._used:
            self._used[slot.seq_id] = _RequestUse(slot.num_answered)

    def drafted(self, seq_id: int, num_accepted: float) -> None:
        """It did, `num_accepted` tokens, and was not still reading. Probes before the first grant
        do not count.
        """
        if (use := self._used.get(seq_id)) is not None:
            use.tokens += 1.0 + num_accepted

    def end(self, seq_id: int, num_answered: int) -> None:
        """The request is over."""
        use = self._used.pop(seq_id, None)
        if use is None:
            self.share += 0.02 * max(0.0, SHARE - self.share)  # another chance, some 50 answers on
            return
        share = min(1.0, use.tokens / max(1, num_answered - use.start))
        self.num_shares += 1
        self.share += max(0.2, 1.0 / (self.num_shares + 1)) * (share - self.share)
