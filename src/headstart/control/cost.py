"""What a step of the target costs: milliseconds by rows in the batch and context, learned online.

Per context bucket, log ms(rows) = level + shape[rows]. The level follows whatever slows every step
alike (other programs, heat); the shape is what planning needs and moves slowly. A step that took
`ms` splits its innovation by the variances, a Kalman filter with a diagonal covariance:

    e = log ms - level - shape[rows], cut to +-25 %
    level += e V_level / S;   shape[rows] += e V_rows / S;   S = V_level + V_rows + noise

A cell starts as the lowest of its first two samples (disturbed steps are slow), then their median.

Shapes are kept at knots, made monotone by weighted isotonic regression and read by linear
interpolation in rows. Past the last knot seen, a row costs a quarter more than the rows so far did
on average; optimistically half as much. A context bucket seen for the first time borrows the shape
of the nearest one, so that its first step moves all of its curve by one ratio.
"""

from __future__ import annotations

from bisect import bisect_left
from math import exp, log, sqrt
from typing import Any

from headstart.control.state import floats

KNOTS = (*range(1, 17), 18, 20, 22, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
CONTEXT_EDGES = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)

NOISE = 0.01  # variance of log ms of one step: 10 %
LEVEL_DRIFT, SHAPE_DRIFT = 0.0002, 0.00005  # variance added per step
SHAPE_VARIANCE = 0.09  # of a cell never seen
MAX_INNOVATION, FIRST_INNOVATION = log(1.25), log(1.5)
GROWN = 3  # samples after which a cell counts as known: their median
PRIOR_MARGIN = 0.6  # cost of a further row, in single rows, when only one row count was seen
OPTIMISTIC_MARGIN = 0.05
HOPE = 0.25  # optimism between two measured row counts: how far the curve may stay flat before it jumps
REBUILD_EVERY = 16  # steps between two readings of the shape


