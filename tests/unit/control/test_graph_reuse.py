"""Over RPC a step like the last one is cheaper: widths are held, for no more than that is worth."""

from __future__ import annotations

import random

import pytest
from benchmarks.lib.steps import SlotDraft, make_record, share

from headstart.control import Controller, Step
from headstart.control.cost import Sample
from headstart.control.graph_reuse import GraphReuse

FLAT = [0.0, *(10.0 + 0.1 * rows for rows in range(1, 40))]  # rows are cheap, as over a network
STEEP = [0.0, *(10.0 * rows for rows in range(1, 40))]


def after(rows: int, change_ms: float = 2.0) -> GraphReuse:
    graphs = GraphReuse()
    graphs.change_ms = change_ms
    graphs.decoded(rows, 1)
    return graphs


def test_width_is_held_where_rows_cost_less_than_a_change() -> None:
    assert after(8).width(5, 5, FLAT, 1) == 8
    assert after(8).width(5, 5, STEEP, 1) == 5
    assert after(8).width(9, 9, FLAT, 1) == 9
    assert after(8, change_ms=0.0).width(5, 5, FLAT, 1) == 5


def test_other_numbers_of_slots_have_other_graphs() -> None:
    assert after(8).width(5, 5, FLAT, 2) == 5


def test_after_a_prompt_nothing_is_held() -> None:
    graphs = after(8)
    assert graphs.decoded(70, 0)
    assert graphs.width(5, 5, FLAT, 1) == 5


@pytest.mark.parametrize("seed", range(20))
def test_holding_costs_at_most_twice_what_hindsight_would(seed: int) -> None:
    """Against the best of: hold for the whole run of narrow steps, or change at once."""
    rng = random.Random(seed)
    change, length = rng.uniform(0.5, 30.0), rng.randrange(1, 200)
    graphs, paid = after(16, change), 0.0
    for _ in range(length):
        width = graphs.width(1, 1, FLAT, 1)
        paid += FLAT[width] - FLAT[1] + change * graphs.decoded(width, 1)
    rent = FLAT[16] - FLAT[1]
    assert paid <= 2.0 * min(length * rent, change) + rent


def test_rows_up_to_the_last_width_are_free_for_drafts() -> None:
    curve = after(8).curve(FLAT, 1)
    assert curve[1] == curve[7] == curve[8] == FLAT[8]
    assert curve[9] == pytest.approx(FLAT[9] + 2.0)


def controller(change_ms: float) -> Controller:
    learned = Controller()
    samples = [
        Sample(rows, 0, FLAT[rows] + change_ms, FLAT[4] + change_ms)
        for rows in [*range(1, 18), 24, 32] * 3
    ]
    learned.learn_costs(samples, change_ms)
    return learned


def test_control_pads_to_the_last_width_and_then_drafts_for_nothing() -> None:
    control, step = controller(3.0), Step(1, 1, 0, can_pad=True)
    first = share(control, [SlotDraft([0.99] * 7)], step)
    assert (list(first.lengths), first.num_padding) == ([7], 0)
    control.read(make_record(first, FLAT[8] + 3.0))
    second = share(control, [SlotDraft([0.9] * 3)], step)
    assert second.num_padding == 4
    control.read(make_record(second, FLAT[8]))
    hopeless = share(control, [SlotDraft([0.004])], step)  # would not pay for a row
    assert (list(hopeless.lengths), hopeless.num_padding) in (([0], 7), ([1], 6))


def test_what_a_change_takes_is_not_learned_as_the_cost_of_rows() -> None:
    control, step, last = controller(30.0), Step(1, 1, 0), 0
    for rows in [8, 8, 3, 8, 3, 3] * 30:
        plan = share(control, [SlotDraft([0.99] * (rows - 1), is_fixed=True)], step)
        control.read(make_record(plan, FLAT[rows] + 30.0 * (rows != last)))
        last = rows
    measured = control.describe()["cost_ms"]["rows"]
    assert float(measured["8"]) == pytest.approx(FLAT[8], rel=0.1)
    assert float(measured["3"]) == pytest.approx(FLAT[3], rel=0.1)
