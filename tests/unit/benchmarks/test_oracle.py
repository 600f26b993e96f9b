"""Hindsight: as fast as any choice of lengths on the same drafts, and never impossibly fast; and
the tables of the simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random

import pytest
from benchmarks import control_simulation
from benchmarks.lib.arms import parse_arm
from benchmarks.lib.curves import CostCurve
from benchmarks.lib.oracle import Guesses, Oracle, most_rows
from tests.unit.benchmarks.texts import CPU, TILES, make_replay, make_texts

SEVERAL_USERS = 0.01  # by how much an arm may be ahead where hindsight is not exact


def oracle(curve: CostCurve, num_users: int = 1, round_ms: float = 0.0) -> Oracle:
    return Oracle([0.0, *(curve(rows) for rows in range(1, most_rows(num_users) + 1))], round_ms)


def make_guesses(random: Random, length: int) -> Guesses:
    """How far drafts are right: a run ends where it ends, wherever it is entered."""
    text = [random.choice((0, 0, 3, 8)) for _ in range(length)]
    return Guesses(text, [random.choice((0, 1, 5)) for _ in range(length)])


def least_ms(guesses: Guesses, curve: CostCurve, round_ms: float) -> float:
    """All ways to choose lengths, tried one by one."""

    @cache
    def after(at: int) -> float:
        left = len(guesses.text) - at
        if not left:
            return 0.0
        text, model = min(left - 1, guesses.text[at]), min(left - 1, guesses.model[at])
        ways = [curve(1 + n) + after(at + 1 + n) for n in range(text + 1)]
        ways += [curve(1 + n) + n * round_ms + after(at + 1 + n) for n in range(model + 1)]
        return min(ways)

    return after(0)


@pytest.mark.parametrize("curve", [CPU, TILES])
@pytest.mark.parametrize("round_ms", [0.0, 6.0, 1000.0])
def test_hindsight_of_one_user_is_the_best_of_all_choices(curve, round_ms) -> None:
    random = Random(1)
    for length in (1, 2, 7, 40):
        guesses = make_guesses(random, length)
        best = oracle(curve, round_ms=round_ms).best([[guesses]])
        assert length / best == pytest.approx(least_ms(guesses, curve, round_ms))


def test_without_right_guesses_hindsight_is_off() -> None:
    wrong = [[Guesses([0] * 9, [0] * 9), Guesses([0] * 4, [0] * 4)]]
    assert oracle(CPU, 2).best(wrong) == pytest.approx(oracle(CPU, 2).plain(wrong))
    assert oracle(CPU, 2).plain(wrong) == pytest.approx(13 / (4 * CPU(2) + 5 * CPU(1)))


@pytest.mark.parametrize(("curve", "tolerance"), [(CPU, 0.01), (TILES, 0.05)])
def test_hindsight_of_two_users_is_near_the_best_of_all_choices(curve, tolerance) -> None:
    random, ratios = Random(2), []
    for _ in range(10):
        group = [make_guesses(random, random.randint(12, 20)) for _ in range(2)]
        spent = sum(len(guesses.text) for guesses in group) / oracle(curve, 2).best([group])
        ratios.append(spent / least_together(group, curve))
    assert min(ratios) > 0.999_999, "nothing is faster than the best"
    assert sum(ratios) / len(ratios) < 1 + tolerance


def least_together(group: Sequence[Guesses], curve: CostCurve) -> float:
    """As `least_ms`, for slots that share each step, and draft models that cost nothing."""

    @cache
    def after(places: tuple[int, ...]) -> float:
        ways = [[()]]
        for guesses, at in zip(group, places, strict=True):
            left = len(guesses.text) - at
            most = min(left - 1, max(guesses.text[at], guesses.model[at])) if left else -1
            steps = range(1, most + 2) if left else (0,)
            ways.append([(*way, step) for way in ways[-1] for step in steps])
        if not any(ways[-1][0]):
            return 0.0
        return min(
            curve(sum(way)) + after(tuple(at + step for at, step in zip(places, way, strict=True)))
            for way in ways[-1]
        )

    return after((0,) * len(group))


@pytest.mark.parametrize("curve", [CPU, TILES])
@pytest.mark.parametrize(("num_users", "tolerance"), [(1, 0.0), (4, SEVERAL_USERS)])
@pytest.mark.parametrize("types", ["suffix", "ngram-simple"])
def test_no_arm_is_ahead_of_hindsight(curve, num_users, tolerance, types) -> None:
    texts, replay = make_texts(8), make_replay(num_users, curve)
    best = replay.hindsight([types], texts)
    names = ["off", *(f"{types}@{length}" for length in (1, 2, 4, 8, 16)), f"auto:{types}"]
    rates = {name: replay.run(parse_arm(name), texts).rate for name in names}
    assert {name: rate for name, rate in rates.items() if rate > best * (1 + tolerance)} == {}


@pytest.mark.parametrize(
    "rows",
    [
        lambda: control_simulation.texts_and_machines(20, 1),
        lambda: control_simulation.tiled(20, 1),
        lambda: control_simulation.hybrids(20, 1),
        lambda: control_simulation.exact(20, 1),
    ],
    ids=["table", "tiled", "hybrids", "exact"],
)
def test_a_line_has_a_speed_for_each_policy_and_a_ratio_for_each_pair(rows) -> None:
    line = next(rows())
    ratios = len(line.compared) * len(line.others)
    assert ratios
    numbers = str(line).removeprefix(line.name).split()
    assert len(numbers) == len(line.speeds) + bool(line.setting) + ratios
