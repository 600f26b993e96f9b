"""Which draft to take when several speculators made one, and how a draft model should pick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FADE = 0.98  # of the counts per label: about the last 50 tokens decide
PRIOR = 2.0  # pseudo-counts
LEAD = 0.02  # acceptance by which the other way must be ahead before it is taken


def draft_value(survival: Sequence[float], row_price: float) -> float:
    """Expected tokens of a draft above what its rows cost: sum of (survival - price) while positive."""
    return sum(s - row_price for s in survival if s > row_price)


def best_draft(survivals: Sequence[Sequence[float]], row_price: float = 0.0) -> int | None:
    """Index of the draft worth most, the first of equals; None if all are empty or worthless."""
    best, best_value = None, 0.0
    for i, survival in enumerate(survivals):
        value = draft_value(survival, row_price)
        if value > best_value:
            best, best_value = i, value
    return best


def splice(prefix: Sequence[float], continuation: Sequence[float]) -> list[float]:
    """Survival of a draft continued by another one that was made for the text with the first in it.

    `continuation` counts from its own first token: the chance that it is reached is the prefix's.
    """
    alive = prefix[-1] if prefix else 1.0
    return [*prefix, *(alive * s for s in continuation)]


def splice_point(survival: Sequence[float], acceptance: float) -> int:
    """Tokens of a text draft to keep before a model continues it.

    The text's token is kept while its conditional acceptance is at least the model's.
    """
    before = 1.0
    for i, s in enumerate(survival):
        if s < before * acceptance:
            return i
        before = s
    return len(survival)


@dataclass(slots=True)
class Preference:
    """Coupled or argmax drafting, by what would have been accepted.

    A draft model knows both picks of a position whose context is right, so each label counts for
    both ways: there is nothing to explore.
    """

    coupled: float = 0.0
    argmax: float = 0.0
    labels: float = 0.0
    prefers_coupled: bool = True

    def record(self, *, coupled_matched: bool, argmax_matched: bool) -> None:
        """Learn from one position: which pick was the target's token."""
        self.labels = self.labels * FADE + 1.0
        self.coupled = self.coupled * FADE + coupled_matched
        self.argmax = self.argmax * FADE + argmax_matched
        lead = (self.coupled - self.argmax) / (self.labels + PRIOR)
        if lead > LEAD:
            self.prefers_coupled = True
        elif lead < -LEAD:
            self.prefers_coupled = False
