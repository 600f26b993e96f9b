from __future__ import annotations

import numpy as np
import pytest

from headstart.structures.topk import top_k_ids


@pytest.mark.parametrize("size", [1, 7, 64, 4095, 4096, 4097, 32_000, 152_001])
@pytest.mark.parametrize("k", [1, 2, 40, 300])
def test_the_ids_are_those_of_a_full_sort(size: int, k: int) -> None:
    random = np.random.default_rng(size + k)
    for values in (random.normal(0, 3, size), np.sort(random.normal(0, 3, size)), -np.arange(size)):
        values = values.astype(np.float32)
        ids = top_k_ids(values, k)
        assert len(set(ids.tolist())) == len(ids) == min(k, size)
        assert sorted(values[ids].tolist()) == sorted(np.sort(values)[size - min(k, size) :].tolist())


@pytest.mark.parametrize("size", [100, 10_000])
def test_ties_and_infinities_give_the_right_values_and_the_same_ids_every_time(size: int) -> None:
    values = np.random.default_rng(0).integers(0, 5, size).astype(np.float32)
    values[::7] = -np.inf
    ids = top_k_ids(values, 10)
    assert (values[ids] == 4).all()
    assert ids.tolist() == top_k_ids(values.copy(), 10).tolist()
