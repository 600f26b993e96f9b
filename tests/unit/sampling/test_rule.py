"""The sampling rule: an exact sample of p, a function of logits, parameters, seed and position
alone.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headstart.sampling.noise import gumbel, uniform
from headstart.sampling.sampler import Sampler
from headstart.sampling.thoughts import ThoughtCounter
from headstart.sampling.verify import emit, filtered_logprobs, token_logprobs
from headstart.testing import FakeEngine
from headstart.types.constraint import NO_LIMIT, ThoughtLimit
from headstart.types.errors import RequestError
from headstart.types.request import TokenLogprob
from headstart.types.sampling_params import LogitBias, SamplingParams

SIZE, NUM_DRAWS = 8, 20_000
LOGITS = np.random.default_rng(3).normal(0.0, 1.5, SIZE).astype(np.float32)


def sampler(vocab_size: int = SIZE, eog_ids: tuple[int, ...] = (), **params: Any) -> Sampler:
    defaults: dict[str, Any] = {"temperature": 1.0, "top_k": 0}
    params["logit_bias"] = LogitBias(params.get("logit_bias", {}))
    return Sampler(SamplingParams(**{**defaults, **params}), FakeEngine(vocab_size), eog_ids)


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def total_variation(tokens: list[int], p: NDArray[np.float64]) -> float:
    counts = np.bincount(tokens, minlength=len(p))
    return 0.5 * float(np.abs(counts / len(tokens) - p).sum())


def test_over_positions_tokens_are_distributed_as_the_softmax() -> None:
    one = sampler(seed=11)
    assert (
        total_variation([one.sample(LOGITS, t) for t in range(NUM_DRAWS)], softmax(LOGITS)) < 0.02
    )


def test_over_seeds_tokens_are_distributed_as_the_softmax() -> None:
    ids = np.arange(SIZE, dtype=np.int32)
    tokens = [int((LOGITS + gumbel(seed, 5, ids)).argmax()) for seed in range(NUM_DRAWS)]
    assert total_variation(tokens, softmax(LOGITS)) < 0.02


def test_temperature_and_top_k_give_their_distribution() -> None:
    one = sampler(seed=1, temperature=0.6, top_k=3)
    best = np.argsort(-LOGITS)[:3]
    p = np.zeros(SIZE)
    p[best] = softmax(LOGITS[best] / np.float32(0.6))
    assert total_variation([one.sample(LOGITS, t) for t in range(NUM_DRAWS)], p) < 0.02


def test_neighbouring_positions_are_independent() -> None:
    one = sampler(seed=2)
    tokens = np.array([one.sample(LOGITS, t) for t in range(NUM_DRAWS + 1)])
    pairs = tokens[:-1] * SIZE + tokens[1:]
    p = softmax(LOGITS)
    assert total_variation(pairs.tolist(), np.outer(p, p).ravel()) < 0.035


def test_noise_of_a_token_depends_neither_on_order_nor_on_company() -> None:
    ids = np.arange(1000, dtype=np.int32)
    noise = gumbel(7, 42, ids)
    shuffled = np.random.default_rng(0).permutation(ids)
    assert (gumbel(7, 42, shuffled) == noise[shuffled]).all()
    for size in range(1, 20):  # few are mixed in another way
        assert (gumbel(7, 42, ids[-size:]) == noise[-size:]).all()
    for seed, position in ((8, 42), (7, 43), (42, 7)):
        assert abs(np.corrcoef(noise, gumbel(seed, position, ids))[0, 1]) < 0.1


def test_noise_is_gumbel_and_finite_for_the_largest_seed_position_and_id() -> None:
    noise = gumbel(2**32 - 1, 2**31 - 1, np.arange(200_000, dtype=np.int32))
    assert np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(0.5772, abs=0.02)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.05)


def test_uniform_numbers_are_uniform_and_differ_by_salt() -> None:
    draws = np.array([uniform(3, t, 1) for t in range(5000)])
    other = np.array([uniform(3, t, 2) for t in range(5000)])
    assert np.histogram(draws, 10, (0, 1))[0].min() > 400
    assert abs(np.corrcoef(draws, other)[0, 1]) < 0.05


def test_a_nearly_equal_draft_model_draws_the_same_token_more_often_coupled_than_argmax() -> None:
    random = np.random.default_rng(0)
    hits = {"coupled": 0, "argmax": 0}
    one = sampler(64, seed=9)
    for t in range(500):
        target = random.normal(0.0, 2.0, 64).astype(np.float32)
        choice = one.couple(target + random.normal(0.0, 0.3, 64).astype(np.float32), t)
        token = one.sample(target, t)
        hits["coupled"] += token == choice.coupled
        hits["argmax"] += token == choice.argmax
    assert hits["coupled"] > 400
    assert hits["coupled"] > 1.5 * hits["argmax"]


def test_a_choice_tells_the_probability_of_both_tokens() -> None:
    one = sampler(seed=4)
    for t in range(20):
        choice = one.couple(LOGITS, t)
        assert choice.coupled == one.sample(LOGITS, t)
        assert choice.argmax == LOGITS.argmax()
        assert choice.coupled_probability == pytest.approx(
            softmax(LOGITS)[choice.coupled], rel=1e-5
        )
        assert choice.argmax_probability == pytest.approx(softmax(LOGITS).max(), rel=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{}, {"top_k": 5}, {"top_k": 5, "ignore_eos": True}, {"logit_bias": {63: 5.0}}, {"top_k": 64}],
)
def test_padding_of_a_draft_vocabulary_changes_no_choice(settings: dict[str, Any]) -> None:
    random, one = np.random.default_rng(0), sampler(64, (3, 5), seed=9, **settings)
    for t in range(200):
        row = random.normal(0.0, 2.0, 70).astype(np.float32)
        row[60:] = -np.inf
        choices = [one.couple(row[:size], t) for size in (60, 64, 70)]
        assert choices[0] == choices[1] == choices[2]


def test_the_only_candidate_left_is_certain() -> None:
    best = int(LOGITS.argmax())
    rest = LOGITS.copy()
    rest[best] = -np.inf
    only = sampler(top_k=1, logit_bias={best: float("-inf")})
    for t in range(20):
        choice = only.couple(LOGITS, t)
        assert only.sample(LOGITS, t) == choice.coupled == choice.argmax == rest.argmax()
        assert choice.coupled_probability == choice.argmax_probability == 1.0


def test_greedy_takes_the_first_of_equal_logits() -> None:
    tied = np.zeros(SIZE, np.float32)
    tied[[2, 5]] = 1.0
    assert sampler(temperature=0.0).sample(tied, 0) == 2
    assert sampler(temperature=0.0, logit_bias={7: 1.0}).sample(tied, 0) == 2


def test_bias_moves_and_forbids_tokens_also_greedily() -> None:
    best = int(LOGITS.argmax())
    assert sampler(temperature=0.0, logit_bias={best: -100.0, 1: 100.0}).sample(LOGITS, 0) == 1
    never = sampler(logit_bias={best: float("-inf")})
    assert best not in {never.sample(LOGITS, t) for t in range(200)}


def test_ignoring_the_end_of_the_turn_forbids_all_its_tokens() -> None:
    best = int(LOGITS.argmax())
    ignoring = sampler(eog_ids=(best, 0), ignore_eos=True, temperature=0.0)
    rest = LOGITS.copy()
    rest[[best, 0]] = -np.inf
    assert ignoring.sample(LOGITS, 0) == rest.argmax()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_emitted_tokens_follow_the_rule_along_the_draft_and_end_at_the_first_difference(
    temperature: float,
) -> None:
    rows = np.random.default_rng(1).normal(0.0, 2.0, (5, SIZE)).astype(np.float32)
    one = sampler(seed=5, temperature=temperature)
    right = [one.sample(row, 10 + i) for i, row in enumerate(rows)]
    assert emit(one, rows, right[:4], 10, ()) == right
    assert emit(one, rows[:1], [], 10, ()) == right[:1]
    for wrong in range(4):
        draft = [*right[:wrong], (right[wrong] + 1) % SIZE, *right[wrong + 1 : 4]]
        assert emit(one, rows, draft, 10, ()) == right[: wrong + 1]
    assert emit(one, rows, right[:4], 10, {right[2]}) == right[: right.index(right[2]) + 1]


@pytest.mark.parametrize("last_n", [-1, 1, 3, 64])
def test_the_penalty_window_holds_the_last_tokens_however_they_arrive(last_n: int) -> None:
    random = np.random.default_rng(last_n + 1)
    one = sampler(repeat_penalty=1.5, repeat_last_n=last_n)
    text: list[int] = []
    for _ in range(30):
        more = random.integers(0, SIZE, random.integers(0, 6)).tolist()
        text += more
        one.read(more)
        window = one._window
        assert window is not None
        assert sorted(window.ids().tolist()) == sorted(set(text if last_n < 0 else text[-last_n:]))


def peak_bytes(function: Callable[[], object]) -> int:
    """The most memory that a call held beyond what was there before."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_many_banned_tokens_cost_a_token_no_more_than_a_look_at_each(temperature: float) -> None:
    size, num_banned = 100_000, 5_000
    logits = np.random.default_rng(5).normal(0.0, 2.0, size).astype(np.float32)
    banned = np.argsort(-logits)[:num_banned].tolist()
    one = sampler(
        size, temperature=temperature, top_k=40, logit_bias=dict.fromkeys(banned, -np.inf)
    )
    allowed = np.argsort(-logits)[num_banned : num_banned + 40]
    assert one.sample(logits, 0) in allowed[: 1 if temperature == 0.0 else 40]
    assert peak_bytes(lambda: one.sample(logits, 0)) < 32 * size


