"""Calibration: scores become probabilities."""

from __future__ import annotations

import random
from itertools import accumulate
from operator import mul

import pytest

from headstart.control.calibration import Calibration


def feed(
    calibration: Calibration,
    rng: random.Random,
    acceptance: float,
    score: float,
    *,
    drafts: int,
    seq_id: int,
) -> None:
    for _ in range(drafts):
        matched = 0
        while matched < 8 and rng.random() < acceptance:
            matched += 1
        calibration.record(seq_id, "text", [score] * min(8, matched + 1), matched)


def test_survival_approaches_the_true_probability_of_each_score() -> None:
    calibration, rng = Calibration(), random.Random(1)
    for _ in range(200):
        feed(calibration, rng, 0.9, 12.0, drafts=1, seq_id=1)
        feed(calibration, rng, 0.3, 1.0, drafts=1, seq_id=2)
    calibration.end(1)
    calibration.end(2)
    good, bad = (calibration.survival("text", [score] * 8, 3) for score in (12.0, 1.0))
    assert good[0] == pytest.approx(0.9, abs=0.06)
    assert good[3] == pytest.approx(0.9**4, abs=0.12)
    assert bad[0] == pytest.approx(0.3, abs=0.1)


def test_survival_never_rises_and_stays_between_0_and_1() -> None:
    calibration, rng = Calibration(), random.Random(2)
    for _ in range(300):
        size = rng.randint(1, 20)
        scores = [rng.choice([0.0, 0.5, 1.0, 3.0, 1e9, rng.random()]) for _ in range(size)]
        matched = rng.randint(0, size)
        survival = calibration.survival("text", scores, 1)
        assert all(0.0 <= b <= a <= 1.0 for a, b in zip([1.0, *survival], survival, strict=False))
        calibration.record(1, "text", scores[: matched + rng.randint(0, 1)], matched)


@pytest.mark.parametrize("is_model", [False, True])
def test_survival_in_a_new_request_multiplies_the_rates_of_the_table(*, is_model: bool) -> None:
    calibration, rng = Calibration(), random.Random(3)
    if is_model:
        calibration.trust_scores("text")
    for _ in range(200):
        size = rng.randint(1, 20)
        scores = [rng.random() for _ in range(size)]
        matched = rng.randint(0, size)
        calibration.record(1, "text", scores[: matched + 1], matched)
    scores = [rng.random() for _ in range(20)]
    rates = list(calibration.tables["text"].rates(scores))
    survival = [one for one in calibration.survival("text", scores, 2) if one]
    assert survival == pytest.approx(list(accumulate(rates, mul))[: len(survival)])
    assert len(survival) > 3


def test_a_fully_accepted_draft_says_nothing_about_the_token_after_it() -> None:
    calibration = Calibration()
    before = calibration.survival("text", [5.0], 1)[0]
    for _ in range(50):
        calibration.record(1, "text", [5.0], 1)
    counts = calibration.tables["text"]
    assert counts.num_labels == pytest.approx(50.0, rel=0.05)
    calibration.end(1)
    assert calibration.survival("text", [5.0], 1)[0] > before + 0.2


def test_a_request_unlike_the_average_gets_its_own_level_within_a_few_drafts() -> None:
    calibration, rng = Calibration(), random.Random(3)
    for seq_id in range(40):
        feed(calibration, rng, 0.9, 6.0, drafts=10, seq_id=seq_id)
        calibration.end(seq_id)
    for _ in range(6):
        calibration.record(100, "text", [6.0], 0)
    strange, other = (
        calibration.survival("text", [6.0], 100)[0],
        calibration.survival("text", [6.0], 101)[0],
    )
    assert strange < 0.6 < 0.8 < other


def test_the_shift_of_a_request_ends_with_it() -> None:
    calibration = Calibration()
    for _ in range(20):
        calibration.record(1, "text", [6.0], 0)
    low = calibration.survival("text", [6.0], 1)
    calibration.end(1)
    assert calibration.survival("text", [6.0], 1)[0] > low[0]


def test_a_model_is_believed_until_counts_say_otherwise() -> None:
    calibration = Calibration()
    calibration.trust_scores("model")
    sure, unsure = (calibration.survival("model", [p], 1)[0] for p in (0.95, 0.1))
    assert sure > 0.7 > 0.4 > unsure
    for _ in range(200):
        calibration.record(1, "model", [0.95], 0)
    calibration.end(1)
    assert calibration.survival("model", [0.95], 1)[0] < 0.2
