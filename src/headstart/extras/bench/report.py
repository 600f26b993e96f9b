"""Markdown tables, and means with their errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# 97.5 % of Student's t with 1, 2, ... degrees of freedom, divided by 1.96 (normal distribution)
_FEW = (6.48, 2.195, 1.624, 1.417, 1.312, 1.248, 1.206, 1.177, 1.154)


def table_head(*columns: str) -> str:
    """The first two lines of a Markdown table."""
    return f"{table_row(*columns)}\n|{' --- |' * len(columns)}"


def table_row(*cells: object) -> str:
    """A line of a Markdown table; numbers with a fraction are shown in two digits."""
    shown = (f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells)
    return f"| {' | '.join(shown)} |"


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean, enlarged for few values: twice of it on either side covers 95 %.

    NaN for fewer than two values. Source: Student 1908, "The probable error of a mean".
    """
    freedom = len(values) - 1
    if freedom < 1:
        return math.nan
    factor = _FEW[freedom - 1] if freedom <= len(_FEW) else 1.0 + 1.25 / freedom
    return factor * statistics.stdev(values) / math.sqrt(len(values))


class MeanRatio(NamedTuple):
    """A mean and its error (`standard_error`), which is NaN if unknown."""

    mean: float
    error: float

    @classmethod
    def of_ratios(cls, ratios: Sequence[float]) -> MeanRatio:
        """The geometric mean, with the error of the logarithms times the mean."""
        logs = [math.log(ratio) for ratio in ratios]
        mean = math.exp(statistics.fmean(logs))
        return cls(mean, mean * standard_error(logs))

    @classmethod
    def of_means(cls, means: Sequence[MeanRatio]) -> MeanRatio:
        """The geometric mean of independent ratios."""
        mean = statistics.geometric_mean([one.mean for one in means])
        return cls(mean, mean * math.hypot(*(one.error / one.mean for one in means)) / len(means))

    @property
    def verdict(self) -> str:
        """Which way a ratio differs from 1, by more than twice its error."""
        if math.isnan(self.error) or abs(self.mean - 1.0) <= 2.0 * self.error:
            return "no difference"
        return "faster" if self.mean > 1.0 else "slower"

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if math.isnan(self.error) else f" ± {self.error:.2f}")
