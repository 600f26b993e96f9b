"""The budget: rows go where they pay."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, combinations
from operator import mul

import pytest
from benchmarks.lib.steps import SlotDraft, assign_rows, lengths, make_plan
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headstart.control.budget import Budget, _never_rising
from headstart.control.controller import Controller
from headstart.control.cost import MARGIN, CostTable, Sample
from headstart.control.values import Step
from headstart.scheduler.step import StepPlan, StepRecord
from headstart.types import Batch, Rows

CPU = {
    1: 49.0,
    2: 70.0,
    3: 91.0,
    4: 113.0,
    5: 130.0,
    6: 146.0,
    7: 163.0,
    8: 180.0,
    12: 240.0,
    16: 300.0,
    32: 637.0,
}
BUMP = {rows: 10.0 + 2.0 * rows + 15.0 * (rows > 6) for rows in range(1, 33)}


def measured(times: dict[int, float]) -> CostTable:
    cost = CostTable()
    for _ in range(8):
        for rows, milliseconds in times.items():
            cost.observe(rows, 100, milliseconds)
    return cost


def falling(acceptance: float, length: int = 16) -> list[float]:
    return list(accumulate([acceptance] * length, mul))


def plan(budget: Budget, drafts: Sequence[Sequence[float]], **limits: int) -> list[int]:
    n = len(drafts)
    return assigned(budget, [SlotDraft(draft) for draft in drafts], Step(n, n, 100, **limits))


def assigned(budget: Budget, drafts: Sequence[SlotDraft], step: Step) -> list[int]:
    made = make_plan(step, drafts)
    budget.assign_rows(made)
    return lengths(made)


@settings(deadline=None)
@given(
    st.lists(st.lists(st.floats(0.0, 1.0), max_size=8), min_size=1, max_size=3), st.integers(0, 20)
)
@example([[1.0] * 8], 20)  # what lies behind the bump pays
def test_the_plan_is_the_best_of_all_plans(conditional: list[list[float]], room: int) -> None:
    drafts = [list(accumulate(rates, mul)) for rates in conditional]
    cost, n = measured(BUMP), len(drafts)
    curve = cost.curve(n + 24, 100)
    lengths = plan(Budget(cost), drafts, max_rows=n + room)
    rate = (1.0 + MARGIN) * n / curve[n]

    def value(tokens: float, rows: int) -> float:
        return tokens - rate * (curve[n + rows] - curve[n])

    best = 0.0
    every = sorted((s for draft in drafts for s in draft), reverse=True)
    for rows in range(min(room, len(every)) + 1):
        best = max(best, value(sum(every[:rows]), rows))
    chosen = value(sum(sum(d[:k]) for d, k in zip(drafts, lengths, strict=True)), sum(lengths))
    assert sum(lengths) <= room
    assert chosen >= best - 1e-9


def test_row_and_output_limits_hold() -> None:
    budget = Budget(measured({1: 10.0, 2: 10.0, 32: 10.1}))
    drafts = [falling(0.99), falling(0.98), falling(0.97)]
    assert sum(plan(budget, drafts, max_rows=8)) == 5
    assert sum(plan(budget, drafts, max_outputs=7)) == 4
    assert plan(budget, drafts, max_rows=3) == [0, 0, 0]
    assert plan(budget, drafts, max_rows=2) == [0, 0, 0]


def test_a_length_set_by_hand_is_kept_whatever_it_costs() -> None:
    slots = [SlotDraft(falling(0.01, 5), is_fixed=True), SlotDraft(falling(0.01))]
    budget = Budget(measured(CPU))
    assert assigned(budget, slots, Step(2, 2, 100)) == [5, 0]
    assert assigned(budget, slots, Step(2, 2, 100, max_rows=5)) == [3, 0]


def test_a_draft_shorter_than_the_minimum_is_dropped() -> None:
    slots = [
        SlotDraft(falling(0.99, 2), min_tokens=3, is_fixed=True),
        SlotDraft(falling(0.99, 2), min_tokens=3),
    ]
    assert assigned(Budget(measured(CPU)), slots, Step(2, 2, 100)) == [0, 0]


def test_an_unknown_width_is_tried_and_then_known() -> None:
    lengths = []
    for row_ms in (0.1, 12.0):
        cost = CostTable()
        for _ in range(5):
            cost.observe(1, 100, 10.0)
        budget = Budget(cost)
        for _ in range(300):
            (length,) = plan(budget, [falling(0.5)])
            cost.observe(1 + length, 100, 10.0 + row_ms * length)
            lengths.append(length)
    assert lengths[299] >= 4, "rows turned out to be nearly free"
    assert sum(lengths[300:]) < 10, "rows turned out to be dear, and that was learned cheaply"


def test_what_drafts_reach_is_followed_while_prompts_are_read() -> None:
    """Under load every step has prompt rows: what was reached before must not stay the price."""
    budget = Budget(measured(CPU))
    for _ in range(60):
        assigned(budget, [SlotDraft(falling(0.98))], Step(1, 1, 100))
    before = budget.speedup
    for _ in range(200):
        assigned(budget, [SlotDraft()], Step(1, 65, 100, num_reading=1))
    assert budget.speedup < 1.01 < before


def test_drafts_beside_prompts_also_pay_for_those_who_read() -> None:
    """Their first token comes later with each row."""
    lengths = []
    for num_reading in (0, 1, 3):
        step = Step(1, 16, 100, num_reading=num_reading)
        lengths += assigned(Budget(measured(CPU)), [SlotDraft(falling(0.97))], step)
    assert lengths[0] > lengths[1] > lengths[2] == 0


@pytest.mark.parametrize("rows", Rows)
def test_drafts_are_shorter_where_requests_arrive_during_steps(rows: Rows):
    """A request that arrives waits for the end of the step, half of its time on average."""
    lengths = []
    for num_steps in (1000, 50, 20):  # from one arrival to the next
        budget = Budget(measured(CPU))
        for index in range(3000):
            budget.observe_arrivals(index % num_steps == 0, 100.0)
        lengths += assigned(budget, [SlotDraft(falling(0.97))], Step(1, 1, 100, rows=rows))
    assert lengths[0] > lengths[1] > lengths[2] > 0


def test_long_doubtful_drafts_are_worth_more_than_short_sure_ones_only_where_rows_are_cheap():
    long, short = [0.5] * 10, [0.9, 0.85]
    step = Step(1, 1, 100)
    cheap = Budget(measured({1: 10.0, 8: 10.1, 16: 10.2}))
    dear = Budget(measured({1: 10.0, 2: 14.5, 8: 41.5, 16: 77.5}))
    assert cheap.best([short, long], step) == 1
    assert dear.best([short, long], step) == 0


def plan_evenly(budget: Budget, slots: Sequence[SlotDraft], max_rows: int = 2048) -> list[int]:
    n = len(slots)
    return assigned(budget, slots, Step(n, n, 100, max_rows, rows=Rows.PADDED))


@settings(deadline=None)
@given(
    st.lists(st.lists(st.floats(0.01, 1.0), max_size=8), min_size=1, max_size=4), st.integers(0, 20)
)
def test_where_every_slot_computes_as_many_rows_the_best_common_length_is_taken(conditional, room):
    drafts = [list(accumulate(rates, mul)) for rates in conditional]
    cost, n = measured(BUMP), len(drafts)
    curve = cost.curve(n + 40, 100)
    lengths = plan_evenly(Budget(cost), [SlotDraft(draft) for draft in drafts], n + room)
    longest = max(lengths)
    assert lengths == [min(longest, len(draft)) for draft in drafts]
    assert n * longest <= room

    def value(length: int) -> float:
        tokens = sum(sum(draft[:length]) for draft in drafts)
        rate = (1.0 + MARGIN) * n / curve[n]
        return tokens - rate * (curve[n * (1 + length)] - curve[n])

    most = min(max(map(len, drafts)), room // n)
    assert value(longest) >= max(map(value, range(most + 1))) - 1e-9


def test_up_to_a_length_set_by_hand_the_rows_of_other_slots_cost_nothing() -> None:
    budget = Budget(measured(CPU))
    by_hand = SlotDraft(falling(0.01, 3), is_fixed=True)
    assert plan_evenly(budget, [by_hand, SlotDraft(falling(0.3))]) == [3, 3]
    assert plan_evenly(budget, [SlotDraft(()), SlotDraft(falling(0.3))]) == [0, 0]


@settings(deadline=None)
@given(
    st.lists(st.lists(st.floats(0.01, 1.0), max_size=6), min_size=1, max_size=4),
    st.integers(0, 12),
    st.lists(st.integers(0, 3), min_size=4, max_size=4) | st.just([0, 0, 0, 0]),
)
def test_where_each_length_takes_a_pass_the_best_length_and_slots_are_taken(
    conditional: list[list[float]], room: int, again: list[int]
) -> None:
    drafts = [list(accumulate(rates, mul)) for rates in conditional]
    cost, n = measured(BUMP), len(drafts)
    again = again[:n]
    curve, base = cost.curve(n + 60, 100), n + sum(again)
    step = Step(n, base, 100, base + room, rows=Rows.EQUAL, again=again)
    found = assigned(Budget(cost), [SlotDraft(draft) for draft in drafts], step)
    assert len({one + length for one, length in zip(again, found, strict=True) if length}) <= 1
    assert sum(found) <= room

    def value(lengths: Sequence[int]) -> float:
        tokens = sum(sum(draft[:n]) for draft, n in zip(drafts, lengths, strict=True))
        rows = sorted(map(sum, zip(again, lengths, strict=True)))
        wide, milliseconds, done = [1 + more for more in rows if more], curve[rows.count(0)], 0
        for index, num in enumerate(wide):
            milliseconds += curve[(num - done) * (len(wide) - index)] if num > done else 0.0
            done = num
        assert step.milliseconds(lengths, curve) == pytest.approx(milliseconds)
        return tokens - (1.0 + MARGIN) * n / curve[n] * milliseconds

    assert value(found) >= value([0] * n) - 1e-9
    choices = (
        [length * (index in slots) for index in range(n)]
        for length in range(1, 7)
        for num in range(1, n + 1)
        for slots in combinations([i for i in range(n) if len(drafts[i]) >= length], num)
        if num * length <= room and not any(again)
    )
    assert value(found) >= max(map(value, choices), default=value([0] * n)) - 1e-9


@pytest.mark.parametrize("num_again", [0, 1, 8, 16, 40])
def test_rows_decoded_again_leave_a_draft_its_length(num_again: int) -> None:
    """They have no outputs, of which there are few."""
    step = Step(1, 1 + num_again, 100, max_outputs=17, rows=Rows.EQUAL, again=[num_again])
    draft = SlotDraft([0.999**n for n in range(1, 17)])
    assert assigned(Budget(measured(dict.fromkeys(range(1, 65), 10.0))), [draft], step) == [16]


STEP = Step(1, 1, 100)


def controller(copy_ms: float | None, row_ms: float = 0.5) -> Controller:
    control = Controller()
    control.cost.calibrate([Sample(n, 100, 20.0 + row_ms * n, 20.0 + row_ms) for n in range(1, 33)])
    if copy_ms is not None:
        control.read(StepRecord(StepPlan(Batch(1), 0.0, copies_ms=[copy_ms]), 0.0))
    return control


def length(control: Controller, survival: list[float], num_steps: int = 30) -> int:
    """Draft tokens that are verified once control has settled."""
    for _ in range(num_steps):
        (given_length,) = lengths(assign_rows(control, [SlotDraft(survival)], STEP))
    return given_length


def test_where_nothing_is_copied_a_draft_model_has_no_handicap() -> None:
    assert Budget(CostTable()).handicap(STEP) == 0.0


def test_a_sure_draft_is_verified_and_a_doubtful_one_is_not() -> None:
    sure, doubtful = [0.98, 0.96, 0.94, 0.92], [0.3, 0.1]
    assert length(controller(None), doubtful) > 0
    assert length(controller(4.0), doubtful) == 0
    assert length(controller(4.0), sure) == 4


def test_a_copy_that_takes_longer_than_steps_switches_drafts_off() -> None:
    assert length(controller(100.0), [0.9, 0.8, 0.7]) == 0


def test_drafts_set_by_hand_are_left_alone() -> None:
    control = controller(1000.0)
    assert lengths(assign_rows(control, [SlotDraft([0.1, 0.1], is_fixed=True)], STEP)) == [2]


@given(st.lists(st.floats(-5, 1), min_size=1, max_size=12))
def test_worth_never_rises_and_loses_nothing(values: list[float]) -> None:
    level = _never_rising(values)
    assert level == sorted(level, reverse=True)
    assert sum(level) == pytest.approx(sum(values))
    best = max(sum(values[:n]) for n in range(len(values) + 1))
    assert sum(v for v in level if v > 0) == pytest.approx(best, abs=1e-9)