class _Curve:
    """One context bucket. `shape`, `variance`, `count` have one entry per knot; count 0: never seen."""

    __slots__ = (
        "_age",
        "_lists",
        "_longest",
        "_num_known",
        "_young",
        "count",
        "is_fresh",
        "level",
        "level_variance",
        "shape",
        "variance",
    )

    def __init__(self) -> None:
        self.level, self.level_variance = 0.0, NOISE
        self.is_fresh = True  # the shape may be borrowed or loaded, the level is not known
        self.shape = [0.0] * len(KNOTS)
        self.variance = [SHAPE_VARIANCE] * len(KNOTS)
        self.count = [0] * len(KNOTS)
        self._age = self._longest = self._num_known = 0
        self._lists: dict[bool, list[float]] = {}
        self._young: dict[int, list[float]] = {}  # knot -> its first samples, sorted

    def borrow(self, other: _Curve) -> None:
        """Start with another bucket's shape; the level follows with the first step."""
        self.level, self.shape, self.count = other.level, list(other.shape), list(other.count)
        self.variance = [min(SHAPE_VARIANCE, v + NOISE) for v in other.variance]

    def observe(self, rows: int, milliseconds: float) -> None:
        knot = _nearest_knot(rows)
        seen = self.count[knot]
        at_knot = expected = self.shape[knot]
        if any(self.count) and (not seen or rows != KNOTS[knot]):
            points = self._points(optimistic=False)
            expected, at_knot = (log(_read(points, r, PRIOR_MARGIN)) for r in (rows, KNOTS[knot]))
        if self.is_fresh:
            self.level, self.is_fresh = log(milliseconds) - expected, False
        innovation = log(milliseconds) - self.level - expected
        if seen < GROWN:
            self._grow(knot, at_knot, innovation)
            self._lists.pop(True, None)
        else:
            self._follow(knot, max(-MAX_INNOVATION, min(MAX_INNOVATION, innovation)))
        self.count[knot] = seen + 1
        self._age += 1
        if seen < GROWN or self._age >= REBUILD_EVERY:  # a young cell may move far
            self._lists.pop(False, None)

    def _grow(self, knot: int, expected: float, innovation: float) -> None:
        """Take a young cell from its few samples, of which one may be far too slow."""
        samples = self._young.setdefault(knot, [self.shape[knot]] * self.count[knot])
        samples.append(expected + innovation)
        samples.sort()
        if len(samples) < GROWN:
            self.shape[knot] = min(samples[0], expected + FIRST_INNOVATION)
        else:
            self.shape[knot] = self._young.pop(knot)[GROWN // 2]
        self.variance[knot] = NOISE / len(samples)

    def _follow(self, knot: int, innovation: float) -> None:
        """Split an innovation between the level and a cell by their variances."""
        shape_variance = self.variance[knot] + SHAPE_DRIFT
        level_variance = self.level_variance + LEVEL_DRIFT
        total = shape_variance + level_variance + NOISE
        self.level += innovation * level_variance / total
        self.shape[knot] += innovation * shape_variance / total
        self.level_variance = level_variance * (1.0 - level_variance / total)
        self.variance[knot] = shape_variance * (1.0 - shape_variance / total)

    def milliseconds(self, rows: int) -> float:
        return exp(self.level) * _read(self._points(optimistic=False), rows, PRIOR_MARGIN)

    def read(self, rows: int, *, optimistic: bool) -> list[float]:
        """Milliseconds of 0, 1, ... at least `rows` rows; not to be changed."""
        cached = self._lists.get(optimistic)
        if cached is not None and len(cached) > rows:
            return cached
        self._age = 0
        self._longest = max(self._longest, rows)
        cached = self._lists[optimistic] = self._build(self._longest, optimistic=optimistic)
        return cached

    def is_known(self, rows: int) -> bool:
        """Whether all knots up to the one nearest to `rows` have been seen often enough."""
        knot, known = _nearest_knot(rows), self._num_known
        while known <= knot and self.count[known] >= GROWN:
            known += 1
        self._num_known = known  # counts never fall
        return knot < known

    def _build(self, rows: int, *, optimistic: bool) -> list[float]:
        scale, points = exp(self.level), self._points(optimistic=optimistic)
        margin = OPTIMISTIC_MARGIN if optimistic else PRIOR_MARGIN
        first, last = points[0][0], points[-1][0]
        values, known = [0.0], 0.0
        for k, knot in enumerate(KNOTS):
            start, low = len(values) - 1, values[-1]
            high = scale * _read(points, knot, margin)
            if self.count[k]:
                known = high
            elif optimistic and first < knot < last:
                high = max(low, (1.0 - HOPE) * high + HOPE * known)
            slope = (high - low) / (knot - start)
            values.extend(low + slope * i for i in range(1, knot - start + 1))
            if knot >= rows:
                break
        return values

    def _points(self, *, optimistic: bool) -> list[tuple[int, float]]:
        """(rows, ms / level) at the knots seen, monotone; young ones lower by their doubt if optimistic."""
        seen = [k for k, count in enumerate(self.count) if count]
        values = [self.shape[k] for k in seen]
        if optimistic:
            values = [v - (self.count[k] < GROWN) * sqrt(self.variance[k]) for k, v in zip(seen, values, strict=True)]
        values = _isotonic(values, [1.0 / self.variance[k] for k in seen])
        return [(KNOTS[k], exp(v)) for k, v in zip(seen, values, strict=True)]


class CostTable:
    """Milliseconds of a decode by rows and context."""

    def __init__(self) -> None:
        self._curves: dict[int, _Curve] = {}

    def observe(self, rows: int, context: int, milliseconds: float) -> None:
        """Learn from one decode."""
        if rows < 1 or not 0.0 < milliseconds < 1e7:
            return
        bucket = bisect_left(CONTEXT_EDGES, context)
        curve = self._curves.get(bucket)
        if curve is None:
            curve = _Curve()
            if self._curves:
                curve.borrow(self._nearest(bucket))
            self._curves[bucket] = curve
        curve.observe(rows, milliseconds)

    def milliseconds(self, rows: int, context: int) -> float | None:
        """Expected time of a decode; None before anything was observed."""
        return self._nearest(bisect_left(CONTEXT_EDGES, context)).milliseconds(rows) if self._curves else None

    def curve(self, rows: int, context: int, *, optimistic: bool = False) -> list[float]:
        """Milliseconds by number of rows, from 0 to at least `rows`. Read only.

        Before any measurement: one row costs 1, each further one PRIOR_MARGIN.
        """
        curve = self._curves.get(bisect_left(CONTEXT_EDGES, context))
        if curve is None:
            if not self._curves:
                return [0.0] + [1.0 + PRIOR_MARGIN * i for i in range(rows)]
            curve = self._nearest(bisect_left(CONTEXT_EDGES, context))
        return curve.read(rows, optimistic=optimistic)

    def is_known(self, rows: int, context: int) -> bool:
        """Whether every number of rows up to this was measured a few times."""
        return bool(self._curves) and self._nearest(bisect_left(CONTEXT_EDGES, context)).is_known(rows)

    def describe(self) -> dict[str, Any]:
        """Measured milliseconds per context bucket and rows, JSON-ready."""
        return {
            _bucket_name(bucket): {
                str(rows): round(exp(curve.level) * value, 4) for rows, value in curve._points(optimistic=False)
            }
            for bucket, curve in sorted(self._curves.items())
        }

    def to_json(self) -> dict[str, Any]:
        """Everything learned."""
        return {
            "knots": list(KNOTS),
            "contexts": list(CONTEXT_EDGES),
            "curves": {
                str(bucket): {
                    "level": curve.level,
                    "shape": curve.shape,
                    "variance": curve.variance,
                    "count": curve.count,
                }
                for bucket, curve in self._curves.items()
            },
        }

    def from_json(self, state: dict[str, Any]) -> None:
        """Take over a saved table; the level is learned anew, because the machine's load changes.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: damaged or of other knots; nothing was changed.
        """
        if state["knots"] != list(KNOTS) or state["contexts"] != list(CONTEXT_EDGES):
            raise ValueError("the cost table has other knots")
        curves = {}
        for bucket, saved in state["curves"].items():
            if not 0 <= int(bucket) <= len(CONTEXT_EDGES):
                raise ValueError(f"context bucket {bucket} does not exist")
            curve = curves[int(bucket)] = _Curve()
            (curve.level,) = floats([saved["level"]], 1, -20.0, 20.0)
            curve.shape = floats(saved["shape"], len(KNOTS), -20.0, 20.0)
            curve.variance = floats(saved["variance"], len(KNOTS), 1e-9, 1.0)
            curve.count = [int(count) for count in floats(saved["count"], len(KNOTS), 0.0)]
        self._curves = curves

    def _nearest(self, bucket: int) -> _Curve:
        curve = self._curves.get(bucket)
        return curve if curve is not None else self._curves[min(self._curves, key=lambda b: abs(b - bucket))]


def _nearest_knot(rows: int) -> int:
    k = bisect_left(KNOTS, rows)
    if k == len(KNOTS):
        return k - 1
    return k - 1 if k and rows - KNOTS[k - 1] < KNOTS[k] - rows else k


def _bucket_name(bucket: int) -> str:
    return f"<={CONTEXT_EDGES[bucket]}" if bucket < len(CONTEXT_EDGES) else f">{CONTEXT_EDGES[-1]}"


def _isotonic(values: list[float], weights: list[float]) -> list[float]:
    """The nearest list that never falls, in weighted squares: pool adjacent violators, O(n)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        size = 1
        while pools and pools[-1][0] > value:
            other, other_weight, other_size = pools.pop()
            value = (value * weight + other * other_weight) / (weight + other_weight)
            weight, size = weight + other_weight, size + other_size
        pools.append((value, weight, size))
    return [value for value, _, size in pools for _ in range(size)]


def _read(points: list[tuple[int, float]], rows: int, margin: float) -> float:
    """Interpolate between measured points; `margin` is the price of a row when only one is known."""
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
    return (last - first) / (last_rows - first_rows) * (1.25 if margin == PRIOR_MARGIN else 0.5)
