"""Drafts that cannot simply be cut off: worth less, and nothing where that costs too much."""

from __future__ import annotations

import pytest
from benchmarks.lib.steps import SlotDraft, assign_rows, lengths
from hypothesis import given
from hypothesis import strategies as st

from headstart.control.budget import Budget, _never_rising
from headstart.control.controller import Controller
from headstart.control.cost import CostTable, Sample
from headstart.control.values import Step
from headstart.scheduler.step import StepPlan, StepRecord
from headstart.types import Batch

STEP = Step(1, 1, 100)


def controller(copy_ms: float | None, row_ms: float = 0.5) -> Controller:
    control = Controller()
    control.learn_costs([Sample(n, 100, 20.0 + row_ms * n, 20.0 + row_ms) for n in range(1, 33)])
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
