"""A draft model that is off is looked at again, and what it has to read first is paid once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from benchmarks.lib.simulated_models import BothSimulation
from benchmarks.lib.steps import allowed, decode, grant, make_plan, model_call, model_slot, ran

from headstart.control.controller import Controller
from headstart.control.state import StateFile
from headstart.control.trials import CREDIT, MOST_TRIALS, Probes
from headstart.control.values import TRIAL_SHARE, Step
from headstart.scheduler.step import StepRecord

STEP = Step(1, 1, 1000)
PLAIN_MS, ROUND_MS, READ_MS = 50.0, 5.0, 0.5
READ_A_CALL, ANSWER = 256, 100


def make_controller() -> Controller:
    controller = Controller()
    controller.trust_scores("model")
    for _ in range(6):
        for rows in range(1, 18):
            decode(controller, rows, 1000, PLAIN_MS + 2.0 * (rows - 1))
    controller.learn_draft_costs("model", ROUND_MS, READ_MS)
    return controller


def choose(probes: Probes, numbers: Sequence[int], reading: Sequence[float]) -> int | None:
    return probes.choose(dict(zip(numbers, reading, strict=True)), 1.0)


def answer(controller: Controller, seq_id: int, prompt: int, *, is_good: bool) -> tuple[int, float]:
    """One request: draft tokens that were accepted, and milliseconds that drafting took."""
    unread, at, accepted, spent = prompt, 0, 0, 0.0
    controller.begin(seq_id, "")
    while at < ANSWER:
        allowance = model_slot(seq_id, 16, unread, num_left=ANSWER - at)
        if not controller.begin_model_step("model"):
            (allowance,) = grant(controller, {"model": [allowance]}, STEP)["model"]
        matched = 0
        if allowance.num_granted:
            num_read = min(READ_A_CALL, unread)
            unread -= num_read
            length = 0 if unread else allowance.num_granted
            milliseconds = ROUND_MS * length + READ_MS * num_read
            spent += milliseconds
            scores = [0.9] * length
            drafted = None if unread else scores
            call = model_call([allowance], [drafted], milliseconds, num_read)
            if length:
                matched = length if is_good else 0
            ran(controller, call, STEP, matched, number=seq_id)
            if length:
                controller._calibration.record(seq_id, "model", scores[: matched + 1], matched)
                accepted += matched
        else:
            unread += 1
        at += 1 + matched
    controller.end(seq_id, at)
    return accepted, spent


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("prompt", [200, 1000])
def test_a_model_that_became_good_is_used_again_on_long_prompts(prompt, is_restarted, tmp_path):
    """Not if each probe is charged with the whole prompt and reads 256 tokens of it."""
    controller = make_controller()
    for seq_id in range(30):
        answer(controller, seq_id, prompt, is_good=False)
    if is_restarted:
        controller.save(StateFile(tmp_path / "state", {}))
        controller = Controller()
        controller.trust_scores("model")
        assert controller.load(StateFile(tmp_path / "state", {})) == ""
        decode(controller, 1, 1000, PLAIN_MS)
    accepted = [answer(controller, seq_id, prompt, is_good=True)[0] for seq_id in range(100, 220)]
    assert sum(accepted[-10:]) > 0.5 * 10 * ANSWER


@pytest.mark.parametrize("prompt", [200, 1000, 4000])
def test_a_useless_model_costs_little_however_long_the_prompts_are(prompt: int) -> None:
    controller, num_requests = make_controller(), 100
    spent = sum(answer(controller, i, prompt, is_good=False)[1] for i in range(num_requests))
    # what it may cost in the long run, and one prompt to find out
    share = 3.0 * TRIAL_SHARE
    assert spent < share * num_requests * ANSWER * PLAIN_MS + prompt * READ_MS


@pytest.mark.parametrize("prompt", [200, 1000])
def test_a_new_model_that_is_good_is_used_from_the_first_requests_on(prompt: int) -> None:
    """Savings of 1 % of the time would take thousands of tokens to pay for the first prompt."""
    controller = make_controller()
    accepted = [answer(controller, seq_id, prompt, is_good=True)[0] for seq_id in range(6)]
    assert sum(accepted) > 0.5 * 6 * ANSWER


def test_reading_that_has_begun_goes_on_and_is_paid_once() -> None:
    probes = Probes(savings=18.0)
    for left in (10.0, 7.0, 4.0, 1.0):
        assert choose(probes, [7, 8], [left, 12.0]) == 7
        probes.called(8)
    probes.called(7)
    assert probes.savings == pytest.approx(18.0 - 10.0 - 1.0)
    assert choose(probes, [8], [20.0]) is None


def test_reading_begins_when_it_can_be_paid_to_its_end_with_probes_behind_it() -> None:
    probes, num_steps = Probes(savings=10.0), 0
    while choose(probes, [7], [10.0]) is None:
        probes.accrue()
        num_steps += 1
    assert num_steps == pytest.approx(MOST_TRIALS / TRIAL_SHARE, rel=0.01)


def test_what_was_saved_up_for_a_long_text_is_not_spent_on_a_short_one() -> None:
    """The request would be slowed down in a thousand steps on end."""
    probes, num_probes = Probes(), 0
    while choose(probes, [7], [1000.0]) is None and probes.savings < 999.0:
        probes.savings += 1.0
    for _ in range(100):
        probes.accrue()
        if choose(probes, [8], [0.0]) is not None:
            num_probes += 1
            probes.called(8)
    assert num_probes <= MOST_TRIALS + 1


def test_a_model_that_is_off_is_probed_on_short_texts_though_a_long_one_was_too_dear() -> None:
    probes, num_steps = Probes(balance=-600.0), 0
    assert choose(probes, [1], [600.0]) is None
    probes.end(1, 1)
    while probes.savings < probes.goal or choose(probes, [2], [0.0]) is None:
        probes.accrue()
        num_steps += 1
    assert num_steps < 2.0 / TRIAL_SHARE


def test_drafts_that_lose_cost_a_small_share_of_the_time_whatever_is_expected_of_them() -> None:
    probes, num_drafts = Probes(), 0
    for _ in range(4000):
        probes.accrue()
        if not probes.is_closed:
            num_drafts += 1
            probes.settle(-0.5)
    assert 0.5 * num_drafts <= CREDIT + TRIAL_SHARE * 4000 + 0.5


def test_a_model_that_lost_its_credit_and_became_good_drafts_again_in_the_same_request() -> None:
    controller, slot, num_drafts = make_controller(), model_slot(1, 16), 0
    controller.begin(1, "")
    ran(controller, model_call([allowed(3)], [[0.9] * 3], 9.0 * PLAIN_MS), STEP, 0)
    for step in range(2000):
        if controller.begin_model_step("model"):
            continue
        (allowance,) = grant(controller, {"model": [slot]}, STEP)["model"]
        if length := allowance.num_granted:
            call = model_call([allowance], [[0.9] * length], ROUND_MS * length)
            ran(controller, call, STEP, length if step >= 500 else 0)
            num_drafts += 1
    assert num_drafts > 1000


@pytest.mark.parametrize("times", [3.0, 100.0])
@pytest.mark.parametrize("was_timed", [False, True])
def test_a_model_slower_than_its_price_costs_a_small_share_of_the_time(times, was_timed) -> None:
    """A price learns slowly, so a probe is charged what it took."""
    controller, spent, num_steps = make_controller(), 0.0, 20_000
    if not was_timed:
        controller._model_planner.drafters.clear()
    for number in range(num_steps // ANSWER):
        controller.begin(number, "")
        for _ in range(ANSWER):
            if controller.begin_model_step("model"):
                continue
            (allowance,) = grant(controller, {"model": [model_slot(number, 16)]}, STEP)["model"]
            if length := allowance.num_granted:
                spent += times * PLAIN_MS
                call = model_call([allowance], [[0.9] * length], times * PLAIN_MS)
                ran(controller, call, STEP, 0, number=number)
        controller.end(number, ANSWER)
    # before it is known to be slow: its credit, or one call
    assert spent <= (2.0 * TRIAL_SHARE * num_steps + CREDIT + 2.0 * times) * PLAIN_MS


@pytest.mark.parametrize("catch_up", [None, 0], ids=["raises", "reads nothing"])
def test_a_model_that_fails_again_and_again_costs_a_small_share_of_the_time(catch_up):
    """One that raises is off until the request ends."""
    controller, spent, num_steps = make_controller(), 0.0, 0
    for number in range(200):
        controller.begin(number, "")
        slot = model_slot(number, 16, 600)
        for _ in range(100):
            num_steps += 1
            if controller.begin_model_step("model"):
                continue
            (allowance,) = grant(controller, {"model": [slot]}, STEP)["model"]
            if allowance.num_granted:
                spent += 20.0 * PLAIN_MS
                call = model_call([allowance], [None], 20.0 * PLAIN_MS)
                ran(controller, replace(call, catch_up=catch_up), STEP, number=number)
                if catch_up is None:
                    break
        controller.end(number, 100)
    assert spent <= (3 * TRIAL_SHARE * num_steps + 2 * CREDIT + 3 * 20.0) * PLAIN_MS


def test_a_decode_that_failed_earns_a_model_nothing() -> None:
    """All requests of the batch ended with it, so none has results."""
    controller, plan = make_controller(), make_plan(STEP)
    (answer,) = plan.answers
    call = model_call([allowed(4)], [[0.9] * 4], ROUND_MS)
    call.asked[0].answer = answer
    plan.calls = [call]
    answer.take([0] * 4, ["model"] * 4, [0.9] * 4)
    answer.num_verified = 4
    controller.read(StepRecord(plan, 0.0))
    assert controller.describe()["draft_models"]["model"]["balance"] < CREDIT


def test_what_is_read_for_a_request_may_be_earned_back_until_its_end() -> None:
    probes = Probes(unpaid=40.0)
    for _ in range(50):
        probes.settle(1.0)
    assert not probes.unpaid
    assert probes.balance == CREDIT + 10.0
    probes.unpaid = 40.0
    probes.end(7, 2)
    assert (probes.unpaid, probes.balance) == (20.0, CREDIT - 10.0)
    assert probes.is_closed


@pytest.mark.parametrize("guessed", [0.1, 0.4])
def test_a_draft_model_that_does_not_pay_beside_a_text_costs_little(guessed: float) -> None:
    """Nor one after which steps take longer than their rows should."""
    run = BothSimulation("mixed", "gpu", 1, tokens=2400, prompt=200)
    run.guessed, run.disturbance, lost_ms = guessed, 0.15, 0.0
    for policy, sign in ((run.with_text, -1.0), (run.with_both, 1.0)):
        controller = Controller()
        run.warm_up(controller)
        score = policy(controller)
        lost_ms += sign * score.milliseconds
    once = CREDIT + 4.0  # two prompts read for it
    assert lost_ms < once * run.cost(1) + 2.0 * TRIAL_SHARE * score.milliseconds
