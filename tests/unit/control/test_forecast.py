"""The forecast of a draft: its product formulas, what stops say, and what is leaned on."""

from __future__ import annotations

import random

import pytest

from headstart.control.codec import encode, restore
from headstart.control.forecast import LENGTHS, THRESHOLDS, Profile, forecast
from headstart.control.values import Allowance

LIMIT = THRESHOLDS.index(0.5)


@pytest.mark.parametrize(("going_on", "kept"), [(0.8, 0.6), (1.0, 1.0), (0.0, 0.0)])
def test_a_forecast_is_the_sum_of_the_products_at_each_position(
    going_on: float, kept: float
) -> None:
    known = forecast([(going_on, kept)] * 8)
    for length, tokens, rows in zip(LENGTHS, known.tokens, known.rows, strict=True):
        assert tokens == pytest.approx(sum(kept**i for i in range(1, length + 1)), rel=1e-5)
        assert rows == pytest.approx(sum(going_on**i for i in range(1, length + 1)), rel=1e-5)


def test_tokens_of_bursty_text_are_counted_with_what_goes_together() -> None:
    """Half of the drafts are sure to their end, half wrong from the start: averages would say 0.5 +
    0.25 + ...
    """
    profile = Profile()
    for i in range(400):
        score = 0.95 if i % 2 else 0.6
        profile.learn([score] * 4, [float(i % 2)] * 4, Allowance(4))
    known = forecast(profile.rates(LIMIT, (0.5, 0.5)))
    assert known.tokens[LENGTHS.index(4)] == pytest.approx(2.0, rel=0.1)


def test_a_stop_counts_for_the_limits_it_was_made_under_and_no_lower_one() -> None:
    profile = Profile()
    for _ in range(300):
        profile.learn([], [], Allowance(8, 0.5))
    for t, threshold in enumerate(THRESHOLDS):
        going_on, kept = profile.rates(t, (0.9, 0.8))[0]
        if threshold < 0.5:
            assert (going_on, kept) == pytest.approx((0.9, 0.8))
        else:
            assert going_on < 0.02
            assert kept < 0.02


def test_a_draft_cut_by_its_length_says_nothing_about_the_next_position() -> None:
    profile = Profile()
    for _ in range(100):
        profile.learn([0.9, 0.9], [0.9, 0.8], Allowance(2))
    came = encode(profile)["came"]
    assert came[0] > 50
    assert came[2] == 0.0


def test_a_new_request_is_like_the_average_and_then_like_itself() -> None:
    average, request = [(0.9, 0.8)] * 8, Profile(0.9)
    assert request.rates_of_request(LIMIT, average)[0] == pytest.approx(average[0])
    for _ in range(30):
        request.learn([], [], Allowance(4))
    assert request.rates_of_request(LIMIT, average)[0][0] < 0.3


def test_counts_stay_finite_and_survive_saving() -> None:
    profile, rng = Profile(0.9), random.Random(1)
    for _ in range(3000):
        scores = [rng.random() for _ in range(rng.randint(0, 4))]
        profile.learn(scores, [0.5**i for i in range(1, len(scores) + 1)], Allowance(4))
    again = Profile()
    restore(again, encode(profile))
    for mine, other in zip(
        profile.rates(LIMIT, (0.5, 0.5)), again.rates(LIMIT, (0.5, 0.5)), strict=True
    ):
        assert mine == pytest.approx(other)
    state = encode(profile)
    assert max(state["came"]) < 20.0 * state["unit"]
