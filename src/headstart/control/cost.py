"""Cost, the second of control's three instruments: what a step of the target takes.

In: rows of the batch and context. Out: milliseconds. Learned from every decode, and at the first
start from a warm-up.

Weights are read once a step and multiplied once a row; attention reads each row's own context:

    ms(rows, context) = e^level (e^shape[rows] + attention * rows * context)

with `context` in tokens per row. Prompts are read by other kernels: their attention counts as
weights. The level follows whatever slows every step alike (other programs, heat); shape and
attention are what planning needs and move slowly. A step that took `ms` splits
its innovation by the variances, an extended Kalman filter with a diagonal covariance (h =
derivative of log expected by the parameter, 1 for the level):

    e = log ms - log expected, cut to +-25 %; V_level >= e^2 after several surprises in a row
    parameter += e h V / S;   S = sum of h^2 V over the three + noise

Level and shape cannot be told apart by the widths in use alone: with a load that rises suddenly
and falls slowly, the one would climb and the other sink for ever, and widths not seen meanwhile
would look dearer with it. So the mean shape of the widths in use stays, and the level takes the
rest (`RecentUse.balance`).

A cell of the shape starts as the lowest of its first two samples (disturbed steps are slow), then
their median. Shapes are kept at knots and read by linear interpolation in rows. Past the last knot
seen, a row costs a quarter more than the rows so far did on average; optimistically half as much.

Kernels like some widths: on two cores 3 rows of Q4_0 take 36 ms and 4 rows 21. So each narrow width
is kept as it is, and where steps may be filled, planning uses the cost of *at least* n rows: that
of the cheapest wider step, if it was measured and takes clearly less (`width`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import exp, inf, log, sqrt
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.control.codec import Count, Fields, Number, Values
from headstart.control.cost_samples import (
    ATTENTION,
    ATTENTION_VARIANCE,
    REFERENCE_ROWS,
    Sample,
    attention_of,
    widths_of,
)
from headstart.control.recent_use import RecentUse
from headstart.control.warm_up_prices import WIDTH_DOUBT, WarmUpPrices

EACH = 32  # up to so many rows each width is kept as it is
WIDE = (40, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
KNOTS = (*range(1, EACH + 1), *WIDE)

NOISE = 0.01  # variance of log ms of one step: 10 %
LEVEL_DRIFT, SHAPE_DRIFT, ATTENTION_DRIFT = 0.0002, 0.00005, 1e-12  # variance added per step
MAX_INNOVATION, FIRST_INNOVATION = log(1.25), log(1.5)
SURPRISE, MANY_SURPRISES = 0.15, 3  # log ms off; after so many in a row the level is in doubt
GROWN = 3  # samples after which a cell counts as known: their median
PRIOR_MARGIN = 0.6  # cost of a further row, in single rows, when only one row count was seen
OPTIMISTIC_MARGIN = 0.05
# optimism between two measured row counts: how far the curve may stay flat before it jumps
OPTIMISM = 0.25
REBUILD_EVERY = 16  # steps between two readings of the shape
MOST_ATTENTION = 1e-2
LONGEST_DECODE = 64  # rows; longer batches read prompts
# attention is believed to be no more of the first steps with some number of rows
MOST_OF_STEP = 0.5
TOLD_APART = 16  # rows; up to here a width is known if it was seen, beyond if one near it was
# a wider step must take less than this to be taken instead: noise of the medians of two widths
FILL_BELOW = 0.95
CONTEXT_GRAIN = 64  # tokens; a curve is read for contexts rounded to this


class CostTable:
    """Milliseconds of a decode by rows and context, tokens per row."""

    def __init__(self) -> None:
        self._level, self._level_variance = 0.0, NOISE
        self._surprises = 0  # in a row; negative: steps were faster than expected
        self._is_fresh = True  # the shape may be loaded, the level is not known
        self._shape = [0.0] * len(KNOTS)
        self._variance = [NOISE] * len(KNOTS)
        self._count = [0] * len(KNOTS)  # 0: never seen
        self._attention, self._attention_variance = ATTENTION, ATTENTION_VARIANCE
        self._warm_up = WarmUpPrices()
        self._use = RecentUse()
        self._young: dict[int, list[float]] = {}  # knot -> its first samples, sorted
        self._age = 0
        self._num_known: int | None = None  # rows that are known; None: to be counted again
        # milliseconds at no context, by optimism
        self._weights: dict[bool, NDArray[np.float64]] = {}
        # by optimism, whether steps may be filled, and grains of context
        self._curves: dict[tuple[bool, bool, int], list[float]] = {}
        self._known_widths: dict[int, list[int]] = {}  # by grains of context

    @property
    def is_empty(self) -> bool:
        """Whether nothing was observed yet."""
        return not any(self._count)

    def observe(self, rows: int, context: int, milliseconds: float) -> None:
        """Learn from one decode; `context` is the mean over its rows."""
        if rows < 1 or not 0.0 < milliseconds < 1e7:
            return
        knot = _nearest_knot(rows)
        seen = self._count[knot]
        if self._is_fresh and not seen and not self.is_empty:
            # a loaded table would take its level from a number of rows that it does not know
            return
        if self._warm_up.is_unseen(knot):
            self._believe_text(knot)
        at_knot = expected = self._shape[knot]
        if not self.is_empty and (not seen or rows != KNOTS[knot]):
            points = self._points(optimistic=False)
            expected, at_knot = (log(_read(points, r, PRIOR_MARGIN)) for r in (rows, KNOTS[knot]))
        lever = rows * context if rows <= LONGEST_DECODE else 0
        attention = self._attention * lever
        total = exp(expected) + attention
        if self._is_fresh:
            self._level, self._is_fresh = log(milliseconds / total), False
        if seen < GROWN:
            relative = milliseconds / exp(self._level)
            if attention > MOST_OF_STEP * relative:
                attention = MOST_OF_STEP * relative
                self._attention = attention / lever
            self._grow(knot, at_knot, log(relative - attention) - expected)
        else:
            innovation = log(milliseconds / total) - self._level
            self._note_surprise(innovation)
            innovation = max(-MAX_INNOVATION, min(MAX_INNOVATION, innovation))
            self._follow(knot, innovation, 1.0 - attention / total, lever / total)
            self._warm_up.observe(knot, at_knot + innovation, self._shape[0])
        self._count[knot] = seen + 1
        if seen + 1 == GROWN:
            self._num_known = None
        self._age += 1
        is_in_doubt = seen < GROWN or abs(self._surprises) >= MANY_SURPRISES  # either may move far
        if is_in_doubt or self._age >= REBUILD_EVERY:
            self._forget_curves()

    def calibrate(self, samples: Sequence[Sample]) -> None:
        """Learn from a warm-up, in which the context grows and single rows come first; it replaces
        what was known of its widths.

        Samples of equal rows at two contexts tell what attention costs; what is left is the shape.
        """
        attention, variance = attention_of(samples)
        reference = median(
            s.reference_ms / (1.0 + REFERENCE_ROWS * attention * s.context) for s in samples
        )
        if self._is_fresh:  # what was loaded knows too little, and its level would be a guess
            self._count = [0] * len(KNOTS)
        for rows, ratio in widths_of(samples, attention).items():
            self._forget_width(_nearest_knot(rows))
            for _ in range(GROWN):  # each was compared with its neighbours in time: known at once
                self.observe(rows, 0, reference * ratio)
        scale = reference / exp(self._level)
        self._attention, self._attention_variance = (
            min(MOST_ATTENTION, attention * scale),
            variance * scale * scale,
        )
        self._warm_up = WarmUpPrices({k: self._shape[k] for k, n in enumerate(self._count) if n})

    def milliseconds(self, rows: int, context: int) -> float | None:
        """Expected time of a decode; None before anything was observed."""
        return None if self.is_empty else self.curve(rows, context)[rows]

    def curve(
        self, rows: int, context: int, *, optimistic: bool = False, can_fill: bool = False
    ) -> list[float]:
        """Milliseconds by number of rows, from 0 to at least `rows`. Read only.

        Before any measurement: one row costs 1, each further one PRIOR_MARGIN.

        Args:
            optimistic: as cheap as widths that were never measured may be.
            can_fill: a step may be made wider where that is cheaper: the cost of at least n rows.
        """
        grain = (context + CONTEXT_GRAIN // 2) // CONTEXT_GRAIN
        curve = self._curves.get((optimistic, can_fill, grain))
        if curve is not None and len(curve) > rows:
            return curve
        if self.is_empty:
            return [0.0] + [1.0 + PRIOR_MARGIN * i for i in range(rows)]
        rows = max(rows, EACH)  # what a step may be filled up to
        if can_fill:
            plain = self.curve(rows, context, optimistic=optimistic)
            curve = [plain[width] for width in self._widths(plain)]
        else:
            curve = self._read(rows, grain, optimistic=optimistic).tolist()  # item by item
        self._curves[optimistic, can_fill, grain] = curve
        return curve

    def _read(self, rows: int, grain: int, *, optimistic: bool) -> NDArray[np.float64]:
        size = EACH * (rows // EACH + 1)  # the next step may ask for more
        weights = self._weights.get(optimistic)
        if weights is None or len(weights) < size:
            weights = self._weights[optimistic] = self._build(4 * size, optimistic=optimistic)
        row_ms = exp(self._level) * self._attention * grain * CONTEXT_GRAIN
        array = weights[:size] + row_ms * np.arange(size)
        if size > (beyond := LONGEST_DECODE + 1):
            array[beyond:] = np.maximum(array[LONGEST_DECODE], weights[beyond:size])
        return array

    def width(self, rows: int, context: int) -> int:
        """The number of rows, at least `rows`, that a step should have: more where that was
        measured to take clearly less time.
        """
        if not 0 < rows <= EACH or self.is_empty:
            return rows
        grain = (context + CONTEXT_GRAIN // 2) // CONTEXT_GRAIN
        widths = self._known_widths.get(grain)
        if widths is None:
            widths = self._known_widths[grain] = self._widths(self.curve(EACH, context))
        return widths[rows]

    def _widths(self, curve: Sequence[float]) -> list[int]:
        """By rows: the cheapest width that has them."""
        widths = list(range(len(curve)))
        cheapest: int | None = None  # of the wider ones that are known
        for rows in range(min(EACH, len(curve) - 1), 0, -1):
            if cheapest is not None and curve[cheapest] < FILL_BELOW * curve[rows]:
                widths[rows] = cheapest
            if self._count[rows - 1] >= GROWN and (
                cheapest is None or curve[rows] < curve[cheapest]
            ):
                cheapest = rows
        return widths

    def is_known(self, rows: int) -> bool:
        """Whether the cost of up to `rows` rows was measured well, or close beside."""
        if self._num_known is None:
            last = 0
            for knot, count in zip(KNOTS, self._count, strict=True):
                if knot > _reach(last):
                    break
                if count >= GROWN:
                    last = knot
            self._num_known = last
        return rows <= self._num_known or self._num_known < rows < _reach(self._num_known)

    def describe(self) -> dict[str, Any]:
        """Measured milliseconds by rows at no context, and of a row's attention to 1000 tokens;
        JSON-ready.
        """
        if self.is_empty:
            return {}
        scale = exp(self._level)
        rows = {str(n): round(scale * value, 4) for n, value in self._points(optimistic=False)}
        return {"rows": rows, "attention": round(1000.0 * scale * self._attention, 4)}

    def _grow(self, knot: int, expected: float, innovation: float) -> None:
        """Take a young cell from its few samples, of which one may be far too slow."""
        samples = self._young.setdefault(knot, [self._shape[knot]] * self._count[knot])
        samples.append(expected + innovation)
        samples.sort()
        if len(samples) < GROWN:
            self._shape[knot] = min(samples[0], expected + FIRST_INNOVATION)
        else:
            self._shape[knot] = self._young.pop(knot)[GROWN // 2]
        self._variance[knot] = NOISE / len(samples)

    def _note_surprise(self, innovation: float) -> None:
        """One slow step is an outlier; several in a row are a machine that others use now, or no
        more.
        """
        if abs(innovation) < SURPRISE:
            self._surprises = 0
        else:
            before = self._surprises if self._surprises * innovation > 0.0 else 0
            self._surprises = before + (1 if innovation > 0.0 else -1)
        if abs(self._surprises) >= MANY_SURPRISES:
            self._level_variance = max(self._level_variance, innovation * innovation)

    def _follow(self, knot: int, innovation: float, by_shape: float, by_attention: float) -> None:
        """Split an innovation between level, cell and attention; `by_...` are the derivatives."""
        level, shape = self._level_variance + LEVEL_DRIFT, self._variance[knot] + SHAPE_DRIFT
        attention = self._attention_variance + ATTENTION_DRIFT
        total = (
            level + by_shape * by_shape * shape + by_attention * by_attention * attention + NOISE
        )
        self._level += innovation * level / total
        by_width = innovation * by_shape * shape / total
        self._shape[knot] += by_width
        self._use.add(knot)
        self._level += self._use.balance(self._shape, knot, by_width)
        moved = self._attention + innovation * by_attention * attention / total
        self._attention = max(0.0, min(MOST_ATTENTION, moved))
        self._level_variance = level * (1.0 - level / total)
        self._variance[knot] = shape * (1.0 - by_shape * by_shape * shape / total)
        self._attention_variance = attention * (
            1.0 - by_attention * by_attention * attention / total
        )

    def _forget_width(self, knot: int) -> None:
        self._count[knot] = 0
        self._young.pop(knot, None)

    def _forget_curves(self) -> None:
        self._age = 0
        for known in (self._weights, self._curves, self._known_widths):
            known.clear()

    def _build(self, rows: int, *, optimistic: bool) -> NDArray[np.float64]:
        scale, points = exp(self._level), self._points(optimistic=optimistic)
        margin = OPTIMISTIC_MARGIN if optimistic else PRIOR_MARGIN
        first, last = points[0][0], points[-1][0]
        at, values, known = [0], [0.0], 0.0
        for k, knot in enumerate(KNOTS):
            high = scale * _read(points, knot, margin)
            if self._count[k]:
                known = high
            elif optimistic and first < knot < last:
                high = min(high, (1.0 - OPTIMISM) * high + OPTIMISM * known)
            at.append(knot)
            values.append(high)
            if knot >= rows:
                break
        slope = max(0.0, (values[-1] - values[-2]) / (at[-1] - at[-2]))
        widths = np.arange(max(rows, at[-1]) + 1)
        # and beyond the last knot
        return np.interp(widths, at, values) + slope * np.maximum(0, widths - at[-1])

    def _believe_text(self, knot: int) -> None:
        """A width is timed for the first time since the warm-up: it may be far from there."""
        prices = self._warm_up
        self._shape[knot] = prices.shape(knot, self._shape[knot], self._shape[0], prices.margin)
        self._variance[knot] = max(self._variance[knot], WIDTH_DOUBT)
        prices.see(knot)
        self._forget_curves()

    def _points(self, *, optimistic: bool) -> list[tuple[int, float]]:
        """(rows, ms / level) at the knots seen; young ones lower by their doubt if optimistic.

        Kernels like some widths, so narrow steps are as they are; wide ones never fall.
        """
        points, most = [], -inf
        margin = self._warm_up.margin
        for k, count in enumerate(self._count):
            if count:
                value = self._warm_up.shape(k, self._shape[k], self._shape[0], margin)
                if optimistic and count < GROWN:
                    value -= sqrt(self._variance[k])
                if KNOTS[k] > EACH:
                    value = most = max(most, value)
                points.append((KNOTS[k], exp(value)))
        return points


# The level is learned anew after a start, because the machine's load changes: see `_is_fresh`.
COST_TABLE = Fields(
    CostTable,
    _level=Number(-20.0, 20.0),
    _attention=Number(0.0, MOST_ATTENTION),
    _attention_variance=Number(0.0, MOST_ATTENTION),
    _shape=Values(len(KNOTS), Number(-20.0, 20.0)),
    _variance=Values(len(KNOTS), Number(1e-9, 1.0)),
    _count=Values(len(KNOTS), Count()),
)


def _reach(known: int) -> float:
    """The widest step that the knots up to `known` may be followed by without a hole."""
    return known + 1 if known < TOLD_APART else 1.5 * known


def _nearest_knot(rows: int) -> int:
    k = bisect_left(KNOTS, rows)
    if k == len(KNOTS):
        return k - 1
    return k - 1 if k and rows - KNOTS[k - 1] < KNOTS[k] - rows else k


def _read(points: list[tuple[int, float]], rows: int, margin: float) -> float:
    """Interpolate between measured points; `margin` is a row's price when only one is known."""
    first_rows, first = points[0]
    if rows <= first_rows:
        return first * (1.0 + PRIOR_MARGIN * (rows - 1)) / (1.0 + PRIOR_MARGIN * (first_rows - 1))
    last_rows, last = points[-1]
    if rows >= last_rows:
        return last + (rows - last_rows) * _slope_beyond(points, margin)
    right = bisect_left(points, (rows, 0.0))
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)


def _slope_beyond(points: list[tuple[int, float]], margin: float) -> float:
    (first_rows, first), (last_rows, last) = points[0], points[-1]
    if len(points) == 1:
        return margin * first / (1.0 + PRIOR_MARGIN * (first_rows - 1))
    slope = (last - first) / (last_rows - first_rows)
    least = OPTIMISTIC_MARGIN * last / last_rows  # the last one may be a width that kernels like
    return max(least, slope * (1.25 if margin == PRIOR_MARGIN else 0.5))
