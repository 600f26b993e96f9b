"""Price of rejected drafts for targets whose cache cannot be rolled back.

Recurrent layers without snapshots keep one state. It is copied before a draft is verified; after a
rejection it is restored, and the next step decodes the accepted tokens again, without a draft. So a
draft has a price besides its rows, which is higher if the draft is likely to end early.
"""

from __future__ import annotations

from collections.abc import Sequence

from headstart.control.budget import Budget
from headstart.control.cost import CostTable
from headstart.control.values import FAST, Step


class RollbackPrice:
    """Prices drafts that cannot be truncated for free. Milliseconds and tokens."""

    def __init__(self, cost: CostTable, budget: Budget) -> None:
        self._cost, self._budget = cost, budget
        self.copy_ms: float | None = None  # of one sequence's state; None: nothing was copied

    def observe(self, milliseconds: float) -> None:
        """Update the time of copying a sequence's state."""
        if self.copy_ms is None:
            self.copy_ms = milliseconds
        self.copy_ms += FAST * (milliseconds - self.copy_ms)

    def discounted(
        self, survivals: Sequence[Sequence[float]], step: Step
    ) -> Sequence[Sequence[float]]:
        """Net value of each draft token, replacing its survival."""
        if self.copy_ms is None:
            return survivals
        return [self._worth(survival, step) if survival else survival for survival in survivals]

    def tokens(self, step: Step) -> float:
        """Tokens that a draft model's draft must earn to break even."""
        if self.copy_ms is None:
            return 0.0
        survival = [0.5] * 3  # a typical draft, as there is none yet
        return max(0.0, sum(survival) - sum(self._worth(survival, step)))

    def _worth(self, survival: Sequence[float], step: Step) -> list[float]:
        """Net value of each token: its survival minus what it adds to the price of the draft.

        Non-increasing, like survival: if a token pays for earlier ones, they share the value.
        """
        assert self.copy_ms is not None
        base, num_slots = step.num_base_rows, step.num_slots
        curve = self._cost.curve(base + len(survival), step.context, can_fill=step.can_pad)
        rate = self._budget.rate(step, curve[num_slots])
        lost = max(0.0, rate * curve[num_slots] / num_slots - 1.0)  # by the step without a draft
        worth, reached, price = list[float](), 1.0, rate * self.copy_ms
        for index, chance in enumerate(survival):
            again = rate * (self.copy_ms + curve[base + index + 1] - curve[base]) + lost
            price += (reached - chance) * again  # for this token being the first one rejected
            worth.append(chance - price)
            reached, price = chance, 0.0
        return _never_rising(worth)


def _never_rising(values: Sequence[float]) -> list[float]:
    """Non-increasing values with the same sum in each block (pool adjacent violators).

    >>> _never_rising([-1.0, 2.0, 0.25])
    [0.5, 0.5, 0.25]
    """
    blocks: list[tuple[float, int]] = []  # mean, length
    for value in values:
        mean, length = value, 1
        while blocks and blocks[-1][0] < mean:
            before, count = blocks.pop()
            mean = (before * count + mean * length) / (count + length)
            length += count
        blocks.append((mean, length))
    return [mean for mean, length in blocks for _ in range(length)]
