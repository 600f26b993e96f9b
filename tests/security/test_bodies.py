"""All bodies of openapi.json with large values and long lists: no 5xx, no wait, no memory kept, and
the neighbour's stream is whole.
"""

from __future__ import annotations

import json
import pickle
import pickletools
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.harness import SIZE as LETTERS
from tests.harness import Model as Letters
from tests.harness import make_scheduler, play
from tests.planted import noted, threads_of
from tests.real.test_filters import MODEL, SIZE, Filtering, logits_of
from tests.server.fake_worker import INFO, FakeWorker, say
from tests.server.serving import events_of, serving

from headstart.engine.filters import LlamaFilters
from headstart.sampling import sampler
from headstart.sampling.sampler import Sampler
from headstart.scheduler import admission
from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.server import adapters as adapters_module
from headstart.server import anthropic, chat, completions, embeddings, ollama, responses, text
from headstart.server import body as body_module
from headstart.speculators.base import Speculator
from headstart.testing import FakeEngine
from headstart.types import Draft, DraftRequest
from headstart.types.errors import RequestError
from headstart.types.report import EmbeddingInfo
from headstart.types.request import Request
from headstart.types.sampling_params import LogitBias, SamplingParams

LARGE = {
    "int32": 2**31 - 1,
    "int53": 2**53,
    "negative": -(2**31),
    "float": 1e308,
    "tiny": 1e-308,
    "text": "a" * 1_000_000,
    "commas": "k," * 500_000,
    "texts": ["x"] * 20_000,
    "numbers": [1] * 500_000,
    "pairs": [[1, 1e308]] * 50_000,
    "objects": [{"role": "user", "content": "a"}] * 10_000,
    "deep": json.loads("[" * 500 + "]" * 500),
    "keys": {f"k{i}": i for i in range(20_000)},
    "deep keys": json.loads('{"a":' * 500 + "1" + "}" * 500),
}
NEEDED = {
    "messages": [{"role": "user", "content": "a"}],
    "prompt": "a",
    "content": "a",
    "tokens": [97],
    "input_prefix": "a",
    "input_suffix": "b",
    "max_tokens": 2,
}


LONG = 10_000  # characters; of longer values one route is asked for each kind of field
SLOW = 2.0  # processor seconds of a request, however busy the machine is


def fields_of(client) -> dict[str, dict[str, str]]:
    """The fields of each POST body and their schemas, by path."""
    page = client.get("/openapi.json").json()

    def properties(schema: dict) -> dict[str, str]:
        if "$ref" in schema:
            schema = page["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        listed = schema.get("properties", {})  # a list has none
        return {name: json.dumps(one, sort_keys=True) for name, one in sorted(listed.items())}

    return {
        path: properties(methods["post"]["requestBody"]["content"]["application/json"]["schema"])
        for path, methods in page["paths"].items()
        if "post" in methods and "requestBody" in methods["post"]
    }


def resident_mb() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) // 1024
    raise AssertionError("no VmRSS")


@pytest.mark.parametrize("kind", LARGE)
def test_no_large_value_of_any_field_hurts(client, kind):
    routes, large = fields_of(client), json.dumps(LARGE[kind])  # writing it takes long
    assert {"/completion", "/v1/chat/completions", "/infill", "/tokenize"} <= set(routes)
    before, seen = resident_mb(), set[tuple[str, str]]()
    for path, fields in routes.items():
        for field, schema in fields.items():
            if len(large) > LONG and (field, schema) in seen:
                continue
            seen.add((field, schema))
            known = {name: json.dumps(value) for name, value in NEEDED.items() if name in fields}
            members = (f'"{name}": {text}' for name, text in (known | {field: large}).items())
            data = f"{{{', '.join(members)}}}".encode()
            started = time.process_time()
            response = client.post(path, content=data)
            assert time.process_time() - started < SLOW, (path, field)
            is_told = response.status_code == 501 or "input is not supported" in response.text
            assert response.status_code < 500 or is_told, (path, field)
            if response.status_code >= 400:
                assert len(response.content) < 20_000, (path, field)
    assert resident_mb() - before < 250


MANY = [{"role": "user", "content": [{"type": "text", "text": "a"}] * 4000}]


