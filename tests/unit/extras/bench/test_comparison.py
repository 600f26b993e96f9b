"""What is concluded from measured times, on a pretended server and engine, and how it is told."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from benchmarks.lib.curves import CostCurve
from benchmarks.lib.engines import Clock, PricedEngine

from headstart.extras.bench.client import Answer
from headstart.extras.bench.command import BenchOptions, measure
from headstart.extras.bench.comparison import AUTO, LEAST_ROUNDS, OFF, Cell, Scores, bases, compare
from headstart.extras.bench.library import Question
from headstart.extras.bench.report import MeanRatio, standard_error, table_head, table_row
from headstart.extras.bench.steps import break_even, time_steps
from headstart.extras.bench.tables import verdicts
from headstart.testing import FakeEngine
from headstart.types import CacheKind
from headstart.types.errors import ConfigError

CELL = Cell("edit", 0.0, 2)
Played = tuple[list[Answer], dict[str, float]]


class Machine:
    """Answers at a speed of each arm, on a clock of its own, with noise."""

    def __init__(self, **seconds: float) -> None:
        self.now, self.random, self.seconds = 0.0, Random(1), seconds
        self.asked: list[str] = []

    def play(self, arm: str, cell: Cell, number: int) -> Played:
        self.asked.append(arm)
        started, slow = self.now, Random(number).uniform(0.8, 1.2)  # the text, alike for all
        self.now += self.seconds[arm] * slow * self.random.lognormvariate(0.0, 0.02)
        timings = {"draft_n": 4, "draft_n_accepted": 3}
        middle = (started + self.now) / 2
        answer = Answer("text", started, [middle, self.now], 10, timings)
        counters = {"target": 9.0, "draft": 1.0, "drafted 0": 4.0, "accepted 0": 3.0}
        return [answer] * cell.users, counters

    def compare(self, error: float = 0.01, seconds: float = 1e9) -> Scores:
        arms = list(self.seconds)
        return compare(
            arms, [CELL], self.play, error=error, seconds=seconds, clock=lambda: self.now
        )


@pytest.mark.parametrize(
    ("seconds", "verdict"), [(1.0, "no difference"), (1.05, "slower"), (0.9, "faster")]
)
def test_a_planted_difference_is_found_and_none_is_invented(seconds: float, verdict: str) -> None:
    machine = Machine(off=1.0, auto=seconds)
    scores = machine.compare(error=0.005)[CELL]
    assert scores[AUTO].relative_to(scores[OFF]).verdict == verdict
    sentence = next(iter(verdicts({CELL: scores})))
    assert f": {verdict}; slower in {int(verdict == 'slower')} of 1 lines" in sentence


def test_a_text_that_ends_early_makes_an_arm_neither_slower_nor_faster() -> None:
    """The time to the first token belongs to fewer tokens then."""

    def play(arm: str, cell: Cell, number: int) -> Played:
        num_tokens, seconds = (33, 0.03) if arm == AUTO else (64, 0.06)
        answer = Answer("text", 0.0, [3.0, 3.0 + seconds * num_tokens], num_tokens)
        return [answer] * cell.users, {}

    scores = compare([OFF, AUTO], [CELL], play, error=0.1, seconds=0.0)[CELL]
    usual = (33 + 64) / 2
    expected = (3.0 + 0.06 * usual) / (3.0 + 0.03 * usual)
    assert scores[AUTO].relative_to(scores[OFF]).mean == pytest.approx(expected)


def test_rounds_end_when_the_ratio_is_certain_or_time_is_over() -> None:
    machine = Machine(off=1.0, auto=0.5)
    scores = machine.compare(error=0.05)[CELL]
    assert LEAST_ROUNDS <= len(scores[OFF].rates) < 40
    assert scores[AUTO].relative_to(scores[OFF]).error <= 0.05
    hurried = Machine(off=1.0, auto=0.5).compare(error=1e-9, seconds=0.0)[CELL]
    assert len(hurried[OFF].rates) == LEAST_ROUNDS


def test_what_was_measured_before_an_interrupt_is_told() -> None:
    machine, other = Machine(off=1.0, auto=0.5), Cell("chat", 0.0, 1)

    def play(arm: str, cell: Cell, number: int) -> Played:
        if len(machine.asked) == 7:  # the third round has begun
            raise KeyboardInterrupt
        return machine.play(arm, cell, number)

    scores = compare([OFF, AUTO], [CELL, other], play, error=1e-9, seconds=0.0)
    assert [len(one.rates) for one in scores[CELL].values()] == [2, 2]
    assert [len(one.rates) for one in scores[other].values()] == [1, 1]
    machine.asked = [""] * 7
    with pytest.raises(KeyboardInterrupt):
        compare([OFF, AUTO], [CELL], play, error=1e-9, seconds=0.0)


class Asked:
    """A client that remembers what it was asked."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, int, int]] = []
        self.texts: list[object] = []
        self.tenants: list[str] = []

    def ask_all(self, questions: Sequence[Question], **fields: Any) -> list[Answer]:
        self.rounds.append((len(questions), fields["users"], fields["seed"]))
        self.texts += [question.turns for question in questions]
        self.tenants += fields["tenants"]
        return [Answer("text", 0.0, [1.0, 2.0], 10)]

    def counters(self) -> dict[str, float]:
        return {}


