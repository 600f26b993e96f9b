"""Nobody is asked who cannot earn the time that it takes."""

from __future__ import annotations

import pytest
from benchmarks.lib.steps import SlotDraft, assign_rows, decode, grant, make_plan, model_slot

from headstart.control.controller import Controller
from headstart.control.trials import AskingBudget
from headstart.control.values import TRIAL_SHARE, AskedAnswer, DraftCall, Step
from headstart.scheduler.step import StepRecord
from headstart.types import NO_DRAFT

COST, FAST, SLOW = 0.1, 0.5, 50.0  # milliseconds of asking, and of steps


def ask(asking: AskingBudget, step_ms: float, earned: list[float]) -> list[bool]:
    """In which of these steps it is asked."""
    asked = []
    for milliseconds in earned:
        asked.append(asking.begin_step(1))
        if asked[-1]:
            asking.took(COST)
            asking.earned([milliseconds], step_ms)
    return asked


@pytest.mark.parametrize("num_requests", [1, 40])
def test_who_earns_nothing_takes_a_small_share_of_fast_steps(num_requests: int) -> None:
    asking, num_asked = AskingBudget(), 0
    for _ in range(num_requests):
        num_asked += sum(ask(asking, FAST, [0.0] * (2000 // num_requests)))
    assert num_asked * COST < 1.3 * TRIAL_SHARE * 2000 * FAST + 10 * COST


def test_on_a_slow_model_everybody_is_asked_in_every_step() -> None:
    assert all(ask(AskingBudget(), SLOW, [0.0] * 200))


def test_who_earns_it_is_asked_in_every_step() -> None:
    assert all(ask(AskingBudget(), FAST, [3 * COST] * 200))


def test_a_passage_that_pays_is_found_soon_and_then_followed() -> None:
    asked = ask(AskingBudget(), FAST, [0.0] * 300 + [10 * COST] * 60)
    first = asked.index(True, 300)
    assert first < 300 + COST / (TRIAL_SHARE * FAST) + 1
    assert all(asked[first:])


@pytest.mark.parametrize(("saved", "is_asked"), [(0.0, False), (3 * COST, True)])
def test_a_new_request_begins_with_what_the_others_earned(saved: float, *, is_asked: bool) -> None:
    """Answers of 50 tokens that nobody can guess take no more of the time than one long one."""
    asking = AskingBudget()
    ask(asking, FAST, [saved] * 300)
    asking.savings = -COST
    assert asking.begin_step(1) == is_asked


def test_one_slow_call_does_not_silence_a_speculator() -> None:
    asking = AskingBudget()
    ask(asking, FAST, [3 * COST] * 50)
    asking.took(100 * COST)
    assert asking.cost < 1.1 * COST
    assert all(ask(asking, FAST, [3 * COST] * 20))


def test_a_slow_first_call_does_not_silence_a_speculator() -> None:
    """The machine may have been busy, and the first draft saves nothing."""
    asking = AskingBudget()
    asking.took(200 * COST)
    asking.earned([0.0], FAST)
    assert all(ask(asking, FAST, [0.0, 10 * COST] * 20))


def test_who_takes_as_long_as_many_steps_is_not_asked_again_before_so_many() -> None:
    asking = AskingBudget()
    asked = 0
    for _ in range(100):
        if asking.begin_step(1):
            asked += 1
            asking.took(50.0)
            asking.earned([0.0], 1.0)
    assert asked <= 2


STEP = Step(1, 1, 0)


def learned(plain_ms: float) -> Controller:
    controller = Controller()
    for _ in range(5):
        for rows in range(1, 18):
            decode(controller, rows, 0, plain_ms * (1.0 + 0.1 * (rows - 1)))
    return controller


def test_the_time_that_a_draft_saves_is_said_with_the_plan() -> None:
    controller = learned(10.0)
    (answer,) = assign_rows(controller, [SlotDraft([0.99, 0.98, 0.97])], STEP).answers
    assert answer.num_verified == 3
    assert answer.saved_ms == pytest.approx(2.94 * 10.0 - 3.0, rel=0.1)


def test_a_model_that_does_not_pay_is_planned_for_in_every_fourth_step() -> None:
    controller = learned(SLOW)
    controller.trust_scores("model")
    controller.learn_draft_costs("model", 5.0 * SLOW, SLOW)
    planned = 0
    for _ in range(300):
        if controller.begin_model_step("model"):
            continue
        planned += 1
        (allowance,) = grant(controller, {"model": [model_slot(1, 16, catch_up=500)]}, STEP)[
            "model"
        ]
        assert allowance.num_granted == 0
    assert planned <= 90


def test_a_speculator_that_pays_for_one_of_two_answers_is_asked_for_both() -> None:
    controller, step = learned(FAST), Step(2, 2, 0)
    for _ in range(40):
        assert controller.begin_text_step("text", 2)
        plan = make_plan(step, numbers=[1, 2])
        for answer, saved_ms in zip(plan.answers, (0.0, 5.0), strict=True):
            answer.num_verified, answer.sources, answer.saved_ms = 1, ["text"], saved_ms
        asked = [AskedAnswer(answer, 4, NO_DRAFT) for answer in plan.answers]
        plan.calls, plan.asking_ms = [DraftCall("text", asked, 2 * COST)], 2 * COST + 0.02
        controller.read(StepRecord(plan, 0.0))
