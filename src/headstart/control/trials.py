"""Trials: when a speculator that does not pay is asked again, and the budget for it.

Asking a text speculator takes time even if there is no draft: for the search, calibration and
planning. With steps of 50 ms that is negligible, with steps of 0.5 ms it costs every fifth token.
So it is asked while its drafts save on average what asking takes. If they save less, asking is paid
from a budget, which grows by TRIAL_SHARE of the time.

A disabled draft model yields no labels, so occasionally it drafts a few tokens to be compared with
the text (they need not be verified): a probe. A small share of the time is saved up for that.

A model that has not decoded a request's prompt must catch up before it can draft. A probe starts
once the budget covers that plus several cheap probes after it. Once begun, catching up continues
every step until the model drafts, because half a prompt is worth nothing.

Expected savings are checked against measurements: each call is settled by its record, accepted
tokens against the time of the call, of its rows, and any excess of the step over its expected time.
A model that lost more than CREDIT beyond its earnings drafts only within a small share of the time.
Catching up for a request is charged at its end, so that drafts can recoup it first. So however
wrong the estimates, a model costs at most CREDIT once, and two such shares of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from headstart.control.values import FAST, SLOW, TRIAL_SHARE

MOST_TRIALS = 8.0  # calls, or probes, that can be saved up
PROBE_TOKENS = 3  # draft tokens
CREDIT = 8.0  # plain steps a model may lose at first; at most 8 times that can be saved up


@dataclass(slots=True)
class AskingBudget:
    """The budget of one text speculator, in milliseconds."""

    cost: float = 0.0  # of asking for one slot
    gain: float = 0.0  # mean saving per slot that it was asked for
    savings: float = 0.0  # below 0: asked only while that pays
    slot_ms: float = 0.0  # of a step without drafts, per slot
    is_new: bool = True  # asked once at most

    def begin_step(self, num_slots: int) -> bool:
        """Whether to ask for `num_slots` slots in this step; if not, save up. Once per step."""
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
        self.goal = 0.0  # it may have been the price of this request's text
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
