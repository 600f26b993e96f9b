"""Nobody is asked who cannot earn the time that it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.lib.steps import SlotDraft, assign_rows, decode, grant, make_plan

from headstart.control import Controller, ModelSlot, Step
from headstart.control.asking import AskingBudget
from headstart.control.values import TRIAL_SHARE, DraftCall
from headstart.scheduler.step import StepRecord

COST, FAST, SLOW = 0.1, 0.5, 50.0  # milliseconds of asking, and of steps


def ask(asking: AskingBudget, step_ms: float, earned: list[float]) -> list[bool]:
    """In which of these steps it is asked."""
    asked = []
    for milliseconds in earned:
        asked.append(asking.may_ask_now(1))
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
    assert asking.may_ask_now(1) == is_asked


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
        if asking.may_ask_now(1):
            asked += 1
            asking.took(50.0)
            asking.earned([0.0], 1.0)
    assert asked <= 2


STEP, TWO = Step(1, 1, 0), Step(2, 2, 0)


def asked_together(
    controller: Controller, numbers: list[int], saved_ms: list[float], step: Step, cost: float
) -> None:
    """A text speculator was asked for these requests; what it drafted saves time."""
    num = len(numbers)
    plan = make_plan(replace(step, num_slots=num), numbers=numbers)
    for answer, saved in zip(plan.answers, saved_ms, strict=True):
        answer.num_verified, answer.sources, answer.saved_ms = 1, ["text"], saved
    plan.calls = [DraftCall("text", plan.answers, [], cost * num)]
    plan.asking_ms = cost * num + 0.02
    controller.read(StepRecord(plan, 0.0))


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
        if controller.skips_step(
            make_plan(STEP), [], ["model"]
        ) or not controller.may_ask_model_now("model"):
            continue
        planned += 1
        (allowance,) = grant(controller, {"model": [ModelSlot(1, 16, catch_up=500)]}, STEP)["model"]
        assert allowance.max_tokens == 0
    assert planned <= 90
    controller.begin(2, "")
    assert controller.may_ask_model_now("model"), "a new request may be one for which it pays"


def test_all_sleep_or_none() -> None:
    """A step in which anybody is asked is planned for everybody."""
    controller = learned(FAST)
    for _ in range(40):
        if not controller.skips_step(make_plan(TWO, numbers=[1, 2]), ["text"], []):
            asked_together(controller, [1, 2], [0.0, 5.0], TWO, COST)
    assert not controller.skips_step(make_plan(TWO, numbers=[1, 2]), ["text"], [])
    assert controller.may_ask_now("text", 2)


def test_a_sleep_that_a_new_request_ends_saves_for_as_long_as_it_was() -> None:
    controller, plan = learned(FAST), make_plan(STEP, numbers=[1])
    while not controller.skips_step(plan, ["text"], []):
        if controller.may_ask_now("text", 1):
            asked_together(controller, [1], [0.0], STEP, 10 * COST)
    savings = controller._asking["text"].savings
    assert all(controller.skips_step(plan, ["text"], []) for _ in range(5))
    controller.skips_step(make_plan(TWO, numbers=[1, 2]), ["text"], [])
    saved = controller._asking["text"].savings - savings
    assert saved == pytest.approx(6 * TRIAL_SHARE * FAST, rel=0.1)


def test_a_first_draft_that_saves_nothing_does_not_silence_a_speculator() -> None:
    asking = AskingBudget()
    asking.took(COST)
    asking.earned([0.0], FAST)
    assert asking.may_ask_now(1)
