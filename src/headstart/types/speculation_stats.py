"""Outcomes of drafts, for a request, for a speculator, or for all of them.

Counting takes only a few increments per step; positions are computed on demand. Reports and answers
contain these objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate


@dataclass(slots=True)
class SpeculationStats:
    """Drafts offered, verified and accepted, and the reasons for steps without one.

    Each step of a slot in which a draft was possible counts once: as a verified draft, or under a
    reason.
    """

    num_calls: int = 0  # calls of the speculator, per sequence
    num_drafts_offered: int = 0  # drafts it made
    # (position of its first token in the step's draft, tokens verified, tokens accepted) -> drafts
    verified: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)  # why none was verified -> steps

    @property
    def num_drafts(self) -> int:
        """Drafts of which at least the first tokens were verified."""
        return sum(self.verified.values())

    @property
    def num_drafts_accepted(self) -> int:
        """Drafts with at least one accepted token."""
        return sum(n for (_, _, accepted), n in self.verified.items() if accepted)

    @property
    def num_drafted(self) -> int:
        """Draft tokens verified."""
        return sum(n * drafted for (_, drafted, _), n in self.verified.items())

    @property
    def num_accepted(self) -> int:
        """Draft tokens accepted."""
        return sum(n * accepted for (_, _, accepted), n in self.verified.items())

    @property
    def num_rows_wasted(self) -> int:
        """Rows of the target's batches that held rejected draft tokens."""
        return self.num_drafted - self.num_accepted

    @property
    def drafted_by_position(self) -> tuple[int, ...]:
        """Tokens verified at each position of the step's draft."""
        spans = ((start, drafted, n) for (start, drafted, _), n in self.verified.items())
        return _per_position(spans, self._length)

    @property
    def accepted_by_position(self) -> tuple[int, ...]:
        """Tokens accepted at each position of the step's draft."""
        spans = ((start, accepted, n) for (start, _, accepted), n in self.verified.items())
        return _per_position(spans, self._length)

    @property
    def accepted_histogram(self) -> tuple[int, ...]:
        """[n] = drafts of which n tokens were accepted."""
        histogram = [0] * (max((accepted for _, _, accepted in self.verified), default=-1) + 1)
        for (_, _, accepted), n in self.verified.items():
            histogram[accepted] += n
        return tuple(histogram)

    def add(self, other: SpeculationStats) -> None:
        self.num_calls += other.num_calls
        self.num_drafts_offered += other.num_drafts_offered
        self.verified.update(other.verified)
        self.reasons.update(other.reasons)

    @property
    def _length(self) -> int:
        return max((start + drafted for start, drafted, _ in self.verified), default=0)


def _per_position(spans: Iterable[tuple[int, int, int]], length: int) -> tuple[int, ...]:
    """How many of the (start, length, count) spans cover each position."""
    differences = [0] * (length + 1)
    for start, span, n in spans:
        differences[start] += n
        differences[start + span] -= n
    return tuple(accumulate(differences[:-1]))
