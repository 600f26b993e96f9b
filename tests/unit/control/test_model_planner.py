"""Draft models: their time is earned before it is spent, by what a forecast says; of several at
most one drafts for a slot, the one that is expected to gain more.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from benchmarks.lib.steps import SlotDraft, allowed, decode, grant, model_call, model_slot, ran

from headstart.control.controller import Controller
from headstart.control.forecast import LIMITS, DraftHistory, Profile, forecast
from headstart.control.model_planner import CLOSED, REFUSED
from headstart.control.state import encode, restore
from headstart.control.values import AskedAnswer, Step

STEP, SLOT = Step(1, 1, 100), model_slot(1, 16)


def learned(
    acceptance_labels: tuple[int, int], *, round_ms: float = 5.0, row_ms: float = 15.0
) -> Controller:
    """A machine of 50 ms for one row and `row_ms` for a further one; labels: (matched, labelled) of
    each draft.
    """
    controller = Controller()
    controller.trust_scores("model")
    for _ in range(6):
        for rows in range(1, 18):
            decode(controller, rows, 100, 50.0 + row_ms * (rows - 1))
        ran(controller, model_call([allowed(4)], [[0.9] * 4], 4 * round_ms), STEP, number=0)
    matched, labelled = acceptance_labels
    for seq_id in range(60):
        call = model_call([allowed(4)], [[0.9] * 4], 4 * round_ms)
        ran(controller, call, STEP, number=seq_id)
        controller._calibration.record(seq_id, "model", [0.9] * labelled, matched)
        controller.end(seq_id, 100)
    return controller


def prices(controller: Controller) -> dict[str, Any]:
    known: dict[str, Any] = controller.describe()["draft_models"]["model"]
    return known


def granted(controller: Controller, slot: AskedAnswer, step: Step = STEP) -> AskedAnswer:
    """What one slot is allowed."""
    (allowance,) = grant(controller, {"model": [slot]}, step)["model"]
    return allowance


def test_a_good_model_may_draft_and_a_bad_or_dear_one_may_not() -> None:
    """And /props shows why."""
    good, bad, dear = learned((4, 4)), learned((0, 1)), learned((4, 4), round_ms=60.0)
    assert granted(good, SLOT).num_granted >= 3
    assert granted(bad, SLOT).num_granted == 0
    assert granted(dear, SLOT).num_granted == 0
    assert prices(good)["expected_gain"] > 0.0
    assert prices(bad)["expected_gain"] < 0.0
    assert prices(dear)["balance"] < 0.0 < prices(good)["balance"]


def test_a_long_answer_gets_drafts_though_those_before_it_were_short() -> None:
    controller = learned((4, 4))
    for number in range(100, 120):
        controller.begin(number, "")
        controller.end(number, 2)
    answers = [model_slot(1, 16, 500, num_answered=answered) for answered in (2, 1000)]
    assert [bool(granted(controller, one).num_granted) for one in answers] == [False, True]


def test_a_resting_model_says_whether_its_drafts_lost_time_or_its_plans_were_refused() -> None:
    refused, lost = learned((0, 1)), learned((4, 4))
    lost._model_planner.drafters["model"].probes.settle(-100.0)
    for controller, resting, planned in ((refused, REFUSED, ""), (lost, CLOSED, CLOSED)):
        reasons = set[str]()
        for _ in range(20):
            if reason := controller.begin_model_step("model"):
                reasons.add(reason)
            else:
                assert granted(controller, model_slot(1, 16)).reason == planned
        assert reasons == {resting}
    assert prices(lost)["expected_gain"] == 0.0


def test_an_unsure_model_is_stopped_where_it_costs_more_than_it_earns() -> None:
    """Right when sure, wrong when not, and sure half of the time: a limit spares the other half's
    rounds.
    """
    controller, slot, limits = learned((4, 4)), model_slot(1, 8), list[float]()
    for i in range(80):
        is_sure = i % 2 == 0
        scores = [0.95 if is_sure else 0.2] * 8
        allowance = granted(controller, slot)
        limits.append(allowance.min_confidence)
        if not allowance.num_granted:
            continue
        drafted = [
            score for score in scores[: allowance.num_granted] if score >= allowance.min_confidence
        ]
        rounds = min(allowance.num_granted, len(drafted) + 1)
        ran(controller, model_call([allowance], [drafted], 5.0 * rounds), STEP)
        if drafted:
            matched = len(drafted) if is_sure else 0
            controller._calibration.record(1, "model", drafted[: matched + 1], matched)
    assert sum(limit > 0.2 for limit in limits[40:]) >= 28


def test_a_slot_with_a_good_text_draft_is_left_to_it() -> None:
    controller = learned((4, 4))
    step = Step(2, 2, 100)
    slots = [SLOT, model_slot(2, 16, to_beat=15.0)]
    alone, rivalled = grant(controller, {"model": slots}, step)["model"]
    assert alone.num_granted > 0
    assert rivalled.num_granted == 0


def test_lengths_set_by_hand_pass_through() -> None:
    by_hand = SlotDraft(is_fixed=True, p_min=0.25)
    allowance = granted(learned((0, 1)), model_slot(1, 7, draft=by_hand))
    assert (allowance.num_granted, allowance.min_confidence) == (7, 0.25)


def test_no_room_means_no_draft() -> None:
    full, controller = Step(1, 1, 100, max_rows=1), learned((4, 4))
    assert granted(controller, SLOT).num_granted > 0
    assert granted(controller, SLOT, full).num_granted == 0
    assert prices(controller)["expected_gain"] == 0.0  # not that of the plan before
    assert grant(learned((4, 4)), {"model": []}, STEP)["model"] == []


def test_calls_that_only_read_teach_the_price_of_reading_and_nothing_about_drafts() -> None:
    """A long prompt is read over several calls; before its last one there is no draft to learn
    from.
    """
    controller = learned((4, 4))
    before = granted(controller, SLOT)
    for _ in range(60):
        ran(controller, model_call([allowed(4)], [None], 256 * 0.2, 256), STEP)
    assert granted(controller, SLOT) == before
    assert prices(controller)["catch_up_ms"] == pytest.approx(0.2, rel=0.05)


def test_prices_timed_before_the_first_request_are_used() -> None:
    controller = Controller()
    controller.trust_scores("model")
    controller.learn_draft_costs("model", 3.0, 0.05)
    known = prices(controller)
    assert (known["round_ms"]["1"], known["catch_up_ms"]) == (3.0, 0.05)


def test_reading_too_fast_to_be_timed_is_guessed_and_divides_nothing_by_zero() -> None:
    controller = Controller()
    controller.learn_draft_costs("model", 0.0, 0.0)
    for _ in range(3):
        ran(controller, model_call([allowed(2)], [None], 0.001, 256), STEP)
        ran(controller, model_call([allowed(2)], [[0.9] * 2], 0.001), STEP)
    assert prices(controller)["catch_up_ms"] > 0.0


def test_an_unread_prompt_does_not_keep_the_model_from_the_others() -> None:
    controller = learned((4, 4))
    step = Step(2, 2, 100)
    unread, ready = model_slot(1, 16, catch_up=20000), model_slot(2, 12)
    first, second = grant(controller, {"model": [unread, ready]}, step)["model"]
    assert (first.num_granted, second.num_granted > 0) == (0, True)


@pytest.mark.parametrize("unread", [200, 4])
def test_a_model_never_used_drafts_for_one_slot_until_it_has_shown_what_it_is_worth(unread) -> None:
    """Else it reads everybody's prompt for a belief."""
    controller, step = Controller(), Step(4, 4, 100)
    controller.trust_scores("model")
    controller.learn_draft_costs("model", 1.0, 0.2)
    for _ in range(3):
        for rows in range(1, 18):
            decode(controller, rows, 100, 50.0 + rows)
    slots = [model_slot(i, 16, catch_up=unread - i) for i in range(4)]
    granted = grant(controller, {"model": slots}, step)["model"]
    assert [one.num_granted > 0 for one in granted] == [False, False, False, True]  # the shortest
    assert [bool(one.reason) for one in granted] == [True, True, True, False]
    for _ in range(3):
        controller._calibration.record(3, "model", [0.9] * 4, 4)
    assert all(one.num_granted for one in grant(controller, {"model": slots}, step)["model"])


