"""What the decodes of a warm-up say about the cost of a step."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

# prior: a row's attention to a token, in single rows without context
ATTENTION, ATTENTION_VARIANCE = 5e-5, 1e-8
REFERENCE_ROWS = 2  # of a warm-up: a single row often has a kernel of its own


class Sample(NamedTuple):
    """One decode of a warm-up."""

    rows: int
    context: int  # tokens in the cache before it
    milliseconds: float
    reference_ms: float  # of REFERENCE_ROWS right beside it, at the same context


def attention_of(samples: Sequence[Sample]) -> float:
    """A row's attention to one token, in references at no context.

    With r = ms / reference ms beside it, n rows, m reference rows and a context c, r (1 + a m c) =
    shape + a n c. Two samples of equal n give

        a = (r2 - r1) / (c2 (n - m r2) - c1 (n - m r1))

    A pair weighs as much as the square of denominator / r: how little a relative error in r moves
    it. Their mean is drawn to the prior as far as they contradict each other.
    """
    pairs = []
    for two in samples:
        for one in samples:
            if (
                one.rows == two.rows
                and one.context < two.context
                and one.reference_ms > 0.0 < two.reference_ms
            ):
                ratio, other = (
                    one.milliseconds / one.reference_ms,
                    two.milliseconds / two.reference_ms,
                )
                lever = two.context * (two.rows - REFERENCE_ROWS * other)
                lever -= one.context * (one.rows - REFERENCE_ROWS * ratio)
                if lever > 0.0:
                    pairs.append(((other - ratio) / lever, (lever / max(ratio, other)) ** 2))
    prior, variance = ATTENTION / REFERENCE_ROWS, ATTENTION_VARIANCE / REFERENCE_ROWS**2
    if not pairs:
        return prior
    weights = sum(weight for _, weight in pairs)
    mean = sum(weight * attention for attention, weight in pairs) / weights
    spread = sum(weight * (attention - mean) ** 2 for attention, weight in pairs) / len(pairs)
    doubt = max(spread, 0.002) / weights  # at least that of a difference of two log times
    return max(0.0, (mean * variance + prior * doubt) / (variance + doubt))


def widths_of(samples: Sequence[Sample], attention: float) -> dict[int, float]:
    """What decodes take by their rows, relative to REFERENCE_ROWS, at no context.

    attention: a row's to one token, in references at no context.
    """
    ratios: dict[int, list[float]] = {}
    for s in samples:
        ratio = s.milliseconds / s.reference_ms
        weights = ratio - attention * s.context * (s.rows - REFERENCE_ROWS * ratio)
        ratios.setdefault(s.rows, []).append(max(0.1, weights))
    return {rows: median(measured) for rows, measured in ratios.items()} | {REFERENCE_ROWS: 1.0}
