"""Ollama's API, with its own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import numpy as np
import ollama
import pytest
from tests.planted import threads_of
from tests.server.fake_worker import FakeWorker, say
from tests.server.serving import served_model, serving
from tests.server.test_tool_calls import TEMPLATE

from headstart.config import ServerConfig
from headstart.server import embeddings
from headstart.server import ollama as ollama_module
from headstart.server.ollama_dialect import OllamaChatBody, chat_body
from headstart.text.toolcalls.events import AnswerMessage, ToolCall
from headstart.types.errors import EngineError, HeadstartError

MESSAGES = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@contextmanager
def asking(client: httpx2.Client) -> Iterator[Any]:
    with ollama.Client(str(client.base_url)) as ask:
        yield ask


@pytest.fixture
def ask(client: httpx2.Client) -> Iterator[Any]:
    with asking(client) as ask:
        yield ask


def test_messages_are_answered(ask: Any, worker: FakeWorker) -> None:
    options = {"temperature": 0.5, "num_predict": 9, "seed": 3, "num_ctx": 99, "stop": ["x"]}
    answer = ask.chat("any", MESSAGES, options=options)
    assert (answer.message.role, answer.message.content) == ("assistant", "Höi!")
    assert (answer.model, answer.done, answer.done_reason) == ("any", True, "stop")
    assert (answer.prompt_eval_count, answer.eval_count) == (5, 4)
    assert (answer.prompt_eval_duration, answer.eval_duration) == (500_000_000, 250_000_000)
    assert answer.total_duration == 750_000_000
    (request,) = worker.requests
    assert (request.sampling.temperature, request.sampling.seed, request.max_tokens) == (0.5, 3, 9)
    assert request.stop[0] == b"x"


def test_a_stream_is_lines_of_json(ask: Any, client: httpx2.Client) -> None:
    parts = list(ask.chat("any", MESSAGES, stream=True, keep_alive="5m"))
    assert "".join(part.message.content for part in parts) == "Höi!"
    assert [part.done for part in parts] == [False, False, True]
    assert parts[-1].eval_count == 4
    answer = client.post("/api/chat", json={"messages": MESSAGES})  # streams, unless told not to
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["done"] for line in answer.text.splitlines()][-1]


def test_a_prompt_is_answered_continued_or_filled(ask: Any, worker: FakeWorker) -> None:
    answer = ask.generate("any", "Why?", system="Be brief.")
    parts = list(ask.generate("any", "Why?", stream=True))
    raw = ask.generate("any", "Why?", raw=True, options={"num_predict": -2})
    streamed = list(ask.generate("any", "Why?", raw=True, stream=True))
    for text in (
        answer.response,
        "".join(part.response for part in parts),
        raw.response,
        "".join(part.response for part in streamed),
    ):
        assert text == "Höi!"
    prompts = [bytes(request.prompt).decode() for request in worker.requests]
    assert prompts[0].index("Be brief.") < prompts[0].index("Why?")
    assert prompts[2] == "Why?"
    assert worker.requests[2].max_tokens is None
    with pytest.raises(ollama.ResponseError, match="cannot fill in") as caught:
        ask.generate("any", "a", suffix="b")
    assert caught.value.status_code == 501


def test_fields_that_ollamas_client_sends_empty_change_nothing(client, worker) -> None:
    empty = {"suffix": "", "system": "", "template": "", "format": "", "options": None}
    for more in ({}, {"raw": True}):
        asked = {"prompt": "Why?", "stream": False, **more}
        answers = [client.post("/api/generate", json=asked | one) for one in ({}, empty)]
        assert [answer.json()["response"] for answer in answers] == ["Höi!"] * 2
    plain, same, raw, same_raw = (request.prompt for request in worker.requests)
    assert (plain, raw) == (same, same_raw)


def test_a_request_without_a_prompt_loads(ask: Any) -> None:
    assert ask.generate("any", "").done_reason == "load"
    assert ask.chat("any", []).done_reason == "load"


def test_the_answer_has_the_format_that_was_asked_for(ask: Any, worker: FakeWorker) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    ask.chat("any", MESSAGES, format=schema)
    ask.chat("any", MESSAGES, format="json")
    first, second = (request.constraint for request in worker.requests)
    assert first is not None
    assert json.loads(first.text) == schema
    assert second is not None


def test_thoughts_and_calls_come_apart() -> None:
    call = b'Hm</think>Yes.<tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>'
    worker = FakeWorker(lambda request: say(request, call[:45], call[45:]))
    with serving(worker, model=served_model(TEMPLATE)) as client, asking(client) as ask:
        whole = ask.chat("any", MESSAGES, tools=[TOOL], think=True).message
        parts = [part.message for part in ask.chat("any", MESSAGES, tools=[TOOL], stream=True)]
        text = ask.generate("any", "Hi")
        result = {"role": "tool", "tool_name": "look", "content": "a hill"}
        ask.chat("any", [*MESSAGES, whole, result], tools=[TOOL])
    assert (whole.thinking, whole.content) == ("Hm", "Yes.")
    assert "".join(part.thinking or "" for part in parts) == "Hm"
    assert "".join(part.content or "" for part in parts) == "Yes."
    for message in (whole, *[part for part in parts if part.tool_calls]):
        (one,) = message.tool_calls or []
        assert (one.function.name, one.function.arguments) == ("look", {"at": "x"})
    assert text.thinking == "Hm"
    prompt = bytes(worker.requests[-1].prompt).decode()
    assert prompt.index("Hm") < prompt.index('"name": "look"') < prompt.index("a hill")


def test_a_call_of_a_stream_is_put_together_once(monkeypatch) -> None:
    calls, looked = vars(AnswerMessage)["calls"], list[int]()

    def look(message: AnswerMessage) -> list[ToolCall]:
        found: list[ToolCall] = calls.fget(message)
        looked.append(len(found))
        return found

    monkeypatch.setattr(AnswerMessage, "calls", property(look))
    steps = [
        b'<tool_call>{"name": "look", "arguments": {"at": %d}}</tool_call>' % i for i in range(50)
    ]
    worker = FakeWorker(lambda request: say(request, b"Hm</think>", *steps))
    with serving(worker, model=served_model(TEMPLATE)) as client, asking(client) as ask:
        parts = [part.message for part in ask.chat("any", MESSAGES, tools=[TOOL], stream=True)]
    found = [call.function.arguments["at"] for part in parts for call in part.tool_calls or []]
    assert found == list(range(50))
    assert sum(looked) <= 200  # not those before again


def test_errors_are_told_as_there(ask: Any) -> None:
    with pytest.raises(ollama.ResponseError, match="temperature is 1000") as caught:
        ask.chat("any", MESSAGES, options={"temperature": 1000})
    assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="--embeddings") as caught:
        ask.embed("any", "text")
    assert caught.value.status_code == 501


def test_a_missing_key_is_told_as_there_too() -> None:
    with serving(config=ServerConfig(api_key="k")) as client:
        answer = client.post("/api/chat", json={})
    assert answer.status_code == 401
    assert answer.json()["error"].startswith("Invalid API Key")


def test_a_failure_in_a_stream_is_its_last_line(ask: Any, worker: FakeWorker) -> None:
    worker.script = lambda request: [*say(request, b"a")[:1], EngineError("it broke")]
    with pytest.raises(ollama.ResponseError, match="it broke"):
        list(ask.chat("any", MESSAGES, stream=True))


@pytest.mark.parametrize("raw", [None, False, True])
def test_log_probabilities_of_all_lines_are_those_of_the_whole_answer(ask: Any, raw) -> None:
    def answers(**more: Any) -> Any:
        if raw is None:
            return ask.chat("any", MESSAGES, logprobs=True, **more)
        return ask.generate("any", "Hi", raw=raw, logprobs=True, **more)

    whole = answers(top_logprobs=2).logprobs
    lines = [line.logprobs or [] for line in answers(top_logprobs=2, stream=True)]
    assert [one for line in lines for one in line] == whole
    assert len(whole) == 5
    assert len(whole[0].top_logprobs) == 2
    assert not answers().logprobs[0].top_logprobs


def test_the_model_is_listed_and_described(ask: Any, client: httpx2.Client) -> None:
    (model,) = ask.list().models
    assert (model.model, model.size) == ("tiny", 4000)
    assert model.details is not None
    assert (model.details.family, model.details.quantization_level) == ("llama", "F32")
    (running,) = ask.ps().models
    assert (running.model, running.context_length) == ("tiny", 512)
    shown = ask.show("tiny")
    assert shown.capabilities == ["completion"]
    assert shown.modelinfo is not None
    assert shown.modelinfo["llama.context_length"] == 512
    assert client.get("/api/version").json()["version"].count(".") == 2


@pytest.fixture
def embed(embedding: httpx2.Client) -> Iterator[Any]:
    with asking(embedding) as ask:
        yield ask


def test_texts_become_vectors(embed: Any) -> None:
    answer = embed.embed("any", ["the hill", "x"])
    assert [np.linalg.norm(vector) for vector in answer.embeddings] == pytest.approx([1, 1])
    assert answer.prompt_eval_count == 7
    short = embed.embed("any", "the hill", dimensions=8).embeddings[0]
    assert len(short) == 8
    np.testing.assert_allclose(
        np.array(short) * np.linalg.norm(answer.embeddings[0][:8]),
        answer.embeddings[0][:8],
        rtol=1e-4,
    )
    old = embed.embeddings("any", "the hill").embedding
    np.testing.assert_allclose(old / np.linalg.norm(old), answer.embeddings[0], rtol=1e-4)
    assert embed.show("any").capabilities == ["embedding"]


def test_a_long_text_is_cut_unless_that_is_forbidden(embed: Any) -> None:
    assert embed.embed("any", "a" * 600).prompt_eval_count == 512
    with pytest.raises(ollama.ResponseError, match="too large to process"):
        embed.embed("any", "a" * 600, truncate=False)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("messages", [{"role": "user", "images": "x"}], "a list of base64 texts"),
        ("format", 3, "format is 3"),
        ("think", 3, "think is 3"),
    ],
)
def test_what_cannot_be_honoured_is_named(field: str, value: Any, says: str) -> None:
    with pytest.raises(HeadstartError, match=says):
        chat_body(OllamaChatBody.model_validate({"messages": MESSAGES, field: value}))


@pytest.mark.parametrize(
    ("think", "kwargs", "effort"),
    [(True, {"enable_thinking": True}, None), (False, {"enable_thinking": False}, None),
     ("low", {}, "low")],
)  # fmt: skip
def test_thinking_can_be_set(think: Any, kwargs: dict[str, bool], effort: str | None) -> None:
    body = chat_body(OllamaChatBody(messages=MESSAGES, think=think))
    assert (body.chat_template_kwargs, body.reasoning_effort) == (kwargs, effort)


def test_think_keeps_the_templates_other_variables() -> None:
    fields = {"messages": MESSAGES, "think": False, "chat_template_kwargs": {"tone": "dry"}}
    kwargs = chat_body(OllamaChatBody.model_validate(fields)).chat_template_kwargs
    assert kwargs == {"enable_thinking": False, "tone": "dry"}


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/api/chat", {"messages": MESSAGES, "options": {"temperature": "hot"}}, "'hot'"),
        ("/api/generate", {"prompt": "a", "options": {"top_k": [1]}}, "top_k is"),
        ("/api/generate", {"prompt": "a", "raw": True, "options": {"seed": "x"}}, "seed is 'x'"),
        ("/api/generate", {"prompt": "a", "raw": True, "system": "b"}, "system with raw"),
        ("/v1/responses", {"input": "a", "temperature": "hot"}, "temperature is 'hot'"),
        ("/v1/messages", {"messages": MESSAGES, "temperature": "hot"}, "temperature is 'hot'"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_the_clients_fault(client, path, body, says) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert says in answer.text


def test_many_vectors_are_written_off_the_event_loop_and_too_many_refused(embed: Any, monkeypatch):
    threads = threads_of(monkeypatch, ollama_module, "normalize")
    size = len(embed.embed("any", "a").embeddings[0])
    assert threads
    assert all("answers" in one for one in threads)
    monkeypatch.setattr(embeddings, "MAX_NUMBERS", 2 * size)
    assert embed.embed("any", ["a"] * 2).embeddings
    with pytest.raises(ollama.ResponseError, match=f"3 vectors of {size} numbers"):
        embed.embed("any", ["a"] * 3)
    monkeypatch.setattr(embeddings, "MAX_READ", 2)
    with pytest.raises(ollama.ResponseError, match="3 tokens but at most 2 are read"):
        embed.embed("any", ["aaa"])
