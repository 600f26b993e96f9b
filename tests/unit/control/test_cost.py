"""The cost table: milliseconds by rows and context."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.control.cost import KNOTS, CostTable

TRUE = {1: 49.0, 2: 70.0, 3: 91.0, 4: 113.0, 6: 146.0, 8: 180.0, 12: 240.0, 16: 300.0}


def noisy(rng: random.Random, milliseconds: float) -> float:
    return milliseconds * rng.uniform(0.9, 1.1) * (3.0 if rng.random() < 0.02 else 1.0)


def test_estimates_follow_the_truth_through_noise_and_outliers() -> None:
    table, rng = CostTable(), random.Random(1)
    for _ in range(60):
        for rows, milliseconds in TRUE.items():
            table.observe(rows, 100, noisy(rng, milliseconds))
    plain = table.milliseconds(1, 100)
    assert plain is not None
    for rows, milliseconds in TRUE.items():
        measured = table.milliseconds(rows, 100)
        assert measured is not None
        assert measured / plain == pytest.approx(milliseconds / TRUE[1], rel=0.08)


def test_a_slow_first_step_is_forgotten() -> None:
    table = CostTable()
    table.observe(1, 100, 50.0)
    table.observe(4, 100, 330.0)
    for _ in range(6):
        table.observe(1, 100, 50.0)
        table.observe(4, 100, 110.0)
    assert table.milliseconds(4, 100) == pytest.approx(110.0, rel=0.15)


def test_one_outlier_moves_an_estimate_by_less_than_a_tenth() -> None:
    table = CostTable()
    for _ in range(20):
        table.observe(1, 100, 50.0)
    table.observe(1, 100, 5000.0)
    assert table.milliseconds(1, 100) == pytest.approx(50.0, rel=0.1)


def test_a_busy_machine_slows_every_row_count_alike() -> None:
    table = CostTable()
    for _ in range(20):
        table.observe(1, 100, 50.0)
        table.observe(4, 100, 110.0)
    for _ in range(60):
        table.observe(1, 100, 80.0)
    one, four = table.milliseconds(1, 100), table.milliseconds(4, 100)
    assert one is not None
    assert four is not None
    assert one == pytest.approx(80.0, rel=0.05)
    assert four / one > 1.7, "not measured while busy, yet it must not look cheap"


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(0.01, 1e5)), min_size=1, max_size=40), st.booleans())
def test_the_curve_never_falls_and_is_positive(samples: list[tuple[int, float]], optimistic: bool) -> None:
    table = CostTable()
    for rows, milliseconds in samples:
        table.observe(rows, 100, milliseconds)
    curve = table.curve(80, 100, optimistic=optimistic)
    assert len(curve) > 80
    assert curve[0] == 0.0
    assert curve[1] > 0.0
    assert all(b >= a * (1.0 - 1e-9) for a, b in itertools.pairwise(curve))


def test_unmeasured_rows_lie_between_their_neighbours_and_cost_more_beyond_the_last() -> None:
    table = CostTable()
    for _ in range(5):
        table.observe(1, 100, 10.0)
        table.observe(8, 100, 24.0)
    curve = table.curve(16, 100)
    assert curve[1] < curve[4] < curve[8]
    assert curve[16] - curve[8] > curve[8] - curve[1], "extrapolation is conservative"
    assert table.curve(16, 100, optimistic=True)[16] < curve[16]


def test_a_new_context_borrows_the_shape_and_takes_its_level_from_the_first_step() -> None:
    table = CostTable()
    for _ in range(20):
        table.observe(1, 100, 50.0)
        table.observe(4, 100, 110.0)
    table.observe(1, 30000, 75.0)
    one, four = table.milliseconds(1, 30000), table.milliseconds(4, 30000)
    assert one is not None
    assert four is not None
    assert one == pytest.approx(75.0, rel=0.06)
    assert four / one == pytest.approx(110 / 50, rel=0.06)
    assert table.milliseconds(1, 100) == pytest.approx(50.0, rel=0.02)


def test_before_any_measurement_there_is_a_prior() -> None:
    table = CostTable()
    assert table.milliseconds(1, 100) is None
    assert table.curve(4, 100) == pytest.approx([0.0, 1.0, 1.6, 2.2, 2.8])


def test_nonsense_measurements_are_ignored() -> None:
    table = CostTable()
    for milliseconds in (0.0, -1.0, float("nan"), float("inf")):
        table.observe(1, 100, milliseconds)
    table.observe(0, 100, 5.0)
    assert table.milliseconds(1, 100) is None


def test_more_rows_than_the_last_knot_are_priced() -> None:
    table = CostTable()
    table.observe(1, 100, 10.0)
    table.observe(KNOTS[-1] + 1000, 100, 5000.0)
    assert len(table.curve(KNOTS[-1] - 5, 100)) > KNOTS[-1] - 5
