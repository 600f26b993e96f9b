from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from headstart.structures.topk import top_k

# short, in columns, with a rest, with tall columns
SIZES = [1, 7, 64, 4095, 4096, 4097, 32_000, 65_537, 152_001]


def check(values: NDArray[np.float32], k: int) -> None:
    """A full stable sort says the same."""
    expected = np.argsort(-values, kind="stable")[:k]
    ids, scores = top_k(values, k)
    assert ids.tolist() == expected.tolist()
    assert np.array_equal(scores, values[expected], equal_nan=True)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [1, 2, 40, 300])
def test_the_best_are_those_of_a_full_sort_in_its_order(size: int, k: int) -> None:
    random = np.random.default_rng(size + k)
    for values in (random.normal(0, 3, size), np.sort(random.normal(0, 3, size)), -np.arange(size)):
        check(values.astype(np.float32), k)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [1, 10, 40])
def test_of_equal_entries_the_first_are_taken_in_order(size: int, k: int) -> None:
    values = np.random.default_rng(0).integers(0, 5, size).astype(np.float32)
    values[::7] = -np.inf
    check(values, k)
    check(np.zeros(size, np.float32), k)
    values[:] = -np.inf
    values[size // 2] = 1.0
    check(values, k)


@pytest.mark.parametrize("size", [100, 10_000, 70_000])
def test_numbers_come_before_nans_that_hide_whole_columns(size: int) -> None:
    values = np.full(size, np.nan, np.float32)
    check(values, 10)
    values[size // 3 : size // 3 + 20] = np.arange(20)
    check(values, 10)