@pytest.mark.parametrize(
    ("temperature", "against", "count"), [(1.0, "other", 8), (0.0, "other", 2), (1.0, None, 2)]
)
def test_programs_that_draw_different_texts_are_asked_more_questions(temperature, against, count):
    clients: dict[str, Any] = {OFF: Asked(), "other": Asked()}
    options = BenchOptions(against=against, seconds=0.0)
    measure(clients, [Cell("chat", temperature, 2)], None, options)
    assert clients[OFF].rounds == [(count, 2, number * count) for number in range(LEAST_ROUNDS)]
    assert clients[OFF].texts == clients["other"].texts
    assert len({*clients[OFF].texts}) > 1


@pytest.mark.parametrize("remember", [False, True])
def test_a_question_that_comes_again_is_asked_by_another_tenant(remember: bool) -> None:
    """Otherwise its earlier answer would be copied."""
    client: Any = Asked()
    lines = [Question((name,)) for name in "abc"]
    options = BenchOptions(remember=remember, seconds=0.0)
    measure({OFF: client}, [Cell("prompts", 0.0, 2)], lines, options)
    assert client.texts == [(name,) for name in "abcabc"]
    assert client.tenants == [*["off"] * 3, *["off" if remember else "off, 1"] * 3]


def test_who_begins_changes_from_round_to_round() -> None:
    machine = Machine(off=1.0, auto=1.0)
    machine.compare(error=1e-9, seconds=0.0)
    assert machine.asked == [OFF, AUTO, AUTO, OFF, OFF, AUTO]


def test_the_baseline_is_the_best_that_can_be_set_by_hand() -> None:
    machine = Machine(**{"off": 1.0, "fixed 4": 0.7, "fixed 8": 0.9, "auto": 0.5, "other": 0.1})
    scores = machine.compare(seconds=0.0)[CELL]
    assert bases(scores) == {"off": "off", "best by hand": "fixed 4", "best other": "other"}
    assert scores[AUTO].tokens_per_step == pytest.approx(20 / 14)
    assert scores[AUTO].rows_per_token == pytest.approx(22 / 20)
    assert scores[AUTO].shares == pytest.approx({"target": 0.9, "draft": 0.1, "other": 0.0})
    assert scores[AUTO].acceptance == [(12.0, 9.0)]


def test_the_error_of_many_values_is_the_standard_error() -> None:
    values = [1.0, 2.0, 3.0] * 1000
    assert standard_error(values) == pytest.approx(math.sqrt(2 / 3 / 3000), rel=1e-3)


@pytest.mark.parametrize("num_values", [2, 3, 5, 10, 11, 30])
def test_two_errors_miss_the_truth_once_in_twenty_times_however_few_values(num_values: int) -> None:
    random, num_runs = Random(num_values), 5_000
    misses = 0
    for _ in range(num_runs):
        values = [random.gauss(1.0, 0.1) for _ in range(num_values)]
        found = MeanRatio(statistics.fmean(values), standard_error(values))
        misses += found.verdict != "no difference"
    assert 0.035 < misses / num_runs < 0.06


def test_a_ratio_and_its_inverse_average_to_one() -> None:
    assert MeanRatio.of_ratios([2.0, 0.5]).mean == pytest.approx(1.0)


def test_one_value_has_no_error() -> None:
    assert str(MeanRatio(1.5, standard_error([1.5]))) == "1.50"


def test_a_table_has_a_cell_for_each_column() -> None:
    lines = [*table_head("name", "ratio").splitlines(), table_row("auto", MeanRatio(1.2, 0.05))]
    assert lines == ["| name | ratio |", "| --- | --- |", "| auto | 1.20 ± 0.05 |"]


CURVE = CostCurve.parse("1:10,2:14,8:20,16:60")


@pytest.mark.parametrize("cache_kind", list(CacheKind))
def test_timed_steps_give_back_the_curve_of_a_priced_engine(cache_kind: CacheKind) -> None:
    clock, fake = Clock(), FakeEngine(cache_kind=cache_kind)
    engine = PricedEngine(fake, CURVE, clock)
    times = time_steps(engine, [1, 2, 8, 16], context=300, num_repeats=3, clock=clock)
    for kind in times:
        assert list(kind) == [1, 2, 8, 16]
        for rows, values in kind.items():
            assert values == pytest.approx([CURVE(rows)] * 3)
    assert fake.cells_used() == 0


def test_steps_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="do not fit into 64"):
        time_steps(FakeEngine(context_size=64), [8], context=60, num_repeats=1)


@pytest.mark.parametrize(("num_draft", "steps"), [(1, 1.4), (3, 2.0), (8, 1.2), (15, 9.0)])
def test_a_draft_gives_as_many_tokens_as_it_costs_steps_where_it_breaks_even(num_draft, steps):
    rate = break_even(num_draft, steps)
    assert rate is not None
    assert sum(rate**k for k in range(num_draft + 1)) == pytest.approx(steps)


def test_a_draft_that_costs_a_step_a_token_never_pays() -> None:
    assert break_even(3, 4.0) is None