@pytest.mark.parametrize(
    ("path", "body", "owner", "name"),
    [
        ("/v1/chat/completions", {"messages": MANY}, chat, "take_media"),
        ("/apply-template", {"messages": MANY}, text, "take_media"),
        ("/v1/messages", {"messages": MANY}, anthropic, "chat_body"),
        ("/v1/messages/count_tokens", {"messages": MANY}, anthropic, "chat_body"),
        ("/api/chat", {"messages": MANY}, ollama, "chat_body"),
        ("/v1/responses", {"input": MANY}, responses, "chat_body"),
        ("/completion", {"prompt": [97] * 40_000}, completions, "prompt_media"),
        ("/v1/completions", {"prompt": [97] * 40_000}, completions, "prompt_media"),
        ("/v1/embeddings", {"input": ["a"] * 20_000}, embeddings, "take_inputs"),
        ("/lora-adapters", [{"id": 0}] * 10_000, adapters_module, "read_json"),
    ],
)
def test_a_long_body_becomes_a_prompt_in_a_thread(path, body, owner, name, monkeypatch):
    threads, worker = threads_of(monkeypatch, owner, name), FakeWorker()
    worker.info_when_ready = replace(INFO, embedding=EmbeddingInfo(2, 64, "mean"))
    with serving(worker) as client:
        assert client.post(path, json=body).status_code in (200, 400)
    assert threads
    assert all(one.startswith("headstart-") for one in threads)


def test_a_neighbour_s_stream_is_whole_and_the_same():
    worker = FakeWorker(lambda request: say(request, *[bytes([97 + i % 26]) for i in range(40)]))
    with serving(worker) as client:
        texts: list[str] = []
        stop = threading.Event()

        def stream() -> None:
            while not stop.is_set():
                body = {"prompt": "a", "stream": True}
                chunks = events_of(client.post("/completion", json=body))
                assert chunks[-1]["stop"]
                texts.append("".join(chunk["content"] for chunk in chunks))

        thread = threading.Thread(target=stream)
        thread.start()
        for value in LARGE.values():
            for field in ("prompt", "logit_bias", "samplers", "stop", "n_probs", "lora"):
                client.post("/completion", content=json.dumps({"prompt": "a"} | {field: value}))
        stop.set()
        thread.join(60)
    assert len(texts) > 1
    assert set(texts) == {"".join(chr(97 + i % 26) for i in range(40))}


def test_the_real_engine_lives_through_large_numbers(server):
    with server.client() as client:
        known = {"prompt": "def f(x):\n", "max_tokens": 12, "temperature": 0}
        text = client.post("/completion", json=known).json()["content"]
        pid = server.engine_pid()
        schema = fields_of(client)["/completion"]
        for number in (2**31 - 1, -1, 0, 1e-308, 3e38, 1e308):
            for field in schema:
                body = {"prompt": "a", "max_tokens": 2, "repeat_penalty": 1.1} | {field: number}
                body |= {"dry_multiplier": 1.0} if field.startswith("dry") else {}
                if field in ("max_tokens", "n_predict", "max_completion_tokens"):
                    continue
                response = client.post("/completion", json=body)
                assert response.status_code in (200, 400, 501), (field, number, response.text)
        assert server.engine_pid() == pid
        assert client.post("/completion", json=known).json()["content"] == text


