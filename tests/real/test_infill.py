"""Filling in on the embedded model, which was trained to, and libllama's sampler for it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import numpy as np
import pytest
from tests.real.support import engine_of, serving_demo
from tests.server.test_infill import FIELDS, LLAMA_VIM

from headstart.app import demo
from headstart.engine.context import LlamaEngine
from headstart.sampling.sampler import Sampler
from headstart.types.errors import NotSupportedError
from headstart.types.sampling_params import SamplingParams

CODE = {
    "input_prefix": "class Stack:\n    def __init__(self):\n        self.items = []\n\n",
    "prompt": "    def push(self, item):\n        ",
    "input_suffix": "\n\n    def pop(self):\n        return self.items.pop()\n",
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx2.Client]:
    with serving_demo() as client:
        yield client


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaEngine]:
    engine = engine_of(demo.path(demo.TARGET))
    yield engine
    engine.close()


def test_llama_vims_request_after_its_warm_up_is_read_from_the_cache(client: httpx2.Client) -> None:
    body = LLAMA_VIM | CODE | {"n_predict": 24, "t_max_predict_ms": 60_000}
    warm_up = body | {"n_predict": 0, "response_fields": [""]}
    assert client.post("/infill", json=warm_up).json() == {}
    answer = client.post("/infill", json=body).json()
    assert list(answer) == FIELDS
    assert isinstance(answer["content"], str)
    assert 1 <= answer["timings/predicted_n"] <= 24
    assert (answer["timings/prompt_n"], answer["truncated"]) == (1, False)
    assert answer["tokens_cached"] > 40


def test_the_prompt_has_the_form_the_model_was_trained_on(client: httpx2.Client) -> None:
    answer = client.post("/infill", json=CODE | {"n_predict": 8, "temperature": 0}).json()
    prefix, suffix = CODE["input_prefix"] + CODE["prompt"], CODE["input_suffix"]
    assert answer["prompt"] == f"<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>"
    assert answer["content"]


def test_a_text_ends_before_a_line_with_too_little_indentation(client: httpx2.Client) -> None:
    settings = {"temperature": 0, "n_predict": 48, "cache_prompt": False}
    body = CODE | settings | {"speculative": {"mode": "off"}}
    whole = client.post("/infill", json=body).json()
    cut = client.post("/infill", json=body | {"n_indent": 99}).json()
    line, rest = whole["content"].split("\n", 1)
    assert cut["content"] == line + "\n" + rest[: len(rest) - len(rest.lstrip(" \t"))]
    assert (cut["stop_type"], cut["generation_settings"]["n_indent"]) == ("limit", 99)
    assert cut["tokens_predicted"] < whole["tokens_predicted"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_sampler_needs_no_more_than_top_k_candidates(engine: LlamaEngine, temperature) -> None:
    params = SamplingParams(
        temperature=temperature, top_k=40, top_p=0.9, samplers=("top_k", "top_p", "infill")
    )
    random, eog = np.random.default_rng(0), engine.model.vocab.eog_ids
    sampler = Sampler(params, engine, eog)
    filters, everything = engine.make_filters(params), np.arange(engine.vocab_size, dtype=np.int32)
    num_ended = 0
    for position in range(60):
        logits = random.normal(0.0, 4.0, engine.vocab_size).astype(np.float32)
        logits[min(eog)] += 8.0 * random.random()
        ids, _ = sampler.probabilities(logits, position)
        expected, _ = filters.apply(everything, logits, False)
        assert set(ids.tolist()) == set(expected.tolist())
        assert sampler.sample(logits, position) in ids
        num_ended += set(ids.tolist()) <= eog
    assert 0 < num_ended < 60


def test_candidates_that_begin_alike_count_together(engine: LlamaEngine) -> None:
    vocab = engine.model.vocab
    (short,), (long,) = (
        vocab.tokenize(t, add_special=False, parse_special=False) for t in ("re", "return")
    )
    (other,) = vocab.tokenize("if", add_special=False, parse_special=False)
    logits = np.full(engine.vocab_size, -30.0, np.float32)
    logits[[short, long, other]] = np.log([0.3, 0.25, 0.45])
    best = SamplingParams(temperature=0, samplers=("top_k",))
    assert Sampler(best, engine, vocab.eog_ids).sample(logits, 0) == other
    merging = SamplingParams(temperature=1.0, top_k=40, samplers=("top_k", "infill"))
    ids, _ = Sampler(merging, engine, vocab.eog_ids).probabilities(logits, 0)
    assert short in ids
    assert long not in ids


def test_the_sampler_ends_no_text_where_a_constraint_forbids_it(engine: LlamaEngine) -> None:
    """libllama's does if no candidate has a fifth of the probability."""
    params = SamplingParams(temperature=0.8, top_k=40, samplers=("top_k", "infill"))
    eog = engine.model.vocab.eog_ids
    sampler = Sampler(params, engine, eog)
    logits = np.linspace(0.1, 0.0, engine.vocab_size, dtype=np.float32)
    legal = np.arange(engine.vocab_size) > 1000
    assert sampler.sample(logits, 0) in eog
    assert sampler.sample(logits, 0, legal) == 1001


def test_a_vocabulary_that_the_sampler_would_abort_on_is_refused(engine: LlamaEngine, monkeypatch):
    params = SamplingParams(samplers=("top_k", "infill"))
    monkeypatch.setattr(engine.model.vocab, "_longest", 513)
    says = "a token of 513 bytes and it takes 512; leave it out"
    with pytest.raises(NotSupportedError, match=says):
        engine.make_filters(params)
