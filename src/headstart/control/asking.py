"""Decides whether a speculator is asked at all: its drafts must save more time than asking takes.

Asking takes time even if there is no draft: for the search, calibration and planning. With steps of
50 ms that is negligible, with steps of 0.5 ms it costs every fifth token. So a speculator is asked
while its drafts save on average what asking takes. If they save less, asking is paid from a budget,
which grows by TRIAL_SHARE of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.control.values import FAST, MOST_TRIALS, SLOW, TRIAL_SHARE


@dataclass(slots=True)
class AskingBudget:
    """The budget of one speculator, in milliseconds."""

    cost: float = 0.0  # of asking for one slot
    gain: float = 0.0  # mean saving per slot that it was asked for
    savings: float = 0.0  # below 0: asked only while that pays
    slot_ms: float = 0.0  # of a step without drafts, per slot
    is_new: bool = True  # asked once at most

    def may_ask_now(self, num_slots: int) -> bool:
        """Whether to ask for `num_slots` slots in this step; call it once per step."""
        if self.savings >= 0.0 or self.gain >= self.cost:
            return True
        self.savings += num_slots * TRIAL_SHARE * self.slot_ms
        return False

    def earned(self, milliseconds: Sequence[float], slot_ms: float) -> None:
        """Credit the expected savings (`milliseconds`) of its drafts, one per slot. `slot_ms`:
        plain step time per slot.
        """
        cost, num = self.cost, len(milliseconds)
        if not self.slot_ms:  # the first call is free: it may be a disturbed one, or save nothing
            self.savings = min(MOST_TRIALS * cost, slot_ms)
        elif self.gain < cost:
            self.savings -= sum([max(0.0, cost - saved) for saved in milliseconds])
        self.is_new, self.slot_ms = not self.slot_ms, slot_ms
        self.gain += FAST * (sum(milliseconds) / num - self.gain)
        self.savings = min(self.savings + num * TRIAL_SHARE * slot_ms, MOST_TRIALS * cost)

    def took(self, milliseconds: float) -> None:
        """Update the cost of asking for one slot."""
        if self.is_new:  # the lower of the first two: one slow call does not disable it
            self.cost = min(milliseconds, self.cost or milliseconds)
        else:
            rate = FAST if milliseconds < self.cost else SLOW
            self.cost += rate * (min(milliseconds, 2.0 * self.cost) - self.cost)