@pytest.mark.parametrize(
    ("params", "num_read"),
    [
        ({"repeat_penalty": 1.5, "repeat_last_n": 64}, 64),
        ({"repeat_penalty": 1.5, "dry_multiplier": 0.8, "dry_penalty_last_n": 100}, 100),
        ({"repeat_penalty": 1.5, "repeat_last_n": -1}, 1000),
    ],
)
def test_filters_read_no_more_of_a_prompt_than_they_look_back(params, num_read) -> None:
    one = sampler(**params)
    read: list[int] = []
    one._filters.accept = read.append  # type: ignore[method-assign]
    one.begin(range(1000))
    while not one.read_on():
        pass
    assert read == list(range(1000))[-num_read:]


def test_text_is_only_read_when_a_filter_looks_at_it() -> None:
    assert not sampler().reads_text
    assert not sampler(repeat_penalty=1.5, repeat_last_n=0).reads_text
    assert sampler(presence_penalty=0.5).reads_text
    assert sampler(dry_multiplier=0.8).reads_text
    assert not sampler(presence_penalty=0.5, samplers=("top_k",)).reads_text


def test_log_probabilities_are_the_log_softmax_best_first() -> None:
    one = token_logprobs(LOGITS, 3, 4)
    own, top = one.logprob, one.alternatives()
    expected = np.log(softmax(LOGITS))
    assert own == pytest.approx(expected[3], abs=1e-6)
    assert [i for i, _ in top] == np.argsort(-LOGITS, kind="stable")[:4].tolist()
    assert [p for _, p in top] == pytest.approx(np.sort(expected)[::-1][:4].tolist(), abs=1e-6)
    assert token_logprobs(LOGITS, 3, 0) == TokenLogprob(3, own)
    assert token_logprobs(LOGITS, 3, 100).num_alternatives == SIZE


