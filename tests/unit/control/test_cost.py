"""The cost table: milliseconds by rows and context, also where times jump a hundredfold."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest
from benchmarks.lib.steps import SlotDraft, assign_rows, decode, lengths
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headstart.control.controller import Controller
from headstart.control.cost import EACH, KNOTS, REFERENCE_ROWS, CostTable, Sample
from headstart.control.state import encode, restore
from headstart.control.values import Step

TRUE = {1: 49.0, 2: 70.0, 3: 91.0, 4: 113.0, 6: 146.0, 8: 180.0, 12: 240.0, 16: 300.0}


def noisy(rng: random.Random, milliseconds: float) -> float:
    return milliseconds * rng.uniform(0.9, 1.1) * (3.0 if rng.random() < 0.02 else 1.0)


def test_estimates_follow_the_truth_through_noise_and_outliers() -> None:
    table, rng = CostTable(), random.Random(1)
    for _ in range(60):
        for rows, milliseconds in TRUE.items():
            table.observe(rows, 100, noisy(rng, milliseconds))
    plain = table.milliseconds(1, 100)
    for rows, milliseconds in TRUE.items():
        measured = table.milliseconds(rows, 100)
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
    assert one == pytest.approx(80.0, rel=0.05)
    assert four / one > 1.7, "not measured while busy, yet it must not look cheap"


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_machine_that_changes_its_speed_is_believed_after_a_few_steps(factor: float) -> None:
    table = CostTable()
    for _ in range(100):
        for rows in (1, 4, 8):
            table.observe(rows, 0, TRUE[rows])
    for rows in (1, 4, 1, 8, 4, 1, 4):
        table.observe(rows, 0, TRUE[rows] * factor)
    for rows in (1, 4, 8):
        assert table.milliseconds(rows, 0) == pytest.approx(TRUE[rows] * factor, rel=0.1)


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(0.01, 1e5)), min_size=1, max_size=40))
def test_the_curve_is_positive_and_never_falls_where_steps_are_wide(samples) -> None:
    table = CostTable()
    for rows, milliseconds in samples:
        table.observe(rows, 100, milliseconds)
    curve = table.curve(80, 100)
    assert len(curve) > 80
    assert curve[0] == 0.0
    assert curve[1] > 0.0
    assert min(curve[1:]) > 0.0
    widest = max(rows for rows, _ in samples)
    knot = next(knot for knot in KNOTS if knot >= widest)  # where it may be kept
    rising = table.curve(knot + 40, 100)[max(EACH, knot, 40) :]
    assert all(b >= a * (1.0 - 1e-9) for a, b in itertools.pairwise(rising))


def test_unmeasured_rows_lie_between_their_neighbours_and_cost_more_beyond_the_last() -> None:
    table = CostTable()
    for _ in range(5):
        table.observe(1, 100, 10.0)
        table.observe(8, 100, 24.0)
    curve = table.curve(16, 100)
    assert curve[1] < curve[4] < curve[8]
    assert curve[16] - curve[8] > 0.5 * (curve[8] - curve[1]), "it is worth a try"


def attended(rows: int, context: int) -> float:
    """Milliseconds on a machine that attends to 1000 tokens in 7 ms a row."""
    return TRUE[rows] + 0.007 * rows * context


def warm_up(rng: random.Random, noise: float) -> list[Sample]:
    """As a scheduler does it, on a machine that becomes slower meanwhile."""
    samples, context, slowness = [], 0, 1.0
    for turn, rows in enumerate([n for n in TRUE if n != REFERENCE_ROWS] * 3):
        context += 200 * (turn == len(TRUE) - 1)
        milliseconds = attended(rows, context) * slowness * rng.uniform(1.0 - noise, 1.0 + noise)
        samples.append(
            Sample(rows, context, milliseconds, attended(REFERENCE_ROWS, context) * slowness)
        )
        context, slowness = context + rows + REFERENCE_ROWS, slowness * 1.02
    return samples


def test_chunks_of_prompts_between_them_change_no_costs_of_decodes() -> None:
    """Attention to a chunk's 64 rows at once takes a fraction of that to 64 answers."""
    table = CostTable()
    table.calibrate(warm_up(random.Random(1), 0.0))
    expected = {rows: table.milliseconds(rows, 2000) for rows in TRUE}
    for number in range(100):
        table.observe(64, 40 * number, 700.0 + 0.05 * 40 * number)
        table.observe(4, 2000, expected[4])
        for rows, milliseconds in expected.items():
            assert table.milliseconds(rows, 2000) == pytest.approx(milliseconds, rel=0.15)


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_warm_up_tells_weights_from_attention(noise: float) -> None:
    table = CostTable()
    table.calibrate(warm_up(random.Random(1), noise))
    one = table.milliseconds(1, 0)
    for rows in TRUE:
        for context in (0, 512):
            milliseconds = table.milliseconds(rows, context)
            assert milliseconds / one == pytest.approx(
                attended(rows, context) / TRUE[1], rel=0.05 + 2 * noise
            )


