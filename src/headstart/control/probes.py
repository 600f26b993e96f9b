"""Probing: when to run a disabled draft model again, and the budget for it.

A disabled model yields no labels, so occasionally it drafts a few tokens to be compared with the
text (they need not be verified). A small share of the time is saved up for that.

A model that has not decoded a request's prompt must catch up before it can draft. A probe starts
once the budget covers that plus several cheap probes after it. With a long prompt a probe skips
the middle, if the model can: enough to see whether it is useful, for a sixteenth of the price of
4,000 tokens. Once begun, catching up continues every step until the model drafts, because half a
prompt is worth nothing.

Expected savings are checked against measurements: each call is settled by its record, accepted
tokens against the time of the call, of its rows, and any excess of the step over its expected time.
A model that lost more than CREDIT beyond its earnings drafts only within a small share of the time.
Catching up for a request is charged at its end, so that drafts can recoup it first. So however
wrong the estimates, a model costs at most CREDIT once, and two such shares of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from headstart.control.values import MOST_TRIALS, TRIAL_SHARE

PROBE_TOKENS = 3  # draft tokens
CREDIT = 8.0  # plain steps a model may lose at first; at most 8 times that can be saved up


@dataclass(slots=True)
class Probes:
    """Probes of one draft model. Prices, savings and balance in plain steps."""

    SAVED: ClassVar = ("savings", "balance")

    savings: float = 0.0
    balance: float = CREDIT  # net earnings of its drafts; below 0 it is disabled
    unpaid: float = 0.0  # catch-up costs, until the request ends
    goal: float = 0.0  # cost of the probe to save for
    reading: int | None = None  # the sequence whose prompt it decodes for a probe

    def accrue(self) -> None:
        """Accrue the budget of a step."""
        if self.savings < self.goal:
            self.savings += TRIAL_SHARE
        if self.balance < 0.0:
            self.balance += TRIAL_SHARE

    @property
    def is_closed(self) -> bool:
        """Whether its drafts lost more than allowed."""
        return self.balance < 0.0

    def settle(self, earned: float) -> None:
        """Settle a call: savings of its drafts minus its time."""
        paid = max(0.0, min(earned, self.unpaid))
        self.unpaid -= paid
        self.balance = min(8.0 * CREDIT, self.balance + earned - paid)

    def end(self, number: int, num_running: int) -> None:
        """A request ended (one of `num_running`): charge its unrecovered catch-up."""
        self.called(number)
        lost = self.unpaid / max(1, num_running)
        self.unpaid -= lost
        self.settle(-lost)

    def choose(self, readings: Mapping[int, float], price: float) -> int | None:
        """The request to probe now, if any. Units are plain steps.

        Args:
            readings: by request, the price of catching up.
            price: of a probe without catching up.
        """
        if self.reading is not None and self.reading in readings:
            return self.reading
        self.reading = None
        nearest = min(readings, key=readings.__getitem__)
        reading = readings[nearest]
        most = reading + MOST_TRIALS * price
        self.savings = min(self.savings, most)  # more was for a longer text, now gone
        self.goal = most if reading > price else reading + price
        if self.goal > self.savings:
            return None
        self.savings -= reading + price
        self.reading = nearest
        return nearest

    def called(self, number: int) -> None:
        """The request got a draft, or ended."""
        if self.reading == number:
            self.reading = None