@pytest.mark.parametrize("count", [1500, 4000, 6000])
def test_very_many_alternatives_are_the_best_too_and_the_lower_id_counts_among_equals(count):
    logits = np.random.default_rng(2).integers(0, 50, 5000).astype(np.float32)
    found = token_logprobs(logits, 3, count)
    best = np.argsort(-logits, kind="stable")[:count]
    assert [i for i, _ in found.alternatives()] == best.tolist()
    exact = np.log(softmax(logits))[best]
    assert [p for _, p in found.alternatives()] == pytest.approx(exact.tolist(), abs=1e-5)


def test_log_probabilities_hold_no_row_in_double_precision() -> None:
    """A long prompt is scored row by row between two steps."""
    row = np.random.default_rng(1).normal(0.0, 4.0, 200_000).astype(np.float32)
    own = token_logprobs(row, 7, 0).logprob
    exact = row[7] - row.max() - np.log(np.exp(row.astype(np.float64) - row.max()).sum())
    assert own == pytest.approx(exact, abs=1e-6)
    assert peak_bytes(lambda: token_logprobs(row, 7, 0)) < 10 * len(row)


def test_log_probabilities_after_the_filters_sum_to_one() -> None:
    one = sampler(top_k=3, temperature=0.5)
    ids, probabilities = one.probabilities(LOGITS, 0)
    assert probabilities.sum() == pytest.approx(1.0)
    found = filtered_logprobs(ids, probabilities, int(ids[1]), 10)
    own, top = found.logprob, found.alternatives()
    assert [i for i, _ in top] == np.argsort(-LOGITS)[:3].tolist()
    assert own == pytest.approx(top[1][1])
    gone = next(i for i in range(SIZE) if i not in ids)
    assert filtered_logprobs(ids, probabilities, gone, 1).logprob == -np.inf


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", float("nan")), ("top_p", 1.5), ("top_k", -1),
        ("min_p", "x"), ("seed", 2**32), ("repeat_penalty", 0.0), ("repeat_last_n", -2),
        ("samplers", ("mirostat",)),
    ],
)  # fmt: skip
def test_values_that_cannot_be_honoured_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(
        RequestError, match=rf"{name}.*{value if name != 'samplers' else 'mirostat'}"
    ):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_a_near_tie_is_a_choice_that_is_won_by_less_than_its_margin(temperature: float) -> None:
    one = sampler(seed=3, temperature=temperature)
    scores = LOGITS + temperature * gumbel(3, 7, np.arange(SIZE, dtype=np.int32))
    second, best = np.sort(scores)[-2:]
    counts = []
    for share in (0.0, 0.9, 1.1):
        one.tie_margin = share * float(best - second)
        one.sample(LOGITS, 7)
        counts.append(one.num_near_ties)
    assert counts == [0, 0, 1]