ROOT = Path(__file__).parents[2]
WINDOWS = """
import resource
from headstart.app import demo
from headstart.engine.filters import LlamaFilters
from headstart.engine.model import Model
from headstart.types.sampling_params import LogitBias, SamplingParams

vocab = Model(demo.path(demo.TARGET)).vocab
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
most = 2**31 - 1
LlamaFilters(vocab, 512, SamplingParams(repeat_penalty=1.1, repeat_last_n=most))
LlamaFilters(vocab, 512, SamplingParams(dry_multiplier=1.0, dry_penalty_last_n=most))
print("lived")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_a_window_of_two_thousand_million_tokens_takes_no_more_memory_than_the_context() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WINDOWS], capture_output=True, text=True, timeout=60
    )
    assert run.stdout == "lived\n", (run.returncode, run.stderr[-2000:])


def test_a_window_larger_than_the_context_gives_the_same_tokens() -> None:
    def choices(last_n: int) -> list[int]:
        params = SamplingParams(temperature=0, repeat_penalty=3.0, repeat_last_n=last_n)
        one, tokens = Sampler(params, Filtering(SIZE), MODEL.vocab.eog_ids), []
        for position in range(60):
            tokens.append(one.sample(logits_of(position // 6), position))
            one.read(tokens[-1:])
        return tokens

    assert choices(2**31 - 1) == choices(-1) == choices(512)


def test_the_breakers_of_a_second_request_are_not_searched_for_again() -> None:
    breakers = tuple(f"breaker {i}" for i in range(32))
    params = SamplingParams(dry_multiplier=1.0, dry_sequence_breakers=breakers)
    seconds = []
    for _ in range(4):
        started = time.process_time()
        LlamaFilters(MODEL.vocab, 512, params)
        seconds.append(time.process_time() - started)
    assert min(seconds[1:]) < seconds[0] / 3


def test_longer_lists_than_anybody_needs_are_taken(client):
    for fields in (
        {"dry_sequence_breakers": ["\n", ":", '"', "*", "<|im_end|>", "User:", "Bot:"]},
        {"samplers": "edskypmxt"},
        {"logit_bias": [[token, -100] for token in range(258)]},
        {"n_probs": 20},
    ):
        assert client.post("/completion", json={"prompt": "a"} | fields).status_code == 200


@pytest.mark.parametrize(
    ("sent", "kept"), [(1e308, 1e30), (-1e308, -1e30), (100, 100.0), (2**60, float(2**60))]
)
def test_a_bias_beyond_float32_is_clamped(sent, kept):
    worker = FakeWorker()
    with serving(worker) as client:
        body = {"prompt": "a", "logit_bias": [[5, sent]]}
        assert client.post("/completion", json=body).status_code == 200
        twice = {"prompt": "a", "logit_bias": [[5, sent], [5, sent]]}
        assert client.post("/completion", json=twice).status_code == 200
    once, double = (dict(one.sampling.logit_bias.items())[5] for one in worker.requests)
    assert once == kept
    assert double == max(-1e30, min(1e30, 2 * kept))


@pytest.mark.parametrize("temperature", [0.0, 1e-38, 0.8, 100.0])
@pytest.mark.parametrize("bias", [1e30, -1e30, 3e38, float("-inf")])
def test_no_bias_and_no_temperature_makes_a_guess_of_no_number(temperature, bias):
    engine = FakeEngine(64)
    params = SamplingParams(
        temperature=temperature, logit_bias=LogitBias({3: bias, 4: -bias}), top_k=0
    )
    one = Sampler(params, engine, ())
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        for position in range(20):
            choice = one.couple(engine.logits_after([position]), position)
            assert 0.0 < choice.coupled_probability <= 1.0
            assert 0.0 < choice.argmax_probability <= 1.0
            _, p = one.probabilities(engine.logits_after([position]), position)
            assert abs(p.sum() - 1.0) < 1e-9


class WithNan(Speculator):
    """Its draft for sequence 1 has a score that is no number."""

    name = "with-nan"

    def propose(self, requests):
        return [Draft([1, 2], [float("nan") if r.seq_id == 1 else 0.5] * 2) for r in requests]


def draft_request(seq_id: int) -> DraftRequest:
    return DraftRequest(seq_id=seq_id, tokens=[1, 2, 3], max_tokens=4)


def test_numbers_that_one_request_spoiled_leave_the_others_their_drafts():
    guarded = GuardedSpeculator(WithNan(), vocab_size=32)
    drafts = guarded.propose([draft_request(seq_id) for seq_id in range(4)])
    assert [len(draft.tokens) for draft in drafts] == [2, 0, 2, 2]
    assert guarded.failed == {1}
    assert "not all finite" in guarded.failure


def test_a_token_costs_the_same_however_many_have_a_bias(monkeypatch):
    asked = noted(monkeypatch, sampler, "top_k")
    logits = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    for bias in (float("-inf"), 2.0):
        params = SamplingParams(
            temperature=0.8, logit_bias=LogitBias(dict.fromkeys(range(30_000), bias))
        )
        Sampler(params, FakeEngine(100_000), ()).sample(logits, 1)
    assert [count for _, count, *_ in asked] == [params.top_k] * 2


def test_one_bias_list_is_not_told_by_hundreds_of_answers(client):
    body = {"prompt": ["a"] * 256, "logit_bias": [[i, 1] for i in range(258)]}
    answer = client.post("/completion", json=body)
    assert (answer.status_code, "logit_bias" in answer.text) == (400, True)
    assert client.post("/completion", json=body | {"prompt": ["a"] * 200}).status_code == 200


def test_a_megabyte_is_not_told_by_hundreds_of_answers(client):
    long = {"json_schema": {"description": "a" * 1_000_000}}
    refused = client.post("/completion", json={"prompt": ["a"] * 256, **long})
    assert (refused.status_code, "characters of prompts" in refused.text) == (400, True)
    taken = client.post("/completion", json={"prompt": ["a"] * 8, **long})
    assert taken.status_code == 200, taken.text[:1000]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/infill"])
def test_thousands_of_wrong_entries_are_not_described_one_by_one(client, path, monkeypatch):
    described = noted(monkeypatch, body_module, "_explain")
    known = {"messages": [], "input_prefix": "", "input_suffix": ""}
    for name in ("messages", "stop_sequences", "context", "input_extra"):
        answer = client.post(path, json=known | {name: [1.5] * 30_000})
        assert answer.status_code in (200, 400, 501)
    assert {error.error_count() for error, _ in described} == {1}


def test_a_name_of_a_megabyte_is_not_told_with_every_token(client):
    body = {"model": "a" * 1_000_000, "stream": True, "prompt": "a"}
    chat = body | {"messages": [{"role": "user", "content": "a"}], "input": "a"}
    del chat["prompt"]
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/completion"):
        answer = client.post(path, json=body if path == "/completion" else chat)
        assert (answer.status_code, len(answer.content) < 100_000) == (200, True)
    for path in ("/api/chat", "/api/generate"):
        assert client.post(path, json=chat | body).status_code == 400


@pytest.mark.parametrize("num_seen", [2_000, 45_000])
def test_a_token_costs_the_same_however_many_penalties_have_seen(num_seen, monkeypatch):
    asked = noted(monkeypatch, sampler, "top_k")
    logits = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    params = SamplingParams(temperature=0.8, repeat_penalty=1.1, repeat_last_n=-1)
    one = Sampler(params, FakeEngine(100_000), ())
    one.read(range(num_seen))
    one.sample(logits, 1)
    assert all(count < 3_000 for _, count, *_ in asked)


def test_the_engine_looks_at_no_bias_of_very_many_one_by_one(monkeypatch):
    params = SamplingParams(
        logit_bias=LogitBias(dict.fromkeys(range(30_000), 2.0)), ignore_eos=True
    )
    request = Request(request_id="r", prompt=(1, 2), sampling=params)
    sent = pickle.dumps(request, protocol=5)
    assert sum(1 for _ in pickletools.genops(sent)) < 500
    received = pickle.loads(sent)
    assert received.sampling == params
    monkeypatch.setattr(LogitBias, "items", None)
    engine = FakeEngine(100_000)
    admission.check(received, engine, 1)
    one = Sampler(received.sampling, engine, [29_999, 40_000])
    biased = one._with_bias(np.zeros(100_000, np.float32))
    assert biased[[0, 29_998, 29_999, 30_000, 40_000]].tolist() == [2, 2, -np.inf, 0, -np.inf]


def test_a_request_that_bans_every_token_is_an_error_and_not_question_marks():
    params = SamplingParams(logit_bias=LogitBias(dict.fromkeys(range(16), float("-inf"))))
    for temperature in (0.0, 1.0):
        for top_k in (0, 5, 40):
            one = Sampler(replace(params, temperature=temperature, top_k=top_k), FakeEngine(16), ())
            with pytest.raises(RequestError, match="no token is left"):
                one.sample(FakeEngine(16).logits_after([1]), 1)


def test_a_request_that_bans_every_token_ends_alone():
    banned = SamplingParams(logit_bias=LogitBias(dict.fromkeys(range(LETTERS), float("-inf"))))
    honest = Request(request_id="honest", prompt=(1, 2), max_tokens=8)
    answers = play(
        make_scheduler(Letters(order=1)),
        [replace(honest, request_id="banned", sampling=banned), honest],
    )
    assert answers["banned"].reason == "RequestError"
    assert answers["honest"].finish is not None
