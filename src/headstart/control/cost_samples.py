"""What the decodes of a warm-up say about the cost of a step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from statistics import median
from typing import NamedTuple

# prior: a row's attention to a token, in single rows without context
ATTENTION, ATTENTION_DOUBT = 5e-5, 1e-4
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

    by least squares: an error in r of 5 %, and of ATTENTION_DOUBT in what is thought beforehand.
    """
    prior = ATTENTION / REFERENCE_ROWS
    weights = (0.05 * REFERENCE_ROWS / ATTENTION_DOUBT) ** 2
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
