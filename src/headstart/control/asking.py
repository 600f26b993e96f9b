"""Whether a speculator is asked at all: its drafts have to earn the time of asking.

Asking takes time even where the answer is no: it searches, and its answer is calibrated and
planned. With a step of 50 ms that does not show, with one of 0.5 ms it costs every fifth token. So
a speculator is asked for a request while its drafts there save, on average, what asking takes; a
new request begins with the average of all. Where that is less, asking is paid from savings, which
grow by TRIAL_SHARE of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from headstart.control.values import FAST, MOST_TRIALS, SLOW, TRIAL_SHARE


@dataclass(slots=True)
class AskingBudget:
    """Of one speculator. Milliseconds."""

    cost: float = 0.0  # of asking for one slot
    savings: float = 0.0  # below 0: asked only for requests in which that pays
    slot_ms: float = 0.0  # of a step without drafts, per slot
    mean: float = 0.0  # saved by a time of asking, in all requests
    _gains: dict[int, float] = field(default_factory=dict)  # the same of one

    def wanted(self, numbers: Sequence[int]) -> Sequence[int]:
        """Of these, those to ask for in this step; call it once a step."""
        if self.savings >= 0.0:
            return numbers
        gains, mean, cost = self._gains, self.mean, self.cost
        wanted = [number for number in numbers if gains.get(number, mean) >= cost]
        self.wait(len(numbers) - len(wanted))
        return wanted

    def sleeps(self, numbers: Sequence[int]) -> int:
        """Steps in which it is to be asked for none of these."""
        if self.savings >= 0.0 or not self.slot_ms:
            return 0
        if max([self._gains.get(number, self.mean) for number in numbers]) >= self.cost:
            return 0
        return ceil(-self.savings / (TRIAL_SHARE * self.slot_ms * len(numbers)))

    def wait(self, num_steps: int) -> None:
        """It is not asked for one slot in so many steps."""
        self.savings += num_steps * TRIAL_SHARE * self.slot_ms

    def earned(self, numbers: Sequence[int], milliseconds: Sequence[float], slot_ms: float) -> None:
        """It was asked for these, and its drafts are expected to save so much; `slot_ms` is the
        time of a step without drafts, per slot.
        """
        gains, cost = self._gains, self.cost
        if not self.slot_ms:  # a first draft that saves nothing silences no one
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
        """Learn what asking for one slot takes."""
        if self.cost:  # one slow call silences no one
            rate = FAST if milliseconds < self.cost else SLOW
            milliseconds = self.cost + rate * (min(milliseconds, 2.0 * self.cost) - self.cost)
        self.cost = milliseconds

    def end(self, number: int) -> None:
        """The request is over."""
        self._gains.pop(number, None)
