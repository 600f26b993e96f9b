"""Cost, the second of control's three parts: the time of a target step and of a draft model.

In: rows of the batch and context. Out: milliseconds. Learned from every decode, and at the first
start from a warm-up.

Weights are read once a step and multiplied once a row; attention reads each row's own context:

    ms(rows, context) = e^level (e^shape[rows] + attention * rows * context)

with `context` in tokens per row. Prompts are read by other kernels: their attention counts as
weights. Attention is measured in the warm-up. The level follows everything that slows all steps
equally (other programs, heat); the shape is what planning needs and changes slowly. With e = log ms
- log expected, cut to +-40 %,

    level     += (FAST + |trend|) e
    shape     += SLOW (e - trend)
    trend     += FAST (e - trend)

The trend is common to steps of all widths. It is excluded from the shape: under a load that rises
suddenly and falls slowly, the level would otherwise climb and the shape of the widths in use sink
indefinitely, and unused widths would look more expensive. While the trend is large, the machine's
speed has changed, and the level follows at once.

A cell of the shape starts as the lower of its first two samples (disturbed steps are slow), then
becomes the median of three. Shapes are kept at knots and read by linear interpolation in rows. Past
the last knot seen, a row costs half the average of the rows before it: an overestimate is never
tested, while an underestimate is corrected by the first wider step.

Kernels favour some widths: on two cores 3 rows of Q4_0 take 36 ms and 4 rows 21. So each narrow
width is kept separately, and if steps may be padded, planning uses the cost of *at least* n rows:
that of the cheapest wider step, if it was measured and is clearly cheaper (`width`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations
from math import exp, inf, log
from statistics import median
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.control.values import FAST, SLOW, DraftCall

EACH = 32  # up to this many rows, each width is kept separately
KNOTS = (
    *range(1, EACH + 1),
    *(40, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096),
)

MAX_INNOVATION = log(1.4)
GROWN = 3  # samples after which a cell counts as known: their median
ROW_PRIOR = 0.2  # cost of an unmeasured row, in single rows: low, so that wider steps are tried
# rows; wider batches read prompts, whose attention a processor computes for 64 rows at once
LONGEST_DECODE = 63
MARGIN = 0.05  # share by which a choice must be better, against wrong estimates
REFERENCE_ROWS = 2  # of a warm-up: a single row often has its own kernel
ATTENTION = 5e-5  # prior: attention of a row to a token, in single rows without context


class Sample(NamedTuple):
    """One decode of a warm-up."""

    rows: int
    context: int  # cached tokens before it
    milliseconds: float
    reference_ms: float  # of REFERENCE_ROWS next to it in time, at the same context


class CostTable:
    """Milliseconds of a decode by rows and context (tokens per row)."""

    # The level is learned again after a start, because the machine's load changes (`_is_fresh`).
    SAVED: ClassVar = ("_level", "_attention", "_shape", "_count")

    def __init__(self) -> None:
        self._level = self._trend = 0.0  # log ms
        self._is_fresh = True  # the shape may be loaded, but the level is unknown
        self._shape = [0.0] * len(KNOTS)
        self._count = [0] * len(KNOTS)  # 0: never seen
        self._attention = ATTENTION
        self._young: dict[int, list[float]] = {}  # knot -> its first samples, sorted
        self._age = 0
        self._weights = np.zeros(0)  # by rows, relative to the level, at no context
        # by whether steps may be padded, and context
        self._curves: dict[tuple[bool, int], list[float]] = {}
        self._widths: dict[int, list[int]] = {}  # by context, widths of the padded steps

    @property
    def is_empty(self) -> bool:
        """Whether nothing was observed yet."""
        return not any(self._count)

    def observe(self, rows: int, context: int, milliseconds: float) -> None:
        """Update from one decode; `context` is the mean over its rows."""
        if rows < 1 or not 0.0 < milliseconds < 1e7:
            return
        knot = _nearest_knot(rows)
        seen = self._count[knot]
        if self._is_fresh and not seen and not self.is_empty:
            # a loaded table would derive its level from an unmeasured number of rows
            return
        at_knot = expected = self._shape[knot]
        if not seen or rows != KNOTS[knot]:
            widest = max(rows, KNOTS[knot])
            if rows > LONGEST_DECODE:
                curve = self.curve(widest, context)
                expected, at_knot = (log(curve[n]) - self._level for n in (rows, KNOTS[knot]))
            else:
                weights = self._read(widest)
                expected, at_knot = log(weights[rows]), log(weights[KNOTS[knot]])
        lever = rows * context if rows <= LONGEST_DECODE else 0
        attention = self._attention * lever
        total = exp(expected) + attention
        if self._is_fresh:
            self._level, self._is_fresh = log(milliseconds / total), False
        if seen < GROWN:
            relative = milliseconds / exp(self._level)
            if attention > 0.5 * relative:  # attention cannot be more of a first step
                attention = 0.5 * relative
                self._attention = attention / lever
            self._grow(knot, at_knot, log(relative - attention) - expected)
        else:
            innovation = log(milliseconds / total) - self._level
            innovation = max(-MAX_INNOVATION, min(MAX_INNOVATION, innovation))
            self._level += min(1.0, FAST + abs(self._trend)) * innovation
            own = innovation - self._trend
            self._trend += FAST * own
            self._shape[knot] += SLOW * own
        self._count[knot] = seen + 1
        self._age += 1
        may_move_far = seen < GROWN or abs(self._trend) > FAST
        if may_move_far or self._age >= 16:  # building it takes as long as some steps of control
            self._forget_curves()

    def calibrate(self, samples: Sequence[Sample]) -> None:
        """Learn from a warm-up, in which the context grows and single rows come first; replaces the
        estimates of its widths.

        Samples of equal rows at two contexts give the cost of attention; the rest is the shape.
        """
        attention = _attention_of(samples)
        reference = median(
            s.reference_ms / (1.0 + REFERENCE_ROWS * attention * s.context) for s in samples
        )
        if self._is_fresh:  # a loaded table knows too little, and its level would be a guess
            self._count = [0] * len(KNOTS)
            self._level, self._is_fresh = log(reference), False
        for rows, ratio in _widths_of(samples, attention).items():
            knot = _nearest_knot(rows)
            self._shape[knot] = log(reference * ratio) - self._level
            self._count[knot] = GROWN  # each was compared with neighbours in time
            self._young.pop(knot, None)
        self._attention = attention * reference / exp(self._level)
        self._forget_curves()

    def milliseconds(self, rows: int, context: int) -> float:
        """Expected time of a decode."""
        return self.curve(rows, context)[rows]

    def curve(self, rows: int, context: int, *, can_fill: bool = False) -> list[float]:
        """Milliseconds by number of rows, from 0 to at least `rows`. Read only.

        Before any measurement one row costs 1.

        can_fill: steps may be padded, so the values are the cost of at least n rows.
        """
        context = 64 * ((context + 32) // 64)  # contexts of similar lengths share a curve
        known = self._curves.get((can_fill, context))
        if known is None or len(known) <= rows:
            rows = EACH * (max(rows, EACH) // EACH + 1)  # the next step may ask for more
            weights = self._read(rows)[:rows]
            attended = np.minimum(np.arange(rows), LONGEST_DECODE)
            array = weights + self._attention * context * attended
            self._read_wide(array)
            known = (exp(self._level) * array).tolist()  # item by item, at Python's speed
            if can_fill:
                widths = self._cheapest(known)
                known[: EACH + 1] = [known[width] for width in widths]
                self._widths[context] = widths
            self._curves[can_fill, context] = known
        return known

    def width(self, rows: int, context: int) -> int:
        """The number of rows, at least `rows`, that a step should have: more if that was measured
        to be clearly cheaper.
        """
        self.curve(rows, context, can_fill=True)
        return rows if rows > EACH else self._widths[64 * ((context + 32) // 64)][rows]

    def _cheapest(self, curve: Sequence[float]) -> list[int]:
        """By rows, up to EACH: the cheapest width of at least that many rows."""
        widths = list(range(EACH + 1))
        cheapest: int | None = None  # of the wider ones with enough samples
        for rows in range(EACH, 0, -1):
            if cheapest is not None and curve[cheapest] < (1.0 - MARGIN) * curve[rows]:
                widths[rows] = cheapest
            is_known = self._count[rows - 1] >= GROWN
            if is_known and (cheapest is None or curve[rows] < curve[cheapest]):
                cheapest = rows
        return widths

    def is_known(self, rows: int) -> bool:
        """Whether every width up to `rows`, at most EACH, has enough samples."""
        return min(self._count[:rows]) >= GROWN

    def describe(self) -> dict[str, Any]:
        """Measured milliseconds by rows without context, and of a row's attention to 1000 tokens;
        JSON-ready.
        """
        if self.is_empty:
            return {}
        scale = exp(self._level)
        rows = {str(n): round(scale * value, 4) for n, value in self._points()}
        return {"rows": rows, "attention": round(1000.0 * scale * self._attention, 4)}

    def _grow(self, knot: int, expected: float, innovation: float) -> None:
        """Estimate a new cell from its few samples, one of which may be far too slow."""
        samples = self._young.setdefault(knot, [self._shape[knot]] * self._count[knot])
        samples.append(expected + innovation)
        samples.sort()
        if len(samples) < GROWN:
            self._shape[knot] = min(samples[0], expected + MAX_INNOVATION)
        else:
            self._shape[knot] = self._young.pop(knot)[GROWN // 2]

    def _forget_curves(self) -> None:
        self._age, self._weights = 0, np.zeros(0)
        self._curves.clear()

    def _read(self, rows: int) -> NDArray[np.float64]:
        """Costs relative to the level without context, by rows, up to at least `rows`."""
        if len(self._weights) <= rows:
            widths, points = np.arange(4 * rows), self._points()
            # attention is part of what wide steps were measured to take
            points = [point for point in points if point[0] <= LONGEST_DECODE] or points
            (first_rows, first), (last_rows, last) = points[0], points[-1]
            one = first / (1.0 + ROW_PRIOR * (first_rows - 1))
            slope = ROW_PRIOR * one
            if last_rows > 1:  # at least: the last one may be a favoured width
                slope = max(0.05 * last / last_rows, 0.5 * (last - one) / (last_rows - 1))
            at, values = zip((0, 0.0), (1, one), *points[first_rows == 1 :], strict=True)
            self._weights = np.interp(widths, at, values)
            self._weights += slope * np.maximum(0, widths - last_rows)
        return self._weights

    def _read_wide(self, array: NDArray[np.float64]) -> None:
        """Replace the costs of steps wider than LONGEST_DECODE by those measured, if any."""
        wide = [point for point in self._points() if point[0] > LONGEST_DECODE]
        if not wide or len(array) <= LONGEST_DECODE:
            return
        least, (last_rows, last) = wide[0][1], wide[-1]
        unknown = array[EACH + 1 : LONGEST_DECODE + 1]  # mostly extrapolated
        np.minimum(unknown, least, out=unknown)
        rows = np.arange(LONGEST_DECODE + 1, len(array))
        at, values = zip((LONGEST_DECODE, array[LONGEST_DECODE]), *wide, strict=True)
        slope = max(0.05 * last / last_rows, 0.5 * (last - array[1]) / (last_rows - 1))
        array[LONGEST_DECODE + 1 :] = np.interp(rows, at, values)
        array[LONGEST_DECODE + 1 :] += slope * np.maximum(0, rows - last_rows)

    def _points(self) -> list[tuple[int, float]]:
        """(rows, ms / level) at the knots seen.

        Kernels favour some widths, so narrow steps are kept as measured; wide ones never fall.
        """
        points, most = [], -inf
        for rows, value, num_seen in zip(KNOTS, self._shape, self._count, strict=True):
            if num_seen:
                if rows > EACH:
                    value = most = max(most, value)
                points.append((rows, exp(value)))
        return points or [(1, 1.0)]


def _attention_of(samples: Sequence[Sample]) -> float:
    """Cost of a row's attention to one token, in reference decodes without context.

    With r = ms / reference ms next to it, n rows, m reference rows and a context c, r (1 + a m c) =
    shape + a n c. Two samples of equal n give

        a = (r2 - r1) / (c2 (n - m r2) - c1 (n - m r1))

    by least squares, with an error of 5 % in r, and of twice its size in the prior.
    """
    prior = ATTENTION / REFERENCE_ROWS
    weights = (0.05 / (2.0 * prior)) ** 2
    weighted = weights * prior
    for one, two in permutations(samples, 2):
        if one.rows == two.rows and one.context < two.context:
            ratio, other = (s.milliseconds / s.reference_ms for s in (one, two))
            lever = two.context * (two.rows - REFERENCE_ROWS * other)
            lever -= one.context * (one.rows - REFERENCE_ROWS * ratio)
            if lever > 0.0:
                weights += (lever / max(ratio, other)) ** 2
                weighted += (other - ratio) * lever / max(ratio, other) ** 2
    return max(0.0, weighted / weights)


def _widths_of(samples: Sequence[Sample], attention: float) -> dict[int, float]:
    """Cost of decodes by rows, relative to REFERENCE_ROWS, without context.

    Without widths timed once that were clearly slower than a wider one: planning would never use
    them again, and the decode may have been disturbed.

    attention: of a row to one token, in reference decodes without context.
    """
    ratios: dict[int, list[float]] = {}
    for s in samples:
        ratio = s.milliseconds / s.reference_ms
        weights = ratio - attention * s.context * (s.rows - REFERENCE_ROWS * ratio)
        ratios.setdefault(s.rows, []).append(max(0.1, weights))
    costs, cheapest = {REFERENCE_ROWS: 1.0}, inf  # of the wider ones
    for rows in sorted(ratios, reverse=True):
        cost = median(ratios[rows])
        if len(ratios[rows]) > 1 or cheapest > (1.0 - MARGIN) * cost:
            costs.setdefault(rows, cost)
        cheapest = min(cheapest, cost)
    return costs


def _nearest_knot(rows: int) -> int:
    """The index of a knot; attention counts as weights on both sides of it, or on neither."""
    k = bisect_left(KNOTS, rows)
    if k == len(KNOTS) or rows <= LONGEST_DECODE < KNOTS[k]:
        return k - 1
    return k - 1 if k and rows - KNOTS[k - 1] < KNOTS[k] - rows else k


@dataclass(slots=True)
class DraftCost:
    """Milliseconds of one draft model: per round by number of slots, and per catch-up token.

    A call's time is split as expected; each part takes its share of the innovation.
    """

    SAVED: ClassVar = ("round_ms", "catch_up_ms")

    round_ms: dict[int, float] = field(default_factory=dict)
    catch_up_ms: float | None = None

    def observe(self, call: DraftCall, plain_ms: float) -> float:
        """Update from one call; returns the milliseconds expected of it. `plain_ms`, the time of a
        plain step, is the base of priors.
        """
        num_slots, rounds, catch_up = len(call.drafted), call.rounds, call.catch_up or 0
        per_round, price = self.round(num_slots, plain_ms), self.token(plain_ms)
        expected = rounds * per_round + catch_up * price
        if expected <= 0.0 or call.milliseconds <= 0.0:
            return expected
        share = rounds * per_round / expected
        ratio = call.milliseconds / expected - 1.0
        is_new = num_slots not in self.round_ms if rounds else self.catch_up_ms is None
        cut = max(-0.95, min(2.0, ratio)) if is_new else 0.2 * max(-0.25, min(0.25, ratio))
        if rounds:
            self.round_ms[num_slots] = per_round * (1.0 + cut * share)
        if catch_up:
            self.catch_up_ms = price * (1.0 + cut * (1.0 - share))
        return expected

    def token(self, plain_ms: float) -> float:
        """Milliseconds per catch-up token; 2 % of a plain step until measured."""
        return 0.02 * plain_ms if self.catch_up_ms is None else self.catch_up_ms

    def round(self, num_slots: int, plain_ms: float) -> float:
        """Milliseconds per round; until measured 15 % of a plain step, a tenth more per further
        slot.
        """
        if num_slots in self.round_ms:
            return self.round_ms[num_slots]
        if not self.round_ms:
            return 0.15 * plain_ms * (1.0 + 0.1 * (num_slots - 1))
        nearest = min(self.round_ms, key=lambda n: abs(n - num_slots))
        return self.round_ms[nearest] * (1.0 + 0.1 * max(0, num_slots - nearest))
