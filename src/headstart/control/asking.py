"""Decides whether a speculator is asked at all: its drafts must save more time than asking takes.

Asking takes time even if there is no draft: for the search, calibration and planning. With steps of
50 ms that is negligible, with steps of 0.5 ms it costs every fifth token. So a speculator is asked
for a request while its drafts there save on average what asking takes; a new request starts with
the average of all. If they save less, asking is paid from a budget, which grows by TRIAL_SHARE of
the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from headstart.control.values import FAST, MOST_TRIALS, SLOW, TRIAL_SHARE


@dataclass(slots=True)
class AskingBudget:
    """The budget of one speculator, in milliseconds."""

    cost: float = 0.0  # of asking for one slot
    savings: float = 0.0  # below 0: asked only for requests where it pays
    slot_ms: float = 0.0  # of a step without drafts, per slot
    mean: float = 0.0  # mean saving per call, over all requests
    _gains: dict[int, float] = field(default_factory=dict)  # the same by request

    def wanted(self, numbers: Sequence[int]) -> Sequence[int]:
        """The `numbers` for which to ask in this step; call it once per step."""
        if self.savings >= 0.0:
            return numbers
        gains, mean, cost = self._gains, self.mean, self.cost
        wanted = [number for number in numbers if gains.get(number, mean) >= cost]
        self.wait(len(numbers) - len(wanted))
        return wanted

    def sleeps(self, numbers: Sequence[int]) -> int:
        """Number of steps in which it should be asked for none of `numbers`."""
        if self.savings >= 0.0 or not self.slot_ms:
            return 0
        if max([self._gains.get(number, self.mean) for number in numbers]) >= self.cost:
            return 0
        return ceil(-self.savings / (TRIAL_SHARE * self.slot_ms * len(numbers)))

    def wait(self, num_steps: int) -> None:
        """Accrue budget for `num_steps` steps in which it is not asked for one slot."""
        self.savings += num_steps * TRIAL_SHARE * self.slot_ms

    def earned(self, numbers: Sequence[int], milliseconds: Sequence[float], slot_ms: float) -> None:
        """Credit the expected savings (`milliseconds`) of the drafts for `numbers`. `slot_ms`:
        plain step time per slot.
        """
        gains, cost = self._gains, self.cost
        if not self.slot_ms:  # so that a first draft that saves nothing does not disable it
            self.savings = min(MOST_TRIALS * cost, slot_ms)
        self.slot_ms = slot_ms
        for number, saved in zip(numbers, milliseconds, strict=True):
            gain = gains.get(number, self.mean)
            gains[number] = gain + FAST * (saved - gain)
            self.mean += SLOW * (saved - self.mean)
            if gain < cost:
                self.savings -= max(0.0, cost - saved)
        self.savings += len(numbers) * TRIAL_SHARE * slot_ms
        self.savings = min(self.savings, MOST_TRIALS * cost)

    def took(self, milliseconds: float) -> None:
        """Update the cost of asking for one slot."""
        if self.cost:  # so that one slow call does not disable it
            rate = FAST if milliseconds < self.cost else SLOW
            milliseconds = self.cost + rate * (min(milliseconds, 2.0 * self.cost) - self.cost)
        self.cost = milliseconds

    def end(self, number: int) -> None:
        """Forget a request that ended."""
        self._gains.pop(number, None)
