"""What would have been: a run that is walked through on paper takes as long as the real one."""

from __future__ import annotations

import random

import pytest

from headstart.control import Controller
from headstart.control.counterfactual import (
    HINDSIGHT,
    LENGTHS,
    Counterfactual,
    Guess,
    SpeculatorPrices,
    SpeedSums,
    WrittenText,
    best_length,
    counterfactual,
)

STEP = [0.0, *(40.0 + 5.0 * rows for rows in range(1, 33))]
TEXT = 600


def flags(seed: int, stay: float = 0.9) -> list[bool]:
    """Which tokens of a text are guessed: passages that are, and passages that are not."""
    rng, is_right, text = random.Random(seed), True, []
    for _ in range(TEXT):
        is_right = is_right if rng.random() < stay else not is_right
        text.append(is_right)
    return text


def right_at(text: list[bool], at: int, most: int) -> int:
    for i in range(most):
        if at + i >= len(text) or not text[at + i]:
            return i
    return most


def run(text: list[bool], length: int, price: SpeculatorPrices) -> tuple[float, list[Guess]]:
    """Really drafting so many tokens a step: tokens per second, and the guesses made."""
    at, milliseconds, guesses = 1, 0.0, []
    while at < len(text):
        offered = min(32, len(text) - at)
        guesses.append(Guess(at, offered, right_at(text, at, offered)))
        n = min(length, offered)
        milliseconds += price.step[1 + n] + n * price.round
        at += 1 + right_at(text, at, n)
    return 1000.0 * (len(text) - 1) / milliseconds, guesses


@pytest.mark.parametrize("really", [0, 1, 3, 8])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_run_with_another_length_is_estimated_from_the_guesses_of_this_one(
    really: int, seed: int
) -> None:
    text, price = flags(seed), SpeculatorPrices(STEP)
    told = counterfactual({"text": run(text, really, price)[1]}, WrittenText(TEXT), {"text": price})
    speeds = told.by_speculator["text"]
    for length in (1, 2, 4, 8):
        assert speeds[str(length)].speed == pytest.approx(run(text, length, price)[0], rel=0.03)
    assert told.off.speed == pytest.approx(1000.0 / STEP[1])


def test_hindsight_is_better_than_any_fixed_length_and_off() -> None:
    text, price = flags(5), SpeculatorPrices(STEP)
    told = counterfactual({"text": run(text, 4, price)[1]}, WrittenText(TEXT), {"text": price})
    speeds = told.by_speculator["text"]
    assert speeds[HINDSIGHT].speed >= max(speeds[str(k)].speed for k in LENGTHS)
    assert speeds[HINDSIGHT].speed > told.off.speed
    assert told.hindsight.speed == pytest.approx(speeds[HINDSIGHT].speed)


def test_hindsight_of_all_is_no_slower_than_that_of_one() -> None:
    """Also where one is known at easy places only, and another that is never right everywhere."""
    prices = {"text": SpeculatorPrices(STEP), "model": SpeculatorPrices(STEP, 1.0, is_model=True)}
    guesses = {"text": [Guess(1, 16, 16)], "model": []}
    written = WrittenText(TEXT, picks={"model": [False] * (TEXT - 1)})
    told = counterfactual(guesses, written, prices)
    assert told.hindsight.speed >= told.by_speculator["text"][HINDSIGHT].speed
    assert told.hindsight is not told.by_speculator["text"][HINDSIGHT], "both are summed up"


def test_a_model_pays_for_its_rounds_and_its_reading() -> None:
    text = flags(7)
    prices = {
        "cheap": SpeculatorPrices(STEP, 1.0, is_model=True),
        "dear": SpeculatorPrices(STEP, 20.0, is_model=True),
        "reads": SpeculatorPrices(STEP, 1.0, reading=20_000.0, is_model=True),
    }
    guesses = run(text, 4, prices["cheap"])[1]
    told = counterfactual(dict.fromkeys(prices, guesses), WrittenText(TEXT), prices).by_speculator
    speeds = {name: told[name]["4"].speed for name in prices}
    assert speeds["cheap"] > speeds["dear"]
    assert speeds["cheap"] > speeds["reads"]
    seconds = (TEXT - 1) / speeds["cheap"]
    assert speeds["reads"] == pytest.approx((TEXT - 1) / (seconds + 20.0), rel=0.05)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_model_that_has_read_the_text_is_estimated_without_a_draft_of_it(seed: int) -> None:
    text, price = flags(seed), SpeculatorPrices(STEP, 2.0, is_model=True)
    written = WrittenText(TEXT, max_tokens=TEXT, picks={"model": text[1:]})
    told = counterfactual({"model": []}, written, {"model": price}).by_speculator["model"]
    for length in (1, 2, 4, 8, 16):
        assert told[str(length)].speed == pytest.approx(run(text, length, price)[0], rel=0.005)


