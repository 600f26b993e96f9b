"""What a draft model's next draft will be like: its length and acceptance, by length and confidence limit.

A draft of up to k tokens that stops at the first score below a limit is described, for a ladder of
lengths and one of limits, by two chances at each position:

    P(drafted)                 costs a round and a row
    P(drafted and accepted)    is worth a token

Both are products of rates at the positions before, counted from the drafts themselves:

    going on = drafts that passed the limit here / drafts that came so far
    kept     = survival of those that passed     / survival of those that came so far

The second is weighted by the chance that the draft is still right, because that goes together with
the next score: text that is being copied stays sure. Counts fade and lean on others: a request on its
speculator, there a position on the one before. A draft that stopped at a limit says nothing about
lower limits, and is not counted for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from headstart.control.calibration import LAST, NUM_POSITIONS, POSITIONS
from headstart.control.state import floats
from headstart.control.values import Allowance

THRESHOLDS = (0.0, 0.3, 0.5, 0.7, 0.85)
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
WIDTHS = (1, *(b - a for a, b in pairwise(LENGTHS)))

FADE, REQUEST_FADE = 0.99, 0.9  # of a count per draft
WEIGHT, REQUEST_WEIGHT = 2.0, 3.0  # pseudo-counts

Rates = tuple[float, float]
"""(going on, kept) at one position."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """One slot's draft under one confidence limit; one entry per length of the ladder."""

    tokens: list[float]  # expected accepted tokens
    rows: list[float]  # expected tokens drafted
    reach: list[float]  # chance that the model is still drafting at the first token of this step of the ladder


class Profile:
    """Counts over drafts, per limit and position bucket: came so far, passed, and both weighted by survival."""

    __slots__ = ("_fade", "came", "kept", "passed", "weight")

    def __init__(self, fade: float = FADE) -> None:
        self._fade = fade
        size = len(THRESHOLDS) * NUM_POSITIONS
        self.came, self.passed = [0.0] * size, [0.0] * size
        self.weight, self.kept = [0.0] * size, [0.0] * size

    def learn(self, confidence: Sequence[float], survival: Sequence[float], grant: Allowance) -> None:
        """Count one draft; shorter than granted means that the next score was below the limit."""
        for t, threshold in enumerate(THRESHOLDS):
            if threshold < grant.min_confidence:
                continue
            before = 1.0
            for i, (score, alive) in enumerate(zip(confidence, survival, strict=True)):
                if score < threshold:
                    self._count(t, i, before, 0.0, passed=False)
                    break
                self._count(t, i, before, alive, passed=True)
                before = alive
            else:
                if len(confidence) < grant.max_tokens:
                    self._count(t, len(confidence), before, 0.0, passed=False)

    def rates(self, t: int, prior: Rates) -> list[Rates]:
        """Of a speculator: each position leans on the one before, the first on `prior`."""
        rates = []
        for p in range(NUM_POSITIONS):
            prior = self._rate(t * NUM_POSITIONS + p, prior, WEIGHT)
            rates.append(prior)
        return rates

    def rates_of_request(self, t: int, priors: Sequence[Rates]) -> list[Rates]:
        """Of one request: each position leans on the speculator's."""
        return [self._rate(t * NUM_POSITIONS + p, prior, REQUEST_WEIGHT) for p, prior in enumerate(priors)]

    def to_json(self) -> dict[str, Any]:
        """Everything learned."""
        return {"came": self.came, "passed": self.passed, "weight": self.weight, "kept": self.kept}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Profile:
        """Raises ValueError, KeyError or TypeError if damaged."""
        profile = cls()
        size = len(profile.came)
        for whole, part in (("came", "passed"), ("weight", "kept")):
            wholes, parts = floats(state[whole], size, least=0.0), floats(state[part], size, least=0.0)
            if any(a > b + 1e-6 for a, b in zip(parts, wholes, strict=True)):
                raise ValueError(f"more {part} than {whole}")
            setattr(profile, whole, wholes)
            setattr(profile, part, parts)
        return profile

    def _count(self, t: int, i: int, before: float, alive: float, *, passed: bool) -> None:
        cell, fade = t * NUM_POSITIONS + POSITIONS[i if i < LAST else LAST], self._fade
        self.came[cell] = self.came[cell] * fade + 1.0
        self.passed[cell] = self.passed[cell] * fade + passed
        self.weight[cell] = self.weight[cell] * fade + before
        self.kept[cell] = self.kept[cell] * fade + alive

    def _rate(self, cell: int, prior: Rates, weight: float) -> Rates:
        going_on = (self.passed[cell] + weight * prior[0]) / (self.came[cell] + weight)
        return going_on, (self.kept[cell] + weight * prior[1]) / (self.weight[cell] + weight)


def forecast(rates: Sequence[Rates]) -> Forecast:
    """Run through the positions up to the longest length."""
    tokens, rows, reach = [], [], []
    total = drafted = 0.0
    going = alive = 1.0
    position = 0
    for width in WIDTHS:
        reach.append(going)
        for _ in range(width):
            going_on, kept = rates[POSITIONS[position if position < LAST else LAST]]
            going, alive, position = going * going_on, alive * kept, position + 1
            total, drafted = total + alive, drafted + going
        tokens.append(total)
        rows.append(drafted)
    return Forecast(tokens, rows, reach)


def guess(threshold: float, acceptance: float) -> Rates:
    """Rates of a model of which only the mean acceptance is known: a higher limit drops worse tokens first."""
    return 1.0 - 0.5 * threshold, acceptance * (1.0 - 0.3 * threshold * threshold)