def test_a_probe_is_told_from_a_draft_that_is_expected_to_pay() -> None:
    """Its time is saved for, and says nothing about the speed that drafts reach."""
    for labels, is_probe in (((0, 1), True), ((4, 4), False)):
        controller = learned(labels)
        allowance = SLOT
        while not allowance.num_granted:
            controller.begin_model_step("model")
            allowance = granted(controller, SLOT)
        assert allowance.is_probe == is_probe


def test_any_room_in_the_batch_is_planned_for() -> None:
    """Longer drafts may be asked for than the batch has rows."""
    controller = learned((4, 4))
    for room in range(1, 34):
        step = Step(1, 1, 100, max_rows=1 + room)
        assert granted(controller, model_slot(1, 32), step).num_granted <= 32


SMALL_SLOT = model_slot(1, 8)


def two_models(*, round_ms: dict[str, float], num_right: dict[str, int]) -> Controller:
    """A machine of 50 ms for one row and 10 ms for a further one; of each model's drafts of four
    tokens so many are right.
    """
    controller = Controller()
    for rows in list(range(1, 18)) * 6:
        decode(controller, rows, 100, 50.0 + 10.0 * (rows - 1))
    for name, milliseconds in round_ms.items():
        controller.trust_scores(name)
        right = num_right[name]
        for seq_id in range(60):
            call = model_call([allowed(4)], [[0.9] * 4], 4 * milliseconds, name=name)
            ran(controller, call, STEP, number=seq_id)
            controller._calibration.record(seq_id, name, [0.9] * min(4, right + 1), right)
            controller.end(seq_id, 100)
    return controller


