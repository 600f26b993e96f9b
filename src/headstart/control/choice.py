"""Which draft to take when several speculators made one."""

from __future__ import annotations

from collections.abc import Sequence


def draft_value(survival: Sequence[float], row_price: float) -> float:
    """Expected tokens of a draft above what its rows cost: sum of (survival - price) while
    positive.
    """
    return sum(s - row_price for s in survival if s > row_price)


def best_draft(survivals: Sequence[Sequence[float]], row_price: float = 0.0) -> int | None:
    """Index of the draft worth most, the first of equals; None if all are empty or worthless."""
    best, best_value = None, 0.0
    for i, survival in enumerate(survivals):
        value = draft_value(survival, row_price)
        if value > best_value:
            best, best_value = i, value
    return best
