"""A draft model that is off is looked at again, and what it has to read first is paid once."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.control import Controller, ModelDraftCall, ModelSlot, Outcome, Step
from headstart.control.probes import PROBE_SHARE, PROBE_TOKENS, Probes

STEP = Step(1, 1, 1000)
PLAIN_MS, ROUND_MS, READ_MS = 50.0, 5.0, 0.5
READ_A_CALL, ANSWER = 256, 100


def make_controller() -> Controller:
    controller = Controller()
    controller.trust_scores("model")
    for _ in range(6):
        for rows in range(1, 18):
            controller.observe_step(rows, 1000, PLAIN_MS + 2.0 * (rows - 1))
    controller.learn_draft_costs("model", ROUND_MS, READ_MS)
    return controller


def answer(controller: Controller, seq_id: int, prompt: int, *, is_good: bool) -> tuple[int, float]:
    """One request: draft tokens that were accepted, and milliseconds that drafting took."""
    unread, at, accepted, spent = prompt, 0, 0, 0.0
    controller.begin(seq_id, "")
    while at < ANSWER:
        slot = ModelSlot(seq_id, 16, catch_up=unread, num_answered=at, num_left=ANSWER - at)
        (allowance,) = controller.plan_model("model", [slot], STEP)
        matched = 0
        if allowance.max_tokens:
            num_read = min(READ_A_CALL, unread)
            unread -= num_read
            length = 0 if unread else allowance.max_tokens
            milliseconds = ROUND_MS * length + READ_MS * num_read
            spent += milliseconds
            scores = [0.9] * length
            ids, grants = ([], []) if unread else ([seq_id], [allowance])
            call = ModelDraftCall(
                "model", ids, grants, [scores] if ids else [], num_read, milliseconds
            )
            controller.observe_draft(call, STEP)
            if length:
                matched = length if is_good else 0
                outcome = Outcome(seq_id, "model", scores, matched, min(matched + 1, length))
                controller.record(outcome)
                accepted += matched
        else:
            unread += 1
        at += 1 + matched
    controller.end(seq_id, at)
    return accepted, spent


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("prompt", [200, 1000, 4000])
def test_a_model_that_became_good_is_used_again_on_long_prompts(
    prompt: int, is_restarted: bool, tmp_path: Path
) -> None:
    """Not if each probe is charged with the whole prompt and reads 256 tokens of it."""
    controller = make_controller()
    for seq_id in range(30):
        answer(controller, seq_id, prompt, is_good=False)
    if is_restarted:
        controller.save(tmp_path / "state")
        controller = Controller()
        controller.trust_scores("model")
        assert controller.load(tmp_path / "state") is None
        controller.observe_step(1, 1000, PLAIN_MS)
    accepted = [answer(controller, seq_id, prompt, is_good=True)[0] for seq_id in range(100, 220)]
    assert sum(accepted[-10:]) > 0.5 * 10 * ANSWER


@pytest.mark.parametrize("prompt", [200, 1000, 4000])
def test_a_useless_model_costs_little_however_long_the_prompts_are(prompt: int) -> None:
    controller, num_requests = make_controller(), 200
    spent = sum(answer(controller, i, prompt, is_good=False)[1] for i in range(num_requests))
    # what it may cost in the long run, and one prompt to find out
    assert spent < 1.5 * PROBE_SHARE * num_requests * ANSWER * PLAIN_MS + prompt * READ_MS


def test_reading_that_has_begun_goes_on_and_is_charged_as_it_happens() -> None:
    probes = Probes(savings=30.0)
    reading = [10.0, 20.0]
    assert (
        probes.choose([7, 8], reading, [99.0, 99.0], [False, False], 1.0) is None
    )  # one step after the last
    assert probes.choose([7, 8], reading, [99.0, 99.0], [False, False], 1.0) == 0
    for left in (7.0, 4.0, 1.0):
        probes.called([], 3.0)
        probes.save()
        assert probes.choose([7, 8], [left, 0.0], [99.0, 99.0], [False, False], 1.0) == 0
    probes.called([7], 1.0)
    assert probes.savings == pytest.approx(30.0 - 10.0 + 3 * PROBE_SHARE)
    assert probes.choose([7, 8], [0.0, 20.0], [99.0, 99.0], [True, False], 1.0) is None


def test_reading_does_not_begin_before_it_can_be_paid_to_its_end() -> None:
    probes = Probes(savings=10.0, has_credit=False)
    for _ in range(10):
        assert probes.choose([7], [10.0], [99.0], [False], 1.0) is None
    assert probes.choose([8], [0.0], [99.0], [False], PROBE_TOKENS * 0.1) == 0


def test_a_request_that_ends_leaves_no_reading_behind() -> None:
    probes = Probes(savings=50.0)
    while probes.choose([7], [10.0], [99.0], [False], 1.0) is None:
        pass
    probes.end(7)
    assert probes.reading is None


def test_a_prompt_dearer_than_the_usual_savings_is_saved_for() -> None:
    probes = Probes()
    for _ in range(20_000):
        probes.save()
        if probes.choose([7], [150.0], [500.0], [False], 1.0) is not None:
            return
    pytest.fail("never")


@pytest.mark.parametrize("prompt", [200, 1000, 4000])
def test_a_new_model_that_is_good_is_used_from_the_first_requests_on(prompt: int) -> None:
    """Savings of 1 % of the time would take thousands of tokens to pay for the first prompt."""
    controller = make_controller()
    accepted = [answer(controller, seq_id, prompt, is_good=True)[0] for seq_id in range(6)]
    assert sum(accepted) > 0.5 * 6 * ANSWER


def test_the_first_prompt_is_read_on_credit_and_no_other() -> None:
    probes = Probes()
    while probes.choose([7], [40.0], [99.0], [False], 1.0) is None:
        assert probes.steps < 5
    probes.called([7], 40.0)
    probes.end(7)
    for _ in range(1000):
        probes.save()
        assert probes.choose([8], [40.0], [99.0], [False], 1.0) is None


def test_no_prompt_is_read_that_a_perfect_model_would_not_earn_back() -> None:
    probes = Probes(savings=60.0)
    for _ in range(100):
        assert probes.choose([7], [40.0], [30.0], [False], 1.0) is None


def test_there_is_credit_again_when_a_prompt_was_earned_back() -> None:
    probes = Probes()
    for seq_id, num_right in ((7, 60), (8, 20)):
        while probes.choose([seq_id], [40.0], [99.0], [False], 1.0) is None:
            assert probes.steps < 200
        probes.called([seq_id], 40.0)
        probes.spent(seq_id, 5.0)
        probes.matched(seq_id, num_right)
        probes.end(seq_id)
    assert not probes.has_credit, "the second one was not"
