"""The forecast of a draft: its product formulas, what stops say, and what is leaned on."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headstart.control.forecast import LIMITS, DraftHistory, Profile, forecast
from headstart.control.state import encode, restore

LENGTHS = np.array([[1, 2, 3, 4, 8, 32]])
LIMIT = LIMITS.tolist().index(0.5)


def prior(going_on: float, kept: float) -> np.ndarray:
    return np.full((len(LIMITS), 1, 2), (going_on, kept))


def expected(profile: Profile, length: int) -> float:
    """Tokens of a draft of so many that stops at the limit."""
    rates = profile.rates(prior(0.5, 0.5))[None]
    return float(forecast(rates, np.array([[length]]))[0][0, LIMIT, 0])


@pytest.mark.parametrize(("going_on", "kept"), [(0.8, 0.6), (1.0, 1.0), (0.0, 0.0)])
def test_a_forecast_is_the_sum_of_the_products_at_each_position(going_on, kept) -> None:
    rates = np.broadcast_to((going_on, kept), (1, len(LIMITS), 2, 2))
    tokens, rows, rounds = forecast(rates, LENGTHS)
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
    for limit, rates in zip(LIMITS, profile.rates(prior(0.9, 0.8)), strict=True):
        assert rates[0] == pytest.approx((0.9, 0.8) if limit < 0.5 else (0.0, 0.0), abs=0.02)


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
    everyone, alike, unlike = history.rates([3, 1, 2], 0.7)[:, LIMIT, 0]
    assert unlike[0] < 0.3 < everyone[0] < alike[0]
    for _ in range(60):
        history.skip(2)
    assert history.rates([2], 0.7)[0, LIMIT, 0] == pytest.approx(everyone, abs=0.01)


def test_counts_stay_finite_and_survive_saving() -> None:
    history, rng = DraftHistory(), random.Random(1)
    for number in range(3000):
        scores = [rng.random() for _ in range(rng.randint(0, 4))]
        survival = [0.5**i for i in range(1, len(scores) + 1)]
        history.learn(number % 7, scores, survival, 4)
    again = DraftHistory()
    restore(again, encode(history))
    assert again.rates([0], 0.5) == pytest.approx(history.rates([99], 0.5))
    assert max(encode(history)["profile"]["came"]) < 1000.0
