"""What a draft model reads has to be earned by as many drafts as there will be."""

from __future__ import annotations

import pytest
from tests.unit.control.test_drafting import STEP, learned

from headstart.control import ModelSlot
from headstart.control.reading import GAP_DRAFTS, USES, Answers, Reading


def test_a_prompt_is_read_for_a_long_answer_and_not_for_its_last_tokens() -> None:
    controller = learned((4, 4))
    first, last = ModelSlot(1, 4, catch_up=200, num_left=100), ModelSlot(2, 4, catch_up=200, num_left=5)
    assert controller.plan_model("model", [last], STEP)[0].max_tokens == 0
    assert controller.plan_model("model", [first], STEP)[0].max_tokens > 0


def test_a_prompt_is_not_read_where_answers_are_short() -> None:
    slot = ModelSlot(99, 4, catch_up=200)
    grants = []
    for length in (400, 3):
        controller = learned((4, 4))
        for seq_id in range(100):
            controller.end(seq_id, length)
        grants.append(controller.plan_model("model", [slot], STEP)[0].max_tokens)
    assert grants[0] > 0
    assert grants[1] == 0


def test_the_expected_rest_follows_the_answers_and_never_passes_max_tokens() -> None:
    answers = Answers()
    for _ in range(200):
        answers.end(30)
    assert answers.left(ModelSlot(1, 16)) == pytest.approx(30.0, rel=0.05)
    assert answers.left(ModelSlot(1, 16, num_left=7)) == 7
    assert answers.left(ModelSlot(1, 16, num_left=0)) == 1


def test_drafts_per_token_are_counted_from_the_first_use_on() -> None:
    reading = Reading()
    for seq_id in range(100):
        for at in range(50, 90, 2):
            reading.grant(ModelSlot(seq_id, 16, num_answered=at))
            reading.drafted(seq_id)
        reading.end(seq_id, 90)
    assert reading.num_drafts(ModelSlot(0, 16), 80.0) == pytest.approx(40.0, rel=0.05)


def test_a_model_that_is_not_used_gets_another_chance() -> None:
    reading = Reading()
    for seq_id in range(20):
        reading.grant(ModelSlot(seq_id, 16))
        reading.drafted(seq_id)
        reading.end(seq_id, 1000)
    assert reading.uses < 0.1 * USES
    for seq_id in range(200):
        reading.end(seq_id, 1000)
    assert reading.uses == pytest.approx(USES, rel=0.05)


def test_a_gap_is_paid_by_the_drafts_until_the_next_one() -> None:
    reading = Reading()
    slot = ModelSlot(1, 16)
    reading.grant(slot)
    reading.drafted(1)
    assert reading.num_drafts(slot, 1000.0) == GAP_DRAFTS
    for i in range(200):
        reading.grant(ModelSlot(1, 16, catch_up=20 if i % 10 == 0 else 1))
        reading.drafted(1)
    assert reading.num_drafts(slot, 1000.0) == pytest.approx(10.0, rel=0.05)


def test_a_long_prompt_is_one_reading_over_several_steps() -> None:
    """What was read is paid for: the rest must not look dearer than the beginning, nor count as drafts."""
    reading = Reading()
    unread = ModelSlot(1, 16, catch_up=1000)
    share = reading.num_drafts(unread, 100.0)
    for left in (1000, 744, 488, 232):
        assert reading.num_drafts(ModelSlot(1, 16, catch_up=left), 100.0) == share
        reading.grant(ModelSlot(1, 16, catch_up=left))
    reading.drafted(1)
    assert reading.num_drafts(ModelSlot(1, 16), 100.0) == GAP_DRAFTS
    for seq_id in range(2, 40):  # read, and never drafted for
        reading.grant(ModelSlot(seq_id, 16, catch_up=1000))
        reading.end(seq_id, 100)
    assert reading.uses < 0.1 * USES
