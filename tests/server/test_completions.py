"""OpenAI's text completions: how likely a prompt is, and what belongs before a suffix."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from tests.models import tiny_llama
from tests.server.fake_worker import FakeWorker
from tests.server.serving import error_of, openai_of, serving, serving_models
from tests.server.test_infill import MID, PRE, SUF, FillingVocab

from headstart.config import (
    Config,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
    SpeculationConfig,
)
from headstart.server.service import ServedModel
from headstart.text.chat_template import ChatTemplate

PROMPT = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100] * 5


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tiny_llama(tmp_path_factory.mktemp("model") / "model.gguf")
    config = Config(
        model=ModelConfig(model=str(path)),
        engine=EngineConfig(gpu_layers=0, threads=1, context=512, exact=True),
        scheduler=SchedulerConfig(parallel=2, prefill_chunk=16),
    )
    with serving_models(config) as client, openai_of(client) as sdk:
        yield sdk


def test_a_prompts_tokens_are_as_likely_as_when_they_are_generated(sdk: Any) -> None:
    said = sdk.completions.create(
        model="m", prompt=PROMPT, max_tokens=20, temperature=0, logprobs=2,
        extra_body={"return_tokens": True, "ignore_eos": True},
    ).choices[0]  # fmt: skip
    whole = [*PROMPT, *said.model_extra["tokens"]]
    for stream in (False, True):
        answer = sdk.completions.create(
            model="m", prompt=whole, echo=True, logprobs=2, max_tokens=0, stream=stream
        )
        choices = [c.choices[0] for c in answer] if stream else answer.choices
        echoed = next(choice for choice in choices if choice.logprobs)
        scores = echoed.logprobs
        assert len(scores.tokens) == len(scores.token_logprobs) == len(whole)
        assert scores.token_logprobs[0] is None
        assert scores.token_logprobs[len(PROMPT) :] == pytest.approx(
            said.logprobs.token_logprobs, abs=1e-3
        )
        assert scores.top_logprobs[len(PROMPT)] == pytest.approx(
            said.logprobs.top_logprobs[0], abs=1e-3
        )
        assert [one["id"] for one in scores.model_extra["content"]] == whole


def test_the_answers_tokens_follow_those_of_the_prompt(sdk: Any) -> None:
    wish = {"model": "m", "prompt": PROMPT, "temperature": 0, "logprobs": 1}
    plain = sdk.completions.create(**wish, max_tokens=5).choices[0]
    echoed = sdk.completions.create(**wish, max_tokens=5, echo=True).choices[0]
    assert echoed.text.endswith(plain.text)
    assert echoed.logprobs.tokens[len(PROMPT) :] == plain.logprobs.tokens
    assert echoed.logprobs.token_logprobs[len(PROMPT) :] == pytest.approx(
        plain.logprobs.token_logprobs, abs=1e-3
    )


def test_a_stream_names_the_slot_that_works(sdk: Any) -> None:
    url = str(sdk.base_url).removesuffix("v1/")
    body = {"prompt": "the", "n_predict": 4, "stream": True, "id_slot": -1}
    with httpx2.Client(base_url=url, trust_env=False) as client:
        lines = client.post("/completion", json=body).text.splitlines()
    slots = {part.split(",")[0] for line in lines for part in line.split('"id_slot":')[1:]}
    assert slots in ({"0"}, {"1"})


def test_a_suffix_asks_for_what_comes_before_it() -> None:
    worker = FakeWorker()
    model = ServedModel(alias="m", vocab=FillingVocab(), template=ChatTemplate(None))
    with serving(worker, model=model) as client:
        answer = client.post(
            "/v1/completions", json={"prompt": ["ab", "c"], "suffix": "yz", "echo": True}
        ).json()
    assert [list(request.prompt) for request in worker.requests] == [
        [PRE, *b"ab", SUF, *b"yz", MID],
        [PRE, *b"c", SUF, *b"yz", MID],
    ]
    assert [choice["text"] for choice in answer["choices"]] == ["abHöi!", "cHöi!"]


def test_what_cannot_be_done_is_refused(client: httpx2.Client) -> None:
    filled = client.post("/v1/completions", json={"prompt": "a", "suffix": "b"})
    assert (filled.status_code, filled.json()["error"]["type"]) == (501, "not_supported_error")
    body = {"prompt": "a", "echo": True, "logprobs": 1, "post_sampling_probs": True}
    scored = client.post("/v1/completions", json=body)
    assert "nothing of the prompt was sampled" in error_of(scored, 400, "not_supported_error")
    best = client.post("/v1/completions", json={"prompt": "a", "n": 2, "best_of": 3})
    assert "best_of is 3" in error_of(best, 400, "not_supported_error")
    assert client.post("/v1/completions", json={"prompt": "a", "best_of": 1}).status_code == 200


def test_the_lowest_priority_gets_the_next_slot_whatever_the_api() -> None:
    config = Config(
        engine=EngineConfig(gpu_layers=0, threads=1, context=2048),
        scheduler=SchedulerConfig(parallel=1, context_shift=True),
        speculation=SpeculationConfig(spec="off"),
        server=ServerConfig(metrics=True),
    )
    messages = [{"role": "user", "content": "a"}]
    bodies = {
        "/completion": {"prompt": "a", "n_predict": 64, "priority": 7},
        "/v1/chat/completions": {"messages": messages, "max_tokens": 64, "priority": -3},
        "/v1/completions": {"prompt": "a", "max_tokens": 64},
        "/v1/messages": {"messages": messages, "max_tokens": 64, "priority": 2},
    }
    ended = list[str]()
    with serving_models(config) as client, ThreadPoolExecutor() as pool:

        def ask(path: str) -> None:
            assert client.post(path, json=bodies[path] | {"ignore_eos": True}).status_code == 200
            ended.append(path)

        endless = {"prompt": "a", "n_predict": -1, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/completion", json=endless) as busy:
            lines = busy.iter_lines()  # the stream ends with this
            next(lines)
            asked = [pool.submit(ask, path) for path in bodies]
            while "requests_deferred 4" not in client.get("/metrics").text:
                assert not any(one.done() for one in asked)
        for one in asked:
            one.result()
    assert ended == ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/completion"]
