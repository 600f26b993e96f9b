"""libllama's filters over our candidates: a preselection gives what the whole vocabulary gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.models import CONTEXT, tiny_llama
from tests.real.support import engine_of

from headstart.app import demo
from headstart.engine.filters import LlamaFilters
from headstart.engine.model import Model
from headstart.sampling.sampler import Sampler
from headstart.testing import FakeEngine
from headstart.types.sampling_params import DEFAULT_SAMPLERS, LogitBias, SamplingParams

MODEL = Model(demo.path(demo.TARGET))
SIZE = MODEL.vocab.size
UNFILTERED = SamplingParams(top_k=0, top_p=1.0, min_p=0.0)
T = TypeVar("T")


class Filtering(FakeEngine):
    """No model; the real vocabulary and filters."""

    def make_filters(self, params: object) -> LlamaFilters:
        assert isinstance(params, SamplingParams)
        return LlamaFilters(MODEL.vocab, 512, params)


def sampler(**params: Any) -> Sampler:
    """With these filters alone."""
    return Sampler(replace(UNFILTERED, **params), Filtering(SIZE), MODEL.vocab.eog_ids)


def logits_of(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0.0, 3.0, SIZE).astype(np.float32)


def random_params(seed: int) -> SamplingParams:
    random = np.random.default_rng(seed)

    def one_of(*values: T) -> T:
        return values[int(random.integers(len(values)))]

    bias = {
        int(i): float(b)
        for i, b in zip(random.integers(0, SIZE, 5), random.normal(0, 8, 5), strict=True)
    }
    samplers = list(DEFAULT_SAMPLERS)
    if random.random() < 0.3:
        random.shuffle(samplers)
    return SamplingParams(
        temperature=one_of(0.0, 0.3, 0.8, 1.5),
        dynatemp_range=one_of(0.0, 0.0, 0.3),
        top_k=one_of(1, 5, 40, 300, 0),
        top_p=one_of(1.0, 0.95, 0.5),
        min_p=one_of(0.0, 0.05, 0.3),
        typical_p=one_of(1.0, 1.0, 0.7),
        top_n_sigma=one_of(-1.0, -1.0, 2.0),
        xtc_probability=one_of(0.0, 0.5),
        repeat_penalty=one_of(1.0, 1.3),
        frequency_penalty=one_of(0.0, 0.4),
        presence_penalty=one_of(0.0, -0.4),
        repeat_last_n=one_of(-1, 8, 64),
        dry_multiplier=one_of(0.0, 0.0, 0.8),
        logit_bias=LogitBias(one_of({}, bias)),
        ignore_eos=one_of(True, False),
        seed=seed,
        samplers=tuple(samplers),
    )


def text(seed: int) -> Iterator[int]:
    return iter(np.random.default_rng(seed).integers(0, 200, 90).tolist())


@pytest.mark.parametrize("seed", range(60))
def test_preselected_candidates_give_the_tokens_of_the_whole_vocabulary(seed: int) -> None:
    params = random_params(seed)
    some, whole = (Sampler(params, Filtering(SIZE), MODEL.vocab.eog_ids) for _ in range(2))
    whole._num_candidates, whole._is_argmax = 0, False
    history = [*text(seed)]
    some.read(history)
    whole.read(history)
    for position in range(90, 96):
        logits = logits_of(1000 * seed + position)
        token = some.sample(logits, position)
        assert token == whole.sample(logits, position)
        ids, probabilities = some.probabilities(logits, position)
        others, expected = whole.probabilities(logits, position)
        kept = min(len(ids), len(others), 40)
        assert ids[:kept].tolist() == others[:kept].tolist()
        if not params.is_greedy:
            np.testing.assert_allclose(probabilities[:kept], expected[:kept], rtol=1e-4)
        some.read([token])
        whole.read([token])


def test_without_filters_all_of_the_vocabulary_survives_with_its_logits() -> None:
    logits = logits_of(1)
    ids, probabilities = sampler(temperature=1.0).probabilities(logits, 0)
    weights = np.exp(logits.astype(np.float64) - logits.max())
    np.testing.assert_allclose(probabilities, (weights / weights.sum())[ids], rtol=1e-4)
    assert sorted(ids.tolist()) == list(range(SIZE))


def test_truncations_keep_what_their_definition_says() -> None:
    logits = logits_of(2)
    order = np.argsort(-logits)
    p = np.exp(logits[order].astype(np.float64) - logits.max())
    p /= p.sum()

    def survivors(**params: Any) -> list[int]:
        ids, left = sampler(temperature=1.0, **params).probabilities(logits, 0)
        return ids[np.argsort(-left)].tolist()

    assert survivors(top_k=7) == order[:7].tolist()
    assert survivors(top_p=0.6) == order[: int((np.cumsum(p) < 0.6).sum()) + 1].tolist()
    assert survivors(min_p=0.1) == order[: int((p >= 0.1 * p[0]).sum())].tolist()
    assert survivors(min_p=1.0, min_keep=3) == order[:3].tolist()


def test_xtc_drops_all_but_the_last_token_above_its_threshold_as_often_as_asked() -> None:
    """The candidates stay right after it moved them (it once left the next call writing past their
    end).
    """
    logits = np.full(SIZE, -20.0, np.float32)
    logits[[10, 20, 30, 40]] = [4.0, 3.9, 3.8, 1.0]
    one = sampler(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.2, top_k=4)
    survivors = [one.probabilities(logits, t)[0].tolist() for t in range(400)]
    assert {tuple(s) for s in survivors} == {(10, 20, 30, 40), (30, 40)}
    assert 150 < survivors.count([30, 40]) < 250
    assert survivors == [one.probabilities(logits, t)[0].tolist() for t in range(400)]


def test_penalties_count_the_last_tokens_of_the_text_only() -> None:
    logits = np.zeros(SIZE, np.float32)
    logits[:3] = [5.0, 4.0, 3.0]
    one = sampler(temperature=0.0, repeat_last_n=2, presence_penalty=2.5)
    chosen = []
    for position in range(6):
        chosen.append(one.sample(logits, position))
        one.read(chosen[-1:])
    assert chosen == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("penalty", ["repeat_penalty", "dry_multiplier"])
def test_the_whole_context_counts_where_it_is_longer_than_in_training(penalty, tmp_path) -> None:
    engine = engine_of(tiny_llama(tmp_path / "tiny.gguf"), context=2 * CONTEXT)
    params = replace(UNFILTERED, temperature=0.0, repeat_last_n=-1, dry_penalty_last_n=-1)
    one = Sampler(replace(params, **{penalty: 5.0}), engine, ())
    one.read([1, 2, 3, *[4] * CONTEXT, 1, 2])  # 3 comes next again
    logits = np.zeros(engine.vocab_size, np.float32)
    logits[[3, 5]] = [3.0, 2.0]
    assert one.sample(logits, CONTEXT + 5) == 5


def test_dry_breaks_a_repetition() -> None:
    # no sequence breakers
    letters = [t for t in range(SIZE) if MODEL.vocab.token_bytes(t).isalpha()][:5]
    logits = np.zeros(SIZE, np.float32)
    logits[letters[3:]] = [3.0, 2.0]
    loop = letters[:4] * 4 + letters[:3]
    plain, dry = sampler(temperature=0.0), sampler(temperature=0.0, dry_multiplier=5.0)
    dry.read(loop)
    assert plain.sample(logits, len(loop)) == letters[3]
    assert dry.sample(logits, len(loop)) == letters[4]


@pytest.mark.parametrize("seed", range(40))
def test_one_candidate_that_is_far_ahead_is_what_the_filters_leave(seed: int) -> None:
    """The sampler does not ask libllama then: it must leave what libllama leaves."""
    params, logits = random_params(seed), logits_of(seed)
    random = np.random.default_rng(seed)
    best, second = random.choice(SIZE, 2, replace=False)
    gap = random.choice([0.5, 1.2, 2.9, 3.1, 6.0])
    logits[best] = logits.max() + 8.0
    logits[second] = logits[best] - gap
    for chosen in (params, SamplingParams(seed=seed), SamplingParams(top_p=1.0, seed=seed)):
        fast = Sampler(chosen, Filtering(SIZE), MODEL.vocab.eog_ids)
        slow = Sampler(chosen, Filtering(SIZE), MODEL.vocab.eog_ids)
        slow._gap = None
        for position in range(4):
            assert fast.sample(logits, position) == slow.sample(logits, position)
            ours, theirs = (one.probabilities(logits, position) for one in (fast, slow))
            assert ours[0].tolist() == theirs[0].tolist()
            assert np.allclose(ours[1], theirs[1], rtol=1e-6)


def test_default_samplers_decide_most_tokens_without_libllama() -> None:
    """Else the shortcut is never taken and the test above says nothing."""
    assert Sampler(SamplingParams(), Filtering(SIZE), ())._gap is not None
    assert Sampler(SamplingParams(repeat_penalty=1.2), Filtering(SIZE), ())._gap is None


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.5])
@pytest.mark.parametrize("lead", [0.0, 3.0, 40.0])
@pytest.mark.parametrize("bias", [-np.inf, 2.5, -3.0])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_a_token_with_a_bias_is_as_one_that_the_model_says_more_or_less_or_rules_out(
    temperature: float, lead: float, bias: float, penalty: float
) -> None:
    """Also where it is the best one, alone or by far, and where it is none of the best."""
    settings = {"temperature": temperature, "top_k": 40, "min_p": 0.05, "top_p": 0.95, "seed": 7}
    settings["repeat_penalty"] = penalty
    for seed in range(40):
        logits = logits_of(seed)
        order = np.argsort(-logits)
        banned = [int(order[0]), int(order[3]), int(order[-1])]
        logits[banned[0]] += lead
        logits[order[1]] += lead * (seed % 2)
        bans = SamplingParams(logit_bias=LogitBias(dict.fromkeys(banned, bias)), **settings)
        ruled_out = logits.copy()
        ruled_out[banned] += np.float32(bias)
        own = Sampler(bans, Filtering(SIZE), ())
        plain = Sampler(SamplingParams(**settings), Filtering(SIZE), ())
        for one in (own, plain):
            one.read([*map(int, order[1:5])])
        assert own.sample(logits, seed) == plain.sample(ruled_out, seed)
        if temperature:  # nobody couples a greedy request
            assert own.couple(logits, seed) == plain.couple(ruled_out, seed)