def test_a_warm_up_replaces_what_a_disturbed_beginning_of_it_said() -> None:
    table, rng = CostTable(), random.Random(1)
    table.calibrate([Sample(1, 0, 45.0, 71.0), Sample(4, 0, 71.0, 71.0)])
    for _ in range(40):  # eight users, whose steps are never narrower
        table.observe(8, 100, noisy(rng, attended(8, 100)))
    table.calibrate(warm_up(rng, 0.0))
    curve = table.curve(16, 0)
    for rows in TRUE:
        assert curve[rows] / curve[8] == pytest.approx(TRUE[rows] / TRUE[8], rel=0.05)
    assert TRUE[8] < curve[8] < 1.4 * TRUE[8], "the machine became slower meanwhile"


def test_a_warm_up_replaces_a_loaded_table_that_knows_too_little() -> None:
    loaded, rng = CostTable(), random.Random(1)
    for _ in range(40):  # of another day, with eight users all the time
        loaded.observe(8, 100, 3.0 * attended(8, 100))
    table = CostTable()
    restore(table, encode(loaded))
    table.calibrate(warm_up(rng, 0.0))
    curve = table.curve(16, 0)
    for rows in TRUE:
        assert curve[rows] / curve[8] == pytest.approx(TRUE[rows] / TRUE[8], rel=0.05)
    for _ in range(10):
        table.observe(8, 100, attended(8, 100))
        table.observe(1, 100, attended(1, 100))
    assert table.curve(16, 0)[16] == pytest.approx(TRUE[16], rel=0.1)


def test_a_warm_up_too_short_to_see_attention_leaves_it_to_the_steps() -> None:
    table, rng = CostTable(), random.Random(1)
    table.calibrate(warm_up(rng, 0.0)[:4])
    for context in range(200, 1400, 8):
        rows = rng.choice((1, 1, 2, 4, 8))
        table.observe(rows, context, noisy(rng, attended(rows, context)))
    one, eight = table.milliseconds(1, 2048), table.milliseconds(8, 2048)
    assert eight / one == pytest.approx(attended(8, 2048) / attended(1, 2048), rel=0.15)


def test_reading_a_prompt_says_nothing_about_the_attention_of_single_rows() -> None:
    table = CostTable()
    table.calibrate(warm_up(random.Random(1), 0.0))
    before = table.describe()["attention"]
    for _ in range(20):
        table.observe(512, 256, 100.0)  # kernels for many rows read the cache once for all of them
    assert table.describe()["attention"] == pytest.approx(before, rel=0.01)


def test_a_new_measurement_of_a_young_row_count_is_believed_at_once() -> None:
    table = CostTable()
    for rows in (1, 4, 8):
        for _ in range(3):
            table.observe(rows, 0, TRUE[rows])
    assert table.curve(8, 0)[6] == pytest.approx(146.0, rel=0.03), "interpolated"
    table.observe(6, 0, 175.0)  # a tile of the kernel ends at 4
    assert table.curve(8, 0)[6] == pytest.approx(175.0, rel=0.03)


def test_nonsense_measurements_are_ignored() -> None:
    table = CostTable()
    for milliseconds in (0.0, -1.0, float("nan"), float("inf")):
        table.observe(1, 100, milliseconds)
    table.observe(0, 100, 5.0)
    assert table.is_empty


def test_a_prompt_does_not_set_the_level_of_a_loaded_table() -> None:
    table = CostTable()
    for _ in range(5):
        for rows in (1, 2, 4, 8, 16, 32):
            table.observe(rows, 0, 10.0 + 0.3 * rows)
    again = CostTable()
    restore(again, encode(table))
    again.observe(400, 0, 32.0)
    assert again.milliseconds(1, 0) == pytest.approx(10.3, rel=0.3)


def test_attention_of_long_batches_is_not_counted_twice() -> None:
    table = CostTable()
    for _ in range(60):
        for rows in (1, 2, 4, 64, 128):
            table.observe(rows, 10_000, 40.0 + 6.0 * rows + 0.01 * rows * 10_000)
    assert table.milliseconds(128, 10_000) == pytest.approx(40.0 + 128 * 106.0, rel=0.1)


def test_a_curve_reaches_beyond_the_last_knot() -> None:
    table = CostTable()
    table.observe(1, 0, 10.0)
    table.observe(KNOTS[-1] + 1000, 0, 5000.0)
    curve = table.curve(KNOTS[-1] + 1000, 0)
    assert len(curve) > KNOTS[-1] + 1000
    assert curve[-1] > curve[KNOTS[-1]]


def rises_suddenly(step: int, load: float) -> float:
    return 2.0 if step % 500 == 0 else max(0.0, load - 0.01)


