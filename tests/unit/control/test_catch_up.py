"""What a draft model reads has to be earned by as many drafts as there will be."""

from __future__ import annotations

import pytest
from benchmarks.lib.steps import grant
from tests.unit.control.test_model_planner import STEP, learned

from headstart.control import ModelSlot
from headstart.control.catch_up import SHARE, AnswerLength, CatchUpEstimate


def test_a_prompt_is_read_for_a_long_answer_and_not_for_its_last_tokens() -> None:
    controller = learned((4, 4))
    first, last = (
        ModelSlot(1, 4, catch_up=200, num_left=100),
        ModelSlot(2, 4, catch_up=200, num_left=5),
    )
    assert grant(controller, {"model": [last]}, STEP)["model"][0].max_tokens == 0
    assert grant(controller, {"model": [first]}, STEP)["model"][0].max_tokens > 0


def test_a_prompt_is_not_read_where_answers_are_short() -> None:
    slot = ModelSlot(99, 4, catch_up=200)
    allowances = []
    for length in (400, 3):
        controller = learned((4, 4))
        for seq_id in range(100):
            controller.end(seq_id, length)
        allowances.append(grant(controller, {"model": [slot]}, STEP)["model"][0].max_tokens)
    assert allowances[0] > 0
    assert allowances[1] == 0


def test_the_expected_rest_follows_the_answers_and_never_passes_max_tokens() -> None:
    answers = AnswerLength()
    for _ in range(200):
        answers.end(30)
    assert answers.left(ModelSlot(1, 16)) == pytest.approx(30.0, rel=0.05)
    assert answers.left(ModelSlot(1, 16, num_left=7)) == 7
    assert answers.left(ModelSlot(1, 16, num_left=0)) == 1


def test_the_share_of_tokens_is_counted_from_the_first_use_on() -> None:
    catch_up = CatchUpEstimate()
    for seq_id in range(100):
        for at in range(50, 90, 4):
            catch_up.granted(ModelSlot(seq_id, 16, num_answered=at))
            catch_up.drafted(seq_id, 1.0)
        catch_up.end(seq_id, 90)
    assert catch_up.share == pytest.approx(0.5, rel=0.05)
    # 80 tokens to come, half of them of steps with drafts, two a step: 20 drafts
    assert 2.0 * catch_up.part(80.0) == pytest.approx(1 / 20, rel=0.05)


def test_a_model_that_is_not_used_gets_another_chance() -> None:
    catch_up = CatchUpEstimate()
    for seq_id in range(20):
        catch_up.granted(ModelSlot(seq_id, 16))
        catch_up.drafted(seq_id, 1.0)
        catch_up.end(seq_id, 1000)
    assert catch_up.share < 0.1 * SHARE
    for seq_id in range(200):
        catch_up.end(seq_id, 1000)
    assert catch_up.share == pytest.approx(SHARE, rel=0.05)


def test_a_prompt_that_was_read_for_nothing_lowers_the_share() -> None:
    catch_up = CatchUpEstimate()
    for seq_id in range(2, 40):  # read, and never drafted for
        for left in (1000, 744, 488, 232):
            catch_up.granted(ModelSlot(seq_id, 16, catch_up=left))
        catch_up.end(seq_id, 100)
    assert catch_up.share < 0.1 * SHARE
