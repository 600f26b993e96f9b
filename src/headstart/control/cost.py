"""Cost, the second of control's three instruments: what a step of the target takes.

In: rows of the batch and context. Out: milliseconds. Learned from every decode, and at the first
start from a warm-up.

Weights are read once a step and multiplied once a row; attention reads each row's own context:

    ms(rows, context) = e^level (e^shape[rows] + attention * rows * context)

with `context` in tokens per row. Prompts are read by other kernels: their attention counts as
weights. Attention is measured in the warm-up. The level follows whatever slows every step alike
(other programs, heat); the shape is what planning needs and moves slowly. With e = log ms - log
expected, cut to +-40 %,

    level     += (LEVEL_RATE + |trend|) e
    shape     += SHAPE_RATE (e - trend)
    trend     += TREND_RATE (e - trend)

The trend is what steps of all widths have in common. It is left out of the shape: with a load that
rises suddenly and falls slowly, the level would climb and the shape of the widths in use sink for
ever, and widths not seen meanwhile would look dearer with it. While the trend is large, the machine
has changed its speed, and the level follows at once.

A cell of the shape starts as the lowest of its first two samples (disturbed steps are slow), then
their median. Shapes are kept at knots and read by linear interpolation in rows. Past the last knot
seen, a row costs half of what the rows so far did on average: what is thought too dear is never
tried, and the first step that has more rows corrects what is thought too cheap.

Kernels like some widths: on two cores 3 rows of Q4_0 take 36 ms and 4 rows 21. So each narrow width
is kept as it is, and where steps may be filled, planning uses the cost of *at least* n rows: that
of the cheapest wider step, if it was measured and takes clearly less (`width`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import ceil, exp, inf, log
from statistics import median
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headstart.control.cost_samples import (
    ATTENTION,
    REFERENCE_ROWS,
    Sample,
    attention_of,
    widths_of,
)

EACH = 32  # up to so many rows each width is kept as it is
KNOTS = (
    *range(1, EACH + 1),
    *(40, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096),
)

LEVEL_RATE, SHAPE_RATE, TREND_RATE = 0.15, 0.05, 0.2  # of all widths, one, their trend
MAX_INNOVATION = log(1.5)
GROWN = 3  # samples after which a cell counts as known: their median
PRIOR_MARGIN = 0.6  # cost of a further row, in single rows, before anything was seen
TRIED_MARGIN = 0.2  # the same when one width was seen: low, so that a wider one is tried
MOST_ATTENTION = 1e-2  # bound of a damaged measurement
LONGEST_DECODE = 64  # rows; longer batches read prompts
# a wider step must take less than this to be taken instead: noise of the medians of two widths
FILL_BELOW = 0.95
CONTEXT_GRAIN = 64  # tokens; a curve is read for contexts rounded to this


class CostTable:
    """Milliseconds of a decode by rows and context, tokens per row."""

    # The level is learned anew after a start, because the machine's load changes (`_is_fresh`).
    SAVED: ClassVar = ("_level", "_attention", "_shape", "_count")

    def __init__(self) -> None:
        self._level = self._trend = 0.0  # log ms
        self._is_fresh = True  # the shape may be loaded, the level is not known
        self._shape = [0.0] * len(KNOTS)
        self._count = [0] * len(KNOTS)  # 0: never seen
        self._attention = ATTENTION
        self._young: dict[int, list[float]] = {}  # knot -> its first samples, sorted
        self._age = 0
        self._num_known: int | None = None  # rows that are known; None: to be counted again
        self._weights: NDArray[np.float64] | None = None  # milliseconds at no context
        # by whether steps may be filled, and grains of context
        self._curves: dict[tuple[bool, int], list[float]] = {}
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
        at_knot = expected = self._shape[knot]
        if (not seen or rows != KNOTS[knot]) and not self.is_empty:
            points = self._points()
            expected, at_knot = (log(_read(points, r)) for r in (rows, KNOTS[knot]))
        lever = rows * context if rows <= LONGEST_DECODE else 0
        attention = self._attention * lever
        total = exp(expected) + attention
        if self._is_fresh:
            self._level, self._is_fresh = log(milliseconds / total), False
        if seen < GROWN:
            relative = milliseconds / exp(self._level)
            if attention > 0.5 * relative:  # it is not believed to be more of a first step
                attention = 0.5 * relative
                self._attention = attention / lever
            self._grow(knot, at_knot, log(relative - attention) - expected)
        else:
            innovation = log(milliseconds / total) - self._level
            innovation = max(-MAX_INNOVATION, min(MAX_INNOVATION, innovation))
            self._follow(knot, innovation)
        self._count[knot] = seen + 1
        if seen + 1 == GROWN:
            self._num_known = None
        self._age += 1
        may_move_far = seen < GROWN or abs(self._trend) > LEVEL_RATE
        if may_move_far or self._age >= 16:  # building it takes as long as some steps of control
            self._forget_curves()

    def calibrate(self, samples: Sequence[Sample]) -> None:
        """Learn from a warm-up, in which the context grows and single rows come first; it replaces
        what was known of its widths.

        Samples of equal rows at two contexts tell what attention costs; what is left is the shape.
        """
        attention = attention_of(samples)
        reference = median(
            s.reference_ms / (1.0 + REFERENCE_ROWS * attention * s.context) for s in samples
        )
        if self._is_fresh:  # what was loaded knows too little, and its level would be a guess
            self._count = [0] * len(KNOTS)
        for rows, ratio in widths_of(samples, attention).items():
            self._forget_width(_nearest_knot(rows))
            for _ in range(GROWN):  # each was compared with its neighbours in time: known at once
                self.observe(rows, 0, reference * ratio)
        self._attention = min(MOST_ATTENTION, attention * reference / exp(self._level))

    def milliseconds(self, rows: int, context: int) -> float | None:
        """Expected time of a decode; None before anything was observed."""
        return None if self.is_empty else self.curve(rows, context)[rows]

    def curve(self, rows: int, context: int, *, can_fill: bool = False) -> list[float]:
        """Milliseconds by number of rows, from 0 to at least `rows`. Read only.

        Before any measurement: one row costs 1, each further one PRIOR_MARGIN.

        can_fill: a step may be made wider where that is cheaper: the cost of at least n rows.
        """
        grain = (context + CONTEXT_GRAIN // 2) // CONTEXT_GRAIN
        curve = self._curves.get((can_fill, grain))
        if curve is not None and len(curve) > rows:
            return curve
        if self.is_empty:
            return [0.0] + [1.0 + PRIOR_MARGIN * i for i in range(rows)]
        rows = max(rows, EACH)  # what a step may be filled up to
        if can_fill:
            plain = self.curve(rows, context)
            curve = [plain[width] for width in self._widths(plain)]
        else:
            curve = self._read(rows, grain).tolist()  # item by item
        self._curves[can_fill, grain] = curve
        return curve

    def _read(self, rows: int, grain: int) -> NDArray[np.float64]:
        size = EACH * (rows // EACH + 1)  # the next step may ask for more
        if self._weights is None or len(self._weights) < size:
            self._weights = self._build(4 * size)
        row_ms = exp(self._level) * self._attention * grain * CONTEXT_GRAIN
        array = self._weights[:size] + row_ms * np.arange(size)
        if size > (beyond := LONGEST_DECODE + 1):
            array[beyond:] = np.maximum(array[LONGEST_DECODE], self._weights[beyond:size])
        return array

    def width(self, rows: int, context: int) -> int:
        """The number of rows, at least `rows`, that a step should have: more where that was
        measured to take clearly less time.
        """
        if not 0 < rows <= EACH:
            return rows
        grain = (context + CONTEXT_GRAIN // 2) // CONTEXT_GRAIN
        widths = self._known_widths.get(grain)
        if widths is None:
            if self.is_empty:
                return rows
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
            for knot, num_seen in zip(KNOTS, self._count, strict=True):
                if knot > _reach(last):
                    break
                if num_seen >= GROWN:
                    last = knot
            self._num_known = max(last, ceil(_reach(last)) - 1)
        return rows <= self._num_known

    def describe(self) -> dict[str, Any]:
        """Measured milliseconds by rows at no context, and of a row's attention to 1000 tokens;
        JSON-ready.
        """
        if self.is_empty:
            return {}
        scale = exp(self._level)
        rows = {str(n): round(scale * value, 4) for n, value in self._points()}
        return {"rows": rows, "attention": round(1000.0 * scale * self._attention, 4)}

    def _grow(self, knot: int, expected: float, innovation: float) -> None:
        """Take a young cell from its few samples, of which one may be far too slow."""
        samples = self._young.setdefault(knot, [self._shape[knot]] * self._count[knot])
        samples.append(expected + innovation)
        samples.sort()
        if len(samples) < GROWN:
            self._shape[knot] = min(samples[0], expected + MAX_INNOVATION)
        else:
            self._shape[knot] = self._young.pop(knot)[GROWN // 2]

    def _follow(self, knot: int, innovation: float) -> None:
        """Share an innovation."""
        self._level += min(1.0, LEVEL_RATE + abs(self._trend)) * innovation
        own = innovation - self._trend
        self._trend += TREND_RATE * own
        self._shape[knot] += SHAPE_RATE * own

    def _forget_width(self, knot: int) -> None:
        self._count[knot] = 0
        self._young.pop(knot, None)

    def _forget_curves(self) -> None:
        self._age, self._weights = 0, None
        self._curves.clear()
        self._known_widths.clear()

    def _build(self, rows: int) -> NDArray[np.float64]:
        points, widths = self._points(), np.arange(rows + 1)
        last, slope = points[-1][0], _slope_beyond(points)
        if points[0][0] > 1:
            points.insert(0, (1, _read(points, 1)))
        at, values = zip((0, 0.0), *points, strict=True)
        weights: NDArray[np.float64] = np.interp(widths, at, values)
        return exp(self._level) * (weights + slope * np.maximum(0, widths - last))

    def _points(self) -> list[tuple[int, float]]:
        """(rows, ms / level) at the knots seen.

        Kernels like some widths, so narrow steps are as they are; wide ones never fall.
        """
        points, most = [], -inf
        for k, num_seen in enumerate(self._count):
            if num_seen:
                value = self._shape[k]
                if KNOTS[k] > EACH:
                    value = most = max(most, value)
                points.append((KNOTS[k], exp(value)))
        return points


def _reach(known: int) -> float:
    """The widest step that the knots up to `known` may be followed by without a hole."""
    return known + 1 if known < 16 else 1.5 * known  # each narrow width has to be seen itself


def _nearest_knot(rows: int) -> int:
    k = bisect_left(KNOTS, rows)
    if k == len(KNOTS):
        return k - 1
    return k - 1 if k and rows - KNOTS[k - 1] < KNOTS[k] - rows else k


def _read(points: list[tuple[int, float]], rows: int) -> float:
    """Interpolate between measured points."""
    first_rows, first = points[0]
    if rows <= first_rows:
        return first * (1.0 + PRIOR_MARGIN * (rows - 1)) / (1.0 + PRIOR_MARGIN * (first_rows - 1))
    last_rows, last = points[-1]
    if rows >= last_rows:
        return last + (rows - last_rows) * _slope_beyond(points)
    right = bisect_left(points, (rows, 0.0))
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)


def _slope_beyond(points: list[tuple[int, float]]) -> float:
    (first_rows, first), (last_rows, last) = points[0], points[-1]
    if len(points) == 1:
        return TRIED_MARGIN * first / (1.0 + PRIOR_MARGIN * (first_rows - 1))
    least = 0.05 * last / last_rows  # the last one may be a width that kernels like
    return max(least, 0.5 * (last - first) / (last_rows - first_rows))
