"""Cost of draft models, learned from their calls.

A call's time is split as expected; each part takes its share of the innovation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from headstart.control.values import DraftCall


@dataclass(slots=True)
class DraftCost:
    """Milliseconds of one draft model: per round by number of slots, and per catch-up token."""

    SAVED: ClassVar = ("round_ms", "catch_up_ms")

    round_ms: dict[int, float] = field(default_factory=dict)
    catch_up_ms: float | None = None

    def observe(self, call: DraftCall, plain_ms: float) -> None:
        """Update from one call; `plain_ms`, the time of a plain step, is the base of priors."""
        num_slots, rounds, catch_up = len(call.drafted), call.rounds, call.catch_up or 0
        if not (rounds or catch_up) or call.milliseconds <= 0.0:
            return
        per_round, price = self.round(num_slots, plain_ms), self.token(plain_ms)
        expected = rounds * per_round + catch_up * price  # above 0, because prices are
        share = rounds * per_round / expected
        ratio = call.milliseconds / expected - 1.0
        is_new = num_slots not in self.round_ms if rounds else self.catch_up_ms is None
        cut = max(-0.95, min(2.0, ratio)) if is_new else 0.2 * max(-0.25, min(0.25, ratio))
        if rounds:
            self.round_ms[num_slots] = per_round * (1.0 + cut * share)
        if catch_up:
            self.catch_up_ms = price * (1.0 + cut * (1.0 - share))

    def token(self, plain_ms: float) -> float:
        """Milliseconds per catch-up token; 2 % of a plain step until measured."""
        return 0.02 * plain_ms if self.catch_up_ms is None else self.catch_up_ms

    def round(self, num_slots: int, plain_ms: float) -> float:
        """Milliseconds per round; until measured 15 % of a plain step, a tenth more per further
        slot.
        """
        if num_slots in self.round_ms:
            return self.round_ms[num_slots]
        if not self.round_ms:
            return 0.15 * plain_ms * (1.0 + 0.1 * (num_slots - 1))
        nearest = min(self.round_ms, key=lambda n: abs(n - num_slots))
        return self.round_ms[nearest] * (1.0 + 0.1 * max(0, num_slots - nearest))
