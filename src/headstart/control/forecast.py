"""What a draft model's next draft will be like: its length and acceptance, by length and confidence
limit.

A draft of up to k tokens that stops at the first score below a limit is described, for a ladder of
lengths and one of limits, by two chances at each position:

    P(drafted)                 costs a round and a row
    P(drafted and accepted)    is worth a token

Both are products of rates at the positions before, counted from the drafts themselves:

    going on = drafts that passed the limit here / drafts that came so far
    kept     = survival of those that passed     / survival of those that came so far

The second is weighted by the chance that the draft is still right, because that goes together with
the next score: text that is being copied stays sure. Counts fade and lean on others: a request on
its speculator, there a position on the one before. A draft that stopped at a limit says nothing
about lower limits, and is not counted for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, NamedTuple

from headstart.control.values import Allowance

# position in the draft -> bucket; later ones share the last
POSITIONS = (0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7)
NUM_POSITIONS = POSITIONS[-1] + 1
LAST = len(POSITIONS) - 1
THRESHOLDS = (0.0, 0.3, 0.5, 0.7, 0.85)
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
WIDTHS = (1, *(b - a for a, b in pairwise(LENGTHS)))
LADDER = tuple(
    (POSITIONS[min(length - 1, LAST)], width) for length, width in zip(LENGTHS, WIDTHS, strict=True)
)

FADE, REQUEST_FADE = 0.995, 0.9  # of a count per draft
MAX_UNIT = 1e6
WEIGHT, REQUEST_WEIGHT = 2.0, 3.0  # pseudo-counts

Rates = tuple[float, float]
"""(going on, kept) at one position."""


class Forecast(NamedTuple):
    """One slot's draft under one confidence limit; one entry per length of the ladder."""

    tokens: list[float]  # expected accepted tokens
    rows: list[float]  # expected tokens drafted
    # chance that the model is still drafting at the first token of this step of the ladder
    reach: list[float]


class Profile:
    """Counts over drafts, per limit and position bucket: came so far, passed, and both weighted by
    survival.

    Old drafts fade by letting each new one count for more.
    """

    __slots__ = ("_growth", "_unit", "came", "kept", "passed", "weight")
    SAVED: ClassVar = ("_unit", "came", "passed", "weight", "kept")

    def __init__(self, fade: float = FADE) -> None:
        self._growth, self._unit = 1.0 / fade, 1.0  # what a draft counts for now
        size = len(THRESHOLDS) * NUM_POSITIONS
        self.came, self.passed = [0.0] * size, [0.0] * size
        self.weight, self.kept = [0.0] * size, [0.0] * size

    def learn(
        self, confidence: Sequence[float], survival: Sequence[float], allowance: Allowance
    ) -> None:
        """Count one draft; shorter than granted means that the next score was below the limit."""
        self._unit = unit = self._unit * self._growth
        came, passed, weight, kept = self.came, self.passed, self.weight, self.kept
        for t, threshold in enumerate(THRESHOLDS):
            if threshold < allowance.min_confidence:
                continue
            before, start, stop = unit, t * NUM_POSITIONS, len(confidence)
            for i, score in enumerate(confidence):
                if score < threshold:
                    stop = i
                    break
                cell = start + POSITIONS[i if i < LAST else LAST]
                came[cell] += unit
                passed[cell] += unit
                weight[cell] += before
                before = unit * survival[i]
                kept[cell] += before
            if stop < allowance.max_tokens:
                cell = start + POSITIONS[min(stop, LAST)]
                came[cell] += unit
                weight[cell] += before
        if unit > MAX_UNIT:
            self._rescale()

    def rates(self, t: int, prior: Rates) -> list[Rates]:
        """Of a speculator: each position leans on the one before, the first on `prior`."""
        rates, more = [], WEIGHT * self._unit
        going_on, kept = prior
        for cell in range(t * NUM_POSITIONS, (t + 1) * NUM_POSITIONS):
            going_on = (self.passed[cell] + more * going_on) / (self.came[cell] + more)
            kept = (self.kept[cell] + more * kept) / (self.weight[cell] + more)
            rates.append((going_on, kept))
        return rates

    def rates_of_request(self, t: int, priors: Sequence[Rates]) -> list[Rates]:
        """Of one request: each position leans on the speculator's."""
        came, passed, weight, kept = self.came, self.passed, self.weight, self.kept
        more, rates = REQUEST_WEIGHT * self._unit, []
        for cell, (going_on, prior) in enumerate(priors, t * NUM_POSITIONS):
            passing = (passed[cell] + more * going_on) / (came[cell] + more)
            rates.append((passing, (kept[cell] + more * prior) / (weight[cell] + more)))
        return rates

    def _rescale(self) -> None:
        for counts in (self.came, self.passed, self.weight, self.kept):
            counts[:] = [count / self._unit for count in counts]
        self._unit = 1.0


def forecast(rates: Sequence[Rates]) -> Forecast:
    """Run through the positions up to the longest length."""
    tokens, rows, reach = [], [], []
    total = drafted = 0.0
    going = alive = 1.0
    for bucket, width in LADDER:
        reach.append(going)
        going_on, kept = rates[bucket]
        if width == 1:
            going *= going_on
            alive *= kept
            total += alive
            drafted += going
        else:  # geometric series
            going_on, kept = min(going_on, 1.0 - 1e-9), min(kept, 1.0 - 1e-9)
            rest_going, rest_alive = going * going_on**width, alive * kept**width
            total += (alive - rest_alive) * kept / (1.0 - kept)
            drafted += (going - rest_going) * going_on / (1.0 - going_on)
            going, alive = rest_going, rest_alive
        tokens.append(total)
        rows.append(drafted)
    return Forecast(tokens, rows, reach)


def guess(threshold: float, acceptance: float) -> Rates:
    """Rates of a model of which only the mean acceptance is known: a higher limit drops worse
    tokens first.
    """
    return 1.0 - 0.5 * threshold, acceptance * (1.0 - 0.3 * threshold * threshold)
