"""When a draft model that is off drafts a little all the same, and what that may cost.

A model that is off leaves no labels, so now and then it drafts a few tokens to be compared with the
text (they need not be verified). Savings of a small share of the time pay for that.

A model that has not read a request's prompt must read some of it before it can draft. That begins
when the savings pay for it and for some probes behind it, which are cheap then, and only where a
model that saves half of the steps would earn it back in this request. Of a long prompt a probe
leaves out the middle, if the model can do that: good enough to see that it is not useless, for a
sixteenth of the price of 4,000 tokens. Reading that has begun goes on with every step until the
model drafts, because half a prompt is worth nothing.

What a model's drafts are expected to earn is not believed for ever: each call is settled by its
record, tokens that were accepted against the time of the call, of its rows, and whatever more the
step took than its rows should. A model that lost more than it earned, and CREDIT, drafts nothing
but what a small share of the time pays for. What it read for a request is settled at the end of
that, so that its drafts can earn it first. So whatever is expected, a model costs CREDIT once, and
two such shares of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from headstart.control.values import MOST_TRIALS, TRIAL_SHARE

PROBE_TOKENS = 3  # draft tokens
CREDIT = 8.0  # plain steps that a model may lose at first; 8 times as many it may save up


@dataclass(slots=True)
class Probes:
    """Of one draft model. Prices, savings and balance in plain steps."""

    SAVED: ClassVar = ("savings", "balance")

    savings: float = 0.0
    balance: float = CREDIT  # what its drafts earned; below 0 there are none
    unpaid: float = 0.0  # of reading, until the request ends
    goal: float = 0.0  # what the probe that is being saved for costs
    reading: int | None = None  # the sequence whose prompt is being read for a probe

    def save(self, num_steps: int) -> None:
        """So many more steps."""
        if self.savings < self.goal:
            self.savings += num_steps * TRIAL_SHARE
        if self.balance < 0.0:
            self.balance += num_steps * TRIAL_SHARE

    @property
    def num_waits(self) -> int:
        """Steps until a model that is closed may draft again, or be probed."""
        if self.reading is not None:
            return 0
        return max(0, ceil(min(-self.balance, self.goal - self.savings) / TRIAL_SHARE))

    @property
    def is_closed(self) -> bool:
        """Whether drafts lost more than may be spent on trying again."""
        return self.balance < 0.0

    def settle(self, earned: float) -> None:
        """What a call's drafts saved, less what it took."""
        paid = max(0.0, min(earned, self.unpaid))
        self.unpaid -= paid
        self.balance = min(8.0 * CREDIT, self.balance + earned - paid)

    def end(self, number: int, num_running: int) -> None:
        """One of so many requests is over: what was read for it was earned back or lost."""
        self.called(number)
        lost = self.unpaid / max(1, num_running)
        self.unpaid -= lost
        self.settle(-lost)

    def choose(
        self, readings: Mapping[int, float], hopes: Mapping[int, float], price: float
    ) -> int | None:
        """The request to probe with now, if any. In plain steps.

        Args:
            readings: by request, the price of what the model has to read for it.
            hopes: by request, what a good model would save in the rest of it.
            price: of a probe without reading.
        """
        if self.reading is not None and self.reading in readings:
            return self.reading
        self.reading = None
        nearest = min(readings, key=readings.__getitem__)
        reading = readings[nearest]
        is_long = reading > price
        if is_long and hopes[nearest] < reading:
            return None
        self.goal = reading + price * (MOST_TRIALS if is_long else 1)
        if self.goal > self.savings:
            return None
        self.savings -= reading + price
        self.reading = nearest
        return nearest

    def called(self, number: int) -> None:
        """This one got a draft, or is over."""
        if self.reading == number:
            self.reading = None
