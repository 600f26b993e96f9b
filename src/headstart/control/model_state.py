"""What is known of one draft model: prices, what its drafts are like, and when it was probed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from headstart.control.draft_cost import DraftCost
from headstart.control.forecast import (
    REQUEST_FADE,
    THRESHOLDS,
    Forecast,
    Profile,
    Rates,
    forecast,
    guess,
)
from headstart.control.probes import Probes
from headstart.control.values import Allowance

SHARE, SHARE_RATE = 0.5, 0.2  # until it was used; of a moving average over answers


@dataclass(slots=True)
class ModelState:
    """Of one draft model."""

    SAVED: ClassVar = ("cost", "profile", "probes", "share")

    cost: DraftCost = field(default_factory=DraftCost)
    profile: Profile = field(default_factory=Profile)
    requests: dict[int, Profile] = field(default_factory=dict)  # by number
    # which part of an answer's tokens comes of steps with its drafts: they pay for what it reads
    share: float = SHARE
    tokens: dict[int, float] = field(default_factory=dict)  # of those steps, by number
    idle: dict[int, int] = field(default_factory=dict)  # by number: steps since its last draft
    limit: int = 2  # index of the confidence limit chosen last
    probes: Probes = field(default_factory=Probes)
    rest: int = 0  # steps in which it is not planned for
    num_refused: int = 0  # plans in a row that did not let it draft
    gain: float = 0.0  # tokens above the price, of each slot that it was granted for last
    age: int = 0  # calls since the rates were read
    rates: dict[int, list[Rates]] = field(default_factory=dict)  # by limit
    forecasts: dict[tuple[int, int], Forecast] = field(default_factory=dict)  # by number and limit

    def learn(
        self,
        number: int,
        confidence: Sequence[float],
        survival: Sequence[float],
        allowance: Allowance,
    ) -> None:
        """Count one draft, for the model and for the request."""
        request = self.requests.get(number)
        if request is None:
            request = self.requests[number] = Profile(REQUEST_FADE)
        self.profile.learn(confidence, survival, allowance)
        request.learn(confidence, survival, allowance)
        self.idle[number] = 0
        self.tokens[number] = self.tokens.get(number, 0.0) + 1.0 + sum(survival)
        self._outdate(number, allowance.min_confidence)

    def skip(self, number: int) -> None:
        """No draft for this request; what it said of itself is old after a while, and then the
        average counts.
        """
        idle = self.idle.get(number)
        if idle is None:
            return
        self.idle[number] = idle + 1
        if idle + 1 == 16:
            self.requests[number] = Profile(REQUEST_FADE)
            self._outdate(number)

    def end(self, number: int, num_answered: int) -> None:
        """The request is over, with an answer of so many tokens."""
        share = min(1.0, self.tokens.pop(number, 0.0) / max(1, num_answered))
        if share:
            self.share += SHARE_RATE * (share - self.share)
        else:  # another chance, some answers on
            self.share += 0.1 * SHARE_RATE * max(0.0, SHARE - self.share)
        if self.probes.reading == number:
            self.probes.reading = None
        self.requests.pop(number, None)
        self.idle.pop(number, None)
        self._outdate(number)  # also of one that it never drafted for

    def _outdate(self, number: int, min_confidence: float = 0.0) -> None:
        for t, threshold in enumerate(THRESHOLDS):
            if threshold >= min_confidence:
                self.forecasts.pop((number, t), None)

    def forget(self) -> None:
        """Read the rates anew now and then: they move slowly."""
        self.age += 1
        if self.age >= 8:
            self.age = 0
            self.rates.clear()
            self.forecasts.clear()

    def forecast(self, number: int, t: int, acceptance: float) -> Forecast:
        """What to expect of this request's next draft; `acceptance` if nothing is known."""
        known = self.forecasts.get((number, t))
        if known is None:
            rates = self.rates.get(t)
            if rates is None:
                rates = self.rates[t] = self.profile.rates(t, guess(THRESHOLDS[t], acceptance))
            request = self.requests.get(number)
            known = forecast(rates if request is None else request.rates_of_request(t, rates))
            self.forecasts[number, t] = known
        return known