CLOSING = tuple(b"!</t>")


def counter(max_tokens: int = 3, *, is_thinking: bool = True) -> ThoughtCounter:
    limit = ThoughtLimit(
        max_tokens=max_tokens,
        start=b"<t>",
        ends=(b"</t>",),
        closing=CLOSING,
        is_thinking=is_thinking,
    )
    return ThoughtCounter(limit, lambda token: bytes([token]))


def read(thoughts: ThoughtCounter, text: bytes) -> ThoughtCounter:
    for token in text:
        thoughts.read(token)
    return thoughts


def test_thoughts_are_ended_after_so_many_tokens() -> None:
    thoughts = read(counter(), b"ab")
    assert (thoughts.num_free, list(thoughts.closing())) == (1, [])
    read(thoughts, b"c")
    for index in range(len(CLOSING)):
        assert tuple(thoughts.closing()) == CLOSING[index:]
        thoughts.read(CLOSING[index])
    assert not read(thoughts, b"a long answer").closing()
    assert thoughts.num_free == NO_LIMIT


def test_thoughts_that_end_by_themselves_are_left_alone() -> None:
    assert not read(counter(9), b"ab</t>and so on and on").closing()


def test_thoughts_may_end_with_any_of_several_marks() -> None:
    limit = ThoughtLimit(
        max_tokens=9,
        start=b"<t>",
        ends=(b"</t>", b"</a long mark>"),
        closing=CLOSING,
        is_thinking=True,
    )
    thoughts = ThoughtCounter(limit, lambda token: bytes([token]))
    assert not read(thoughts, b"a</a long mark>and so on and on").closing()
    assert read(thoughts, b"<t>" + b"a" * 9).closing()


def test_thoughts_count_from_their_mark_on_and_each_anew() -> None:
    thoughts = read(counter(is_thinking=False), b"hello world")
    assert not thoughts.closing()
    assert not read(thoughts, b"<t>ab").closing()
    assert tuple(read(thoughts, b"c").closing()) == CLOSING
    read(thoughts, bytes(CLOSING))
    assert not read(thoughts, b"answer<t>ab").closing()
    assert read(thoughts, b"c").closing()


def test_a_character_is_not_cut() -> None:
    euro = "\u20ac".encode()
    for cut in (1, 2):
        thoughts = read(counter(cut), euro[:cut])
        assert not thoughts.closing()
        assert thoughts.num_free == 1
        assert read(thoughts, euro[cut:]).closing()


def test_a_mark_that_may_have_begun_counts_like_any_text() -> None:
    assert read(counter(4), b"ab</").closing()


def test_biases_of_another_type_are_refused_where_they_are_given() -> None:
    with pytest.raises(RequestError, match=r"logit_bias is .* but must be a LogitBias"):
        SamplingParams(logit_bias={3: 1.0})  # type: ignore[arg-type]
