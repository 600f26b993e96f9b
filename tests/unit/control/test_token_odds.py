"""Tokens that are surer, or less sure, than scores and requests say."""

from __future__ import annotations

import random

import pytest
from benchmarks.lib.steps import make_plan, make_record

from headstart.control import Step
from headstart.control.calibration import MAX_TOKENS, MAX_TOTAL, Calibration, TokenOdds
from headstart.control.controller import Controller
from headstart.control.state import encode
from headstart.scheduler.step import Offer
from headstart.types import Draft

BRACKET, NAME, BEFORE = 1, 2, 3


def taught(calibration: Calibration, seq_id: int = 0) -> Calibration:
    """Brackets are always right and names every other time, at the same score."""
    rng = random.Random(1)
    for _ in range(200):
        token = rng.choice((BRACKET, NAME))
        matched = 1 if token == BRACKET else rng.randint(0, 1)
        calibration.record(seq_id, "text", [4.0], matched, [BEFORE, token])
    return calibration


def test_a_sure_token_survives_better_than_an_unsure_one_of_the_same_score() -> None:
    calibration = taught(Calibration())
    bracket, name = (
        calibration.survival("text", [4.0], 0, [BEFORE, token])[0] for token in (BRACKET, NAME)
    )
    assert bracket > 0.9
    assert name == pytest.approx(0.5, abs=0.15)


def test_a_token_is_judged_by_the_one_before_it_too() -> None:
    calibration, rng = Calibration(), random.Random(1)
    for _ in range(300):
        before = rng.choice((BRACKET, NAME))
        calibration.record(0, "text", [4.0], int(before == BRACKET), [before, BEFORE])
    good, bad = (
        calibration.survival("text", [4.0], 0, [before, BEFORE])[0] for before in (BRACKET, NAME)
    )
    assert good > 0.8
    assert bad < 0.2


def test_a_token_never_seen_changes_nothing() -> None:
    calibration = taught(Calibration())
    for i in range(5):
        assert calibration.survival("text", [4.0] * i, 0, [98, *[99] * i]) == calibration.survival(
            "text", [4.0] * i, 0
        )


def test_a_draft_told_bit_by_bit_teaches_each_token_once() -> None:
    tokens, calibration = [9, 1, 2, 3, 4, 5], Calibration()
    offer = Offer(Draft(tokens[1:], [4.0] * 5, "text"), tokens, [])
    for emitted in ((1, 2), (3,), (4, 8)):  # the fifth token was wrong
        plan = make_plan(Step(1, 1, 0))
        plan.answers[0].offers = [offer] * (emitted == (1, 2))
        record = make_record(plan)
        record.results[0].emitted = emitted
        calibration.read(record)
    assert calibration.describe()["text"]["labels"] == pytest.approx(5.0, rel=0.01)
    odds = calibration._tokens[""]["text"]
    assert odds.drafted.keys() == {1, 2, 3, 4, 5}
    assert odds.before.keys() == {9, 1, 2, 3, 4}
    assert [odds.drafted[token][3] > 1.0 for token in tokens[1:]] == [
        True,
        True,
        True,
        True,
        False,
    ]
    assert all(n == 1.0 for n, *_ in odds.drafted.values())


def test_one_tenants_tokens_do_not_change_anothers_survival() -> None:
    calibration = Calibration()
    for seq_id, namespace in enumerate(("anna", "ben", "")):
        calibration.begin(seq_id, namespace)
    taught(calibration, seq_id=0)
    for other in (1, 2):
        survival = [
            calibration.survival("text", [4.0], other, [BEFORE, token]) for token in (BRACKET, NAME)
        ]
        assert survival[0] == survival[1]
    calibration.end(0)
    calibration.begin(0, "ben")  # the slot's next request
    assert calibration.survival("text", [4.0], 0, [BEFORE, BRACKET]) == calibration.survival(
        "text", [4.0], 0
    )


def test_tokens_are_not_saved() -> None:
    controller = Controller()
    controller.begin(0, "")
    controller._calibration.record(0, "text", [4.0], 1, [BEFORE, 123_456_789])
    assert "123456789" not in repr(encode(controller._calibration.tables))


def test_memory_is_bounded_and_tokens_seen_often_stay() -> None:
    odds = TokenOdds()
    for _ in range(3):
        odds.learn([BEFORE, BRACKET], [0.5], 1.0, num_matched=1)
    factor = odds.drafted[BRACKET]
    for token in range(100, 100 + 3 * MAX_TOKENS):
        odds.learn([BEFORE, token], [0.5], 1.0, num_matched=1)
    assert len(odds.drafted) <= MAX_TOKENS
    assert odds.drafted[BRACKET] == factor


def test_the_namespaces_used_longest_ago_are_forgotten_first() -> None:
    calibration = Calibration()
    for i in range(40):
        calibration.begin(i, str(i))
        tokens = [BEFORE, *range(MAX_TOKENS)]
        calibration.record(i, "text", [4.0] * MAX_TOKENS, 0, tokens)
    calibration.begin(40, "")
    kept = list(calibration._tokens)
    assert kept == [str(i) for i in range(40 - len(kept), 40)]
    assert (len(kept) + 1) * 2 * MAX_TOKENS > MAX_TOTAL >= len(kept) * 2 * MAX_TOKENS


def test_many_tenants_in_turn_keep_what_their_tokens_taught() -> None:
    calibration = Calibration()
    for _ in range(3):
        for tenant in range(100):
            calibration.begin(0, f"tenant {tenant}")
            for token in range(BRACKET, BRACKET + 200):
                calibration.record(0, "text", [4.0], 0, [BEFORE, token])
            calibration.end(0)
    calibration.begin(0, "tenant 0")
    known = calibration.survival("text", [4.0], 0, [BEFORE, BRACKET])
    assert known[0] < 0.9 * calibration.survival("text", [4.0], 0)[0]
