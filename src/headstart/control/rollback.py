"""What a rejected draft costs where the memory of the target takes nothing back.

Recurrent layers without snapshots keep one state. Before a draft is verified the state is copied,
after a rejection it is put back, and the next step reads again what was accepted, without a draft.
So a draft has a price of its own besides its rows, and more of one if it is likely to end early.
"""

from __future__ import annotations

from collections.abc import Sequence

from headstart.control.budget import Budget
from headstart.control.cost import CostTable
from headstart.control.values import FAST, Step


class RollbackPrice:
    """Prices drafts that cannot simply be cut off. Milliseconds and tokens."""

    def __init__(self, cost: CostTable, budget: Budget) -> None:
        self._cost, self._budget = cost, budget
        self.copy_ms: float | None = None  # of one sequence's state; None: nothing is copied

    def observe(self, milliseconds: float) -> None:
        """Learn what copying the state of a sequence takes."""
        if self.copy_ms is None:
            self.copy_ms = milliseconds
        self.copy_ms += FAST * (milliseconds - self.copy_ms)

    def discounted(
        self, survivals: Sequence[Sequence[float]], step: Step
    ) -> Sequence[Sequence[float]]:
        """What each token of the drafts is worth, in place of its survival."""
        if self.copy_ms is None:
            return survivals
        return [self._worth(survival, step) if survival else survival for survival in survivals]

    def tokens(self, step: Step) -> float:
        """Tokens that a draft model's draft has to earn before it is worth anything."""
        if self.copy_ms is None:
            return 0.0
        survival = [0.5] * 3  # a typical draft: there is none yet
        return max(0.0, sum(survival) - sum(self._worth(survival, step)))

    def _worth(self, survival: Sequence[float], step: Step) -> list[float]:
        """Of each token: its survival, less what it adds to the price of the draft.

        Never rises, as survival never does: where a token pays for those before it, they share.
        """
        assert self.copy_ms is not None
        base, num_slots = step.num_base_rows, step.num_slots
        curve = self._cost.curve(base + len(survival), step.context, can_fill=step.can_pad)
        rate = self._budget.rate(step, curve[num_slots])
        lost = max(0.0, rate * curve[num_slots] / num_slots - 1.0)  # by a step without a draft
        worth, reached, price = list[float](), 1.0, rate * self.copy_ms
        for index, chance in enumerate(survival):
            again = rate * (self.copy_ms + curve[base + index + 1] - curve[base]) + lost
            price += (reached - chance) * again  # this token is the first that is rejected
            worth.append(chance - price)
            reached, price = chance, 0.0
        return _never_rising(worth)


def _never_rising(values: Sequence[float]) -> list[float]:
    """The same sums over whole blocks, each block level (pool adjacent violators).

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