def falls_suddenly(step: int, load: float) -> float:
    return 0.0 if step % 500 == 0 else min(2.0, load + 0.01)


def comes_in_bursts(step: int, load: float) -> float:
    return 2.5 if step % 50 == 0 else 0.97 * load


@pytest.mark.parametrize("load_at", [rises_suddenly, falls_suddenly, comes_in_bursts])
def test_widths_not_seen_keep_their_price_beside_others_whatever_the_load_does(load_at) -> None:
    rng, table, load = random.Random(1), CostTable(), 0.0

    def truth(rows: int) -> float:
        return 7.0 + rows

    for rows in (1, 2, 3, 4, 8, 14):
        for _ in range(4):
            table.observe(rows, 0, noisy(rng, truth(rows)))
    for step in range(10_000):
        load = load_at(step, load)
        rows = rng.choice((1, 1, 1, 2, 3, 4))
        table.observe(rows, 0, noisy(rng, truth(rows)) * math.exp(load))
    curve = table.curve(14, 0)
    for rows in (2, 4, 8, 14):
        assert curve[rows] / curve[1] == pytest.approx(truth(rows) / truth(1), rel=0.25)


ROWS = st.sampled_from([1, 2, 3, 4, 8, 11, 16, 32, 64, 256])
TIMES = st.floats(0.1, 1000.0)  # a hundredth to a hundred times of 10 ms
CONTEXTS = st.sampled_from([0, 500, 16000])
STEPS = st.lists(st.tuples(ROWS, CONTEXTS, TIMES), max_size=60)


def jumping_warm_up(times: Sequence[tuple[float, float]]) -> list[Sample]:
    rows = (1, 2, 4, 8, 11, 16, 32, 64)
    return [
        Sample(rows[i % len(rows)], 0, ms, reference) for i, (ms, reference) in enumerate(times)
    ]


@settings(deadline=None)
@given(st.lists(st.tuples(TIMES, TIMES), max_size=24), STEPS)
@example([(2.0, 1.0), (1.0, 2.0), (1.0, 3.0)], [(1, 0, 1.0), (2, 0, 1.0)])
def test_a_machine_whose_times_jump_has_a_cost_for_every_step(times, steps) -> None:
    controller, table = Controller(), CostTable()
    if times:
        controller.cost.calibrate(jumping_warm_up(times))
        table.calibrate(jumping_warm_up(times))
    plan = [SlotDraft([0.9, 0.5, 0.2]), SlotDraft([0.7])]
    for rows, context, milliseconds in steps:
        decode(controller, rows, context, milliseconds)
        table.observe(rows, context, milliseconds)
        step = Step(2, 2, context, can_pad=True)
        first, second = lengths(assign_rows(controller, plan, step))
        assert 0 <= first <= 3
        assert 0 <= second <= 1
        curve = table.curve(80, context)
        assert curve[0] >= 0.0
        assert all(0.0 < ms < math.inf for ms in curve[1:])


def test_a_disturbed_warm_up_does_not_end_the_steps() -> None:
    rows = (1, 2, 4, 8, 11)
    samples = [Sample(n, 0, 3.0 if n == 11 else 10.0 + n, 12.0) for n in rows for _ in range(3)]
    table = CostTable()
    table.calibrate(samples)
    for milliseconds in (12.0, 16.0) * 40:
        table.observe(1, 0, 11.0)
        table.observe(REFERENCE_ROWS, 0, milliseconds)
    eleven = table.milliseconds(11, 0)
    assert 0.0 < eleven < 11.0


def test_one_disturbed_decode_of_a_warm_up_does_not_keep_a_width_from_being_used() -> None:
    table, true = CostTable(), {1: 10.0, 2: 11.0, 16: 25.0, 17: 26.0, 24: 33.0, 32: 41.0}
    table.calibrate([Sample(n, 0, (2.0 if n == 24 else 1.0) * ms, 11.0) for n, ms in true.items()])
    assert table.milliseconds(24, 0) == pytest.approx(33.0, rel=0.05)
    assert table.width(20, 0) == 20, "no padding to avoid it"


def test_rows_beside_a_prompt_have_a_price_where_attention_is_dear() -> None:
    """What wide steps were measured to take includes their attention: it is not added again."""
    table, context = CostTable(), 500
    table.calibrate([Sample(n, 0, 10.0 + 0.3 * n, 10.6) for n in range(1, 33) for _ in range(3)])
    for rows in (8, 32) * 20:
        table.observe(rows, context, 10.0 + 0.3 * rows + 0.2 * rows)
    for rows in (64, 96, 128) * 3:
        table.observe(rows, context, 10.0 + 0.5 * rows)
    curve = table.curve(128, context)
    for rows in (66, 80, 100):
        assert curve[rows + 16] - curve[rows] == pytest.approx(8.0, rel=0.3)