def lengths(controller: Controller, slot: AskedAnswer, order: tuple[str, ...]) -> dict[str, int]:
    for name in order:
        controller.begin_model_step(name)  # accrues the budget for probes
    planned = grant(controller, {name: [slot] for name in order}, STEP)
    return {name: allowance.num_granted for name, (allowance,) in planned.items()}


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize(
    ("num_right", "round_ms"),
    [((4, 1), (3.0, 3.0)), ((4, 4), (2.0, 9.0)), ((4, 0), (3.0, 3.0))],
    ids=["more often right", "cheaper", "the only one that pays"],
)
def test_the_better_model_drafts_whichever_is_planned_first(num_right, round_ms, *, is_first):
    names = ("good", "bad")
    controller = two_models(
        round_ms=dict(zip(names, round_ms, strict=True)),
        num_right=dict(zip(names, num_right, strict=True)),
    )
    for _ in range(10):
        planned = lengths(controller, SMALL_SLOT, names if is_first else names[::-1])
        assert planned["good"] > 0
        assert planned["bad"] == 0


def test_a_model_that_lost_is_probed_now_and_then_and_pays_for_what_that_costs() -> None:
    controller = two_models(round_ms={"good": 3.0, "bad": 3.0}, num_right={"good": 4, "bad": 1})
    num_probes = 0
    for _ in range(2000):
        planned = lengths(controller, SMALL_SLOT, ("good", "bad"))
        assert bool(planned["good"]) != bool(planned["bad"])
        for name, length in planned.items():
            if length:
                grants = [allowed(length, is_probe=name == "bad")]
                ran(controller, model_call(grants, [[0.9] * length], 9.0, name=name), STEP)
        num_probes += planned["bad"] > 0
    assert num_probes >= 1
    assert num_probes * 9.0 / 50.0 <= 0.01 * 2000


def test_with_lengths_set_by_hand_the_first_one_drafts() -> None:
    right = {"bad": 0, "good": 4}
    controller = two_models(round_ms={"bad": 3.0, "good": 3.0}, num_right=right)
    slot = model_slot(1, 8, draft=SlotDraft(is_fixed=True))
    assert lengths(controller, slot, ("bad", "good")) == {"bad": 8, "good": 0}


def test_each_slot_has_one_model_at_most_and_models_may_share_the_slots() -> None:
    controller = two_models(round_ms={"a": 3.0, "b": 3.0}, num_right={"a": 4, "b": 4})
    slots = [model_slot(seq_id, 8) for seq_id in range(1, 4)]
    step = Step(3, 3, 100)
    # where one has a long text to read, the other may draft at once
    asked = {"a": [model_slot(1, 8, catch_up=4000), *slots[1:]], "b": slots[:2]}
    planned = grant(controller, asked, step)
    drafting = {
        name: {one.number for one in granted if one.num_granted}
        for name, granted in planned.items()
    }
    assert not drafting["a"] & drafting["b"]
    assert drafting["a"] | drafting["b"] == {1, 2, 3}
    assert 1 in drafting["b"]


