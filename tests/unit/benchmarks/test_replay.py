"""Replay: the texts are given, the clock adds up what decodes cost, and nothing else counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.lib.arms import OFF, ArmTotals, parse_arm
from benchmarks.lib.curves import CostCurve
from benchmarks.lib.engines import Clock, PricedEngine, SilentEngine
from benchmarks.lib.replay import load_texts, save_texts
from tests.unit.benchmarks.texts import CPU, DRAFT, make_replay, make_texts

from headstart.testing import FakeFilters
from headstart.types import Batch
from headstart.types.errors import ConfigError

ARMS = (
    "off",
    "suffix@4",
    "ngram-simple@16",
    "draft-model@3",
    "suffix,draft-model@4",
    "auto:suffix,draft-model",
)


def tokens(totals: ArmTotals) -> list[tuple[int, ...]]:
    return [text for run in totals.runs for text in run.texts]


@pytest.mark.parametrize("name", ARMS)
@pytest.mark.parametrize("num_users", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_arm_says_the_recorded_texts(name: str, num_users: int, temperature: float) -> None:
    texts = make_texts(4, temperature)
    totals = make_replay(num_users).run(parse_arm(name), texts)
    assert tokens(totals) == [tuple(text.answer) for text in texts]
    assert (totals.num_drafted > 0) == (name != "off")


@pytest.mark.parametrize("num_users", [1, 2, 4])
def test_off_takes_a_step_of_one_row_per_user_for_each_token(num_users: int) -> None:
    totals = make_replay(num_users).run(OFF, make_texts(4))
    assert totals.rate == pytest.approx(1000.0 * num_users / CPU(num_users), rel=1e-9)
    assert totals.acceptance_length == 1.0


def test_a_step_costs_what_those_cost_that_still_write() -> None:
    short, long = make_texts(1, length=10)[0], make_texts(1, length=30, seed=1)[0]
    totals = make_replay(2).run(OFF, [short, long])
    assert totals.seconds == pytest.approx((10 * CPU(2) + 20 * CPU(1)) / 1000.0)


def test_accepted_drafts_save_time_and_rejected_ones_cost_it() -> None:
    (text,) = make_texts(1, length=64)
    repeated = replace(text, answer=[*text.prompt[:32], *text.prompt[:32]])
    arm = parse_arm("suffix@4")
    replay = make_replay()
    helped, hindered = replay.run(arm, [repeated]), replay.run(arm, [text])
    assert helped.rate > 1.5 * replay.run(OFF, [repeated]).rate
    assert helped.rate > 1.2 * hindered.rate
    rows = [sum(one.num_outputs for one in step.results) for step in hindered.runs[0].steps]
    assert sum(rows) == hindered.num_drafted + hindered.runs[0].stats[0].num_steps
    assert hindered.num_wasted > 0
    assert hindered.seconds == pytest.approx(sum(map(CPU, rows)) / 1000.0), (
        "rejected rows are paid for"
    )


def test_the_time_of_a_prompt_does_not_count() -> None:
    (text,) = make_texts(1)
    longer = replace(text, prompt=[*text.prompt, *text.prompt])
    assert make_replay().run(OFF, [longer]).seconds == pytest.approx(
        make_replay().run(OFF, [text]).seconds
    )


def test_the_time_of_a_draft_model_counts() -> None:
    texts, arm = make_texts(2), parse_arm("draft-model@3")
    cheap, dear = make_replay(), make_replay()
    assert cheap.draft is not None
    dear = replace(dear, draft=(cheap.draft[0], CostCurve.parse("1:400,64:401")))
    assert cheap.run(arm, texts).seconds < dear.run(arm, texts).seconds / 2
    steps = [step for run in cheap.run(arm, texts).runs for step in run.steps]
    drafting = [step.draft_ms for step in steps if step.draft_ms]
    assert drafting
    assert min(drafting) >= DRAFT(1) * (1 - 1e-9)


def test_two_runs_of_an_arm_are_alike() -> None:
    texts, arm = make_texts(6, 1.0), parse_arm("auto:suffix,draft-model")
    first, second = (make_replay(2).run(arm, texts) for _ in range(2))
    assert first.seconds == second.seconds
    assert first.num_drafted == second.num_drafted


def test_an_arm_without_its_draft_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="draft-model@3 needs a draft model"):
        make_replay(has_draft=False).run(parse_arm("draft-model@3"), make_texts(1))


def test_saved_texts_load_as_they_were(tmp_path: Path) -> None:
    texts = make_texts(3, 0.7)
    save_texts(tmp_path / "texts.json", texts)
    assert load_texts(tmp_path / "texts.json") == texts


CURVE = CostCurve.parse("1:10,2:14,8:20,16:60")


def test_a_curve_is_linear_between_its_points_and_beyond_the_last_two() -> None:
    assert [CURVE(rows) for rows in (1, 2, 8, 16)] == [10.0, 14.0, 20.0, 60.0]
    assert [CURVE(rows) for rows in (5, 12, 24)] == [17.0, 40.0, 100.0]
    assert CostCurve({4: 20.0, 8: 40.0})(2) == 10.0, "before the first two as well"


@pytest.mark.parametrize(
    "text",
    ["", "1", "1:48", "1:48,", "1:48,2", "1:a,2:b", "0:4,1:8", "1:0,2:1", "1:-4,2:5", "1:nan,2:5"],
)
def test_what_is_no_curve_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="cost curve"):
        CostCurve.parse(text)


def test_a_scripted_engine_says_the_script_whatever_was_decoded() -> None:
    engine = SilentEngine(32, 4, FakeFilters)
    engine.scripts = {0: [1, 2, 3, 4], 1: [9, 8, 7]}
    batch = Batch(8)
    batch.add(0, 0, [1, 30, 30], 3)  # the last two are wrong drafts: positions decide
    batch.add(1, 1, [8], 1)
    assert engine.decode(batch).argmax(1).tolist() == [2, 3, 4, 7]
    batch.clear()
    batch.add(1, 2, [7], 1)  # the script is over
    assert not engine.decode(batch).any()


def test_every_row_has_its_price_also_one_without_logits() -> None:
    clock = Clock()
    engine = PricedEngine(SilentEngine(32, 4, FakeFilters), CURVE, clock)
    batch = Batch(8)
    batch.add(0, 0, [1, 2, 3, 4, 5, 6, 7, 8], 1)
    engine.decode(batch)
    assert clock() == pytest.approx(CURVE(8) / 1000.0)
