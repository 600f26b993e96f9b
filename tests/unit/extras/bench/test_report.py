"""Means, their errors, and Markdown."""

from __future__ import annotations

import math
from random import Random

import pytest

from headstart.extras.bench.report import MeanRatio, quantile, table_head, table_row


def test_the_error_of_many_values_is_the_standard_error() -> None:
    values = [1.0, 2.0, 3.0] * 1000
    assert MeanRatio.of(values).error == pytest.approx(math.sqrt(2 / 3 / 3000), rel=1e-3)


@pytest.mark.parametrize("num_values", [2, 3, 5, 10, 11, 30])
def test_two_errors_miss_the_truth_once_in_twenty_times_however_few_values(num_values: int) -> None:
    random, num_runs = Random(num_values), 5_000
    misses = 0
    for _ in range(num_runs):
        found = MeanRatio.of([random.gauss(1.0, 0.1) for _ in range(num_values)])
        misses += found.verdict != "no difference"
    assert 0.035 < misses / num_runs < 0.06


def test_a_ratio_and_its_inverse_average_to_one() -> None:
    assert MeanRatio.of_ratios([2.0, 0.5]).mean == pytest.approx(1.0)


def test_one_value_has_no_error() -> None:
    assert str(MeanRatio.of([1.5])) == "1.50"


def test_a_quantile_is_one_of_the_values() -> None:
    assert [quantile([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 1.0)] == [1.0, 2.0, 3.0]
    assert quantile([], 0.5) == 0.0


def test_a_table_has_a_cell_for_each_column() -> None:
    lines = [*table_head("name", "ratio").splitlines(), table_row("auto", MeanRatio(1.2, 0.05))]
    assert lines == ["| name | ratio |", "| --- | --- |", "| auto | 1.20 ± 0.05 |"]