LENGTHS = np.array([[1, 2, 3, 4, 8, 32]])
LIMIT = LIMITS.tolist().index(0.5)


def prior(going_on: float, kept: float) -> np.ndarray:
    return np.full((len(LIMITS), 1, 2), (going_on, kept))


def expected(profile: Profile, length: int) -> float:
    """Tokens of a draft of so many that stops at the limit."""
    probabilities = profile.probabilities(prior(0.5, 0.5))[None]
    return float(forecast(probabilities, np.array([[length]]))[0][0, LIMIT, 0])


@pytest.mark.parametrize(("going_on", "kept"), [(0.8, 0.6), (1.0, 1.0), (0.0, 0.0)])
def test_a_forecast_is_the_sum_of_the_products_at_each_position(going_on, kept) -> None:
    probabilities = np.broadcast_to((going_on, kept), (1, len(LIMITS), 2, 2))
    tokens, rows, rounds = forecast(probabilities, LENGTHS)
    for i, length in enumerate(LENGTHS[0]):
        drafted = sum(going_on**i for i in range(1, length + 1))
        assert tokens[0, LIMIT, i] == pytest.approx(
            sum(kept**i for i in range(1, length + 1)), rel=1e-5
        )
        assert rows[0, LIMIT, i] == pytest.approx(drafted, rel=1e-5)
        assert rounds[0, LIMIT, i] == pytest.approx(1.0 + drafted - going_on**length, rel=1e-5)


def test_tokens_of_bursty_text_are_counted_with_what_goes_together() -> None:
    """Half of the drafts are sure to their end, half wrong from the start: averages would say 0.5 +
    0.25 + ...
    """
    profile = Profile()
    for i in range(400):
        profile.learn([0.95 if i % 2 else 0.6] * 4, [float(i % 2)] * 4, 4)
    assert expected(profile, 4) == pytest.approx(2.0, rel=0.1)


def test_a_stop_counts_for_the_limits_it_was_made_under_and_no_lower_one() -> None:
    profile = Profile()
    for _ in range(300):
        profile.learn([], [], 8, 0.5)
    for limit, probabilities in zip(LIMITS, profile.probabilities(prior(0.9, 0.8)), strict=True):
        assert probabilities[0] == pytest.approx(
            (0.9, 0.8) if limit < 0.5 else (0.0, 0.0), abs=0.02
        )


def test_a_draft_cut_by_its_length_says_nothing_about_the_next_position() -> None:
    profile = Profile()
    for _ in range(100):
        profile.learn([0.9], [0.9], 1)
    came = np.reshape(encode(profile)["came"], (-1, 2, 2))
    assert came[0, 0, 0] == 100
    assert came[0, 1, 0] == 0.0


def test_a_new_request_is_like_the_average_and_then_like_itself_until_it_rests() -> None:
    history = DraftHistory()
    for _ in range(100):
        history.learn(1, [0.9] * 4, [0.9, 0.8, 0.7, 0.6], 4)
    for _ in range(30):
        history.learn(2, [], [], 4)
    everyone, alike, unlike = history.probabilities([3, 1, 2], 0.7)[:, LIMIT, 0]
    assert unlike[0] < 0.3 < everyone[0] < alike[0]
    for _ in range(60):
        history.skip(2)
    assert history.probabilities([2], 0.7)[0, LIMIT, 0] == pytest.approx(everyone, abs=0.01)


def test_counts_stay_finite_and_survive_saving() -> None:
    history, rng = DraftHistory(), random.Random(1)
    for number in range(3000):
        scores = [rng.random() for _ in range(rng.randint(0, 4))]
        survival = [0.5**i for i in range(1, len(scores) + 1)]
        history.learn(number % 7, scores, survival, 4)
    again = DraftHistory()
    restore(again, encode(history))
    assert again.probabilities([0], 0.5) == pytest.approx(history.probabilities([99], 0.5))
    assert max(encode(history)["profile"]["came"]) < 1000.0
