"""Draft models: their time is earned before it is spent."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.lib.steps import allowed, decode, grant, model_call, model_slot, ran

from headstart.control import AskedAnswer, Controller, Step

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
    allowance = granted(learned((0, 1)), model_slot(1, 7, fixed_confidence=0.25))
    assert (allowance.num_granted, allowance.min_confidence) == (7, 0.25)


def test_no_room_means_no_draft() -> None:
    full = Step(1, 1, 100, max_rows=1)
    assert granted(learned((4, 4)), SLOT, full).num_granted == 0
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
            allowance = granted(controller, SLOT)
        assert allowance.is_probe == is_probe


def test_any_room_in_the_batch_is_planned_for() -> None:
    """Longer drafts may be asked for than the batch has rows."""
    controller = learned((4, 4))
    for room in range(1, 34):
        step = Step(1, 1, 100, max_rows=1 + room)
        assert granted(controller, model_slot(1, 32), step).num_granted <= 32
