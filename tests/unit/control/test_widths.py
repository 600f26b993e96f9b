"""Kernels like some widths: steps are made as wide as is cheap, and never wider."""

from __future__ import annotations

import random

import pytest
from benchmarks.lib.simulated_slots import Simulation
from benchmarks.lib.simulated_texts import TILED_CURVES
from benchmarks.lib.steps import SlotDraft, assign_rows, decode, lengths

from headstart.control.controller import Controller
from headstart.control.cost import EACH, CostTable, Sample
from headstart.control.values import Step
from headstart.scheduler.step import StepPlan

Q4_0 = TILED_CURVES["q4_0"]


def warm(curve_name: str = "q4_0", noise: float = 0.0, seed: int = 0) -> Controller:
    curve, rng, controller = TILED_CURVES[curve_name], random.Random(seed), Controller()
    samples = [
        Sample(rows, 0, curve(rows) * rng.uniform(1.0 - noise, 1.0 + noise), curve(2))
        for rows in [*range(1, 18), 24, 32] * 3
    ]
    controller.cost.calibrate(samples)
    return controller


def plan(controller: Controller, num_slots: int, *drafts: SlotDraft, **step: int) -> StepPlan:
    slots = [*drafts, *[SlotDraft()] * (num_slots - len(drafts))]
    return assign_rows(
        controller, slots, Step(num_slots, num_slots, 0, **{"can_pad": True, **step})
    )


def test_three_users_take_four_rows_where_these_are_faster() -> None:
    assert plan(warm(), 3).num_padding == 1
    assert plan(warm("iq4"), 6).num_padding == 2


@pytest.mark.parametrize("num_slots", [1, 4, 5, 8])
def test_nothing_is_added_where_it_was_not_measured_to_pay(num_slots: int) -> None:
    assert plan(warm(), num_slots).num_padding == 0


def test_nothing_is_added_where_rows_cannot_be_or_do_not_fit() -> None:
    assert plan(warm(), 3, can_pad=False).num_padding == 0
    assert plan(warm(), 3, max_rows=3).num_padding == 0


def rows_of(batch: StepPlan) -> tuple[list[int], int]:
    return lengths(batch), batch.num_padding


def test_draft_tokens_that_come_for_nothing_are_taken_before_padding() -> None:
    """Hopeless ones too: 3 rows take longer than 4, so the fourth may as well be a guess."""
    hopeless = SlotDraft([0.02, 0.001])
    assert rows_of(plan(warm(), 3, hopeless)) == ([1, 0, 0], 0)
    hopeful = plan(warm("iq4"), 5, SlotDraft([0.05]), SlotDraft([0.1]))
    assert rows_of(hopeful) == ([1, 1, 0, 0, 0], 1)


def test_a_draft_of_the_wrong_width_is_filled_up() -> None:
    """Two users and a sure token: three rows, which are padded to four."""
    assert rows_of(plan(warm(), 2, SlotDraft([0.99]))) == ([1, 0], 1)


def test_narrow_widths_are_kept_as_they_are_and_wide_ones_rise() -> None:
    table = CostTable()
    for _ in range(5):
        for rows in (*range(1, 17), 24, 32, 64, 48, 128):
            table.observe(rows, 0, Q4_0(rows) if rows != 64 else 10.0)
    curve = table.curve(128, 0)
    for rows in range(1, 17):
        assert curve[rows] == pytest.approx(Q4_0(rows), rel=0.05)
    assert curve[64] >= curve[48]


def test_where_steps_may_be_filled_a_row_more_never_costs_clearly_less() -> None:
    table = CostTable()
    for _ in range(5):
        for rows in range(1, EACH + 1):
            table.observe(rows, 0, Q4_0(rows))
    filled, curve = table.curve(EACH, 0, can_fill=True), table.curve(EACH, 0)
    for rows in range(1, EACH + 1):
        assert filled[rows] <= curve[rows]
        assert filled[rows] <= min(curve[rows : EACH + 1]) / 0.95


def test_a_width_seen_once_is_not_believed_to_be_cheap() -> None:
    table = CostTable()
    for _ in range(5):
        table.observe(3, 0, 36.0)
    table.observe(4, 0, 21.0)
    assert table.width(3, 0) == 3
    for _ in range(5):
        table.observe(4, 0, 21.0)
    assert table.width(3, 0) == 4


def test_padding_is_dropped_when_it_no_longer_pays() -> None:
    """Now and then a step is not padded, so a cheaper narrow step is found out."""
    controller, padded = warm(), 0
    for step in range(20_000):
        padding = plan(controller, 3).num_padding
        decode(controller, 3 + padding, 0, 21.0 if padding else 15.0)
        padded += padding if step >= 10_000 else 0
    assert padded == 0


def test_a_width_that_a_disturbed_warm_up_made_dear_is_padded_for_some_steps_only() -> None:
    """What is padded is not timed, so without looking again soon the error would stay."""
    controller, padded = Controller(), 0
    for rows, milliseconds in ((1, 8.0), (2, 12.0), (3, 21.0), (4, 16.0), (8, 34.0)):
        for _ in range(3):
            decode(controller, rows, 0, milliseconds)
    assert plan(controller, 3).num_padding == 1
    for _ in range(400):
        padding = plan(controller, 3).num_padding
        decode(controller, 3 + padding, 0, 16.0 if padding else 14.0)
        padded += bool(padding)
    assert padded < 300


@pytest.mark.parametrize("curve", TILED_CURVES)
@pytest.mark.parametrize("num_slots", [1, 2, 3, 5, 6, 7, 8])
def test_users_get_at_least_what_plain_steps_and_the_best_padding_give(curve, num_slots) -> None:
    run = Simulation("nothing", curve, num_slots, tokens=1500 // num_slots)
    controller = Controller()
    run.warm_up(controller)
    best = min(TILED_CURVES[curve](rows) for rows in range(num_slots, num_slots + 9))
    speed = run.auto(controller).speed
    assert speed > 0.98 * run.off().speed
    assert speed > 0.93 * num_slots / best