def test_what_a_model_was_not_asked_about_is_filled_in() -> None:
    """Asked in some passages only, for three tokens where the text may go on for ten."""
    price, ratios = SpeculatorPrices(STEP, 2.0, is_model=True), []
    for seed in range(12):
        text = flags(seed)
        asked = [at for at in range(1, TEXT - 3, 2) if at // 40 % 2]
        guesses = [Guess(at, 3, right_at(text, at, 3)) for at in asked]
        told = counterfactual({"model": guesses}, WrittenText(TEXT), {"model": price})
        assert told.num_seen["model"] < 0.6 * TEXT
        ratios.append(
            [told.by_speculator["model"][str(k)].speed / run(text, k, price)[0] for k in (2, 4, 8)]
        )
    for of_length in zip(*ratios, strict=True):
        assert sum(of_length) / len(of_length) == pytest.approx(1.0, abs=0.06)


def test_a_model_that_stopped_early_is_taken_to_go_on_as_it_did() -> None:
    """Drafts of two tokens say what drafts of four would have given."""
    text, price = [i % 7 != 0 for i in range(TEXT)], SpeculatorPrices(STEP, 2.0, is_model=True)
    short = [Guess(at, 2, right_at(text, at, 2)) for at in range(1, TEXT - 2, 3)]
    told = counterfactual({"model": short}, WrittenText(TEXT), {"model": price})
    really = run(text, 4, price)[0]
    assert told.by_speculator["model"]["4"].speed == pytest.approx(really, rel=0.12)


def test_the_error_covers_what_texts_differ_by_and_falls_with_more_of_them() -> None:
    price, errors = SpeculatorPrices(STEP), []
    speeds, total = [], Counterfactual()
    for seed in range(40):
        guesses = {"text": run(flags(seed), 4, price)[1]}
        told = counterfactual(guesses, WrittenText(TEXT), {"text": price})
        sums = told.by_speculator["text"]["4"]
        speeds.append(sums.speed)
        errors.append(sums.error or 0.0)
        total += told
    mean = sum(speeds) / len(speeds)
    spread = (sum((speed - mean) ** 2 for speed in speeds) / len(speeds)) ** 0.5
    assert 0.5 * spread < sum(errors) / len(errors) < 2.0 * spread
    whole = total.by_speculator["text"]["4"]
    assert whole.speed == pytest.approx(mean, rel=0.05)
    assert (whole.error or 0.0) < 0.3 * spread
    assert total.num_tokens == 40 * (TEXT - 1)


def test_too_little_text_has_no_error_and_no_text_no_answer() -> None:
    assert SpeedSums().error is None
    assert SpeedSums().speed == 0.0
    told = counterfactual(
        {"text": [Guess(1, 2, 2)]}, WrittenText(4), {"text": SpeculatorPrices(STEP)}
    )
    assert told.by_speculator["text"]["2"].error is None
    controller = Controller()
    assert controller.counterfactual({"text": []}, WrittenText(50, 10)) is None, "no prices yet"
    controller.observe_step(1, 10, 50.0)
    assert controller.counterfactual({}, WrittenText(50, 10)) is None, "no speculator"
    assert controller.counterfactual({"text": []}, WrittenText(1, 10)) is None
    assert controller.describe()["counterfactual"] is None


def test_a_speculator_that_never_guessed_costs_nothing_and_gives_nothing() -> None:
    controller = Controller()
    controller.observe_step(1, 10, 50.0)
    guesses = {"text": [Guess(at, 0, 0) for at in range(1, 50)]}
    told = controller.counterfactual(guesses, WrittenText(50, 10))
    assert told is not None
    one = told.describe()["speculators"]["text"]
    assert one["speedup"] == pytest.approx(1.0)
    assert one["share_seen"] == 1.0
    assert best_length(told.by_speculator["text"]) == "1"
    assert controller.describe()["counterfactual"]["num_tokens"] == 49
