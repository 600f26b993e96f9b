"""Structured output of the real server: schemas hold, and what cannot be compiled is a 400."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import httpx2
import jsonschema
import numpy as np
import pytest
from pydantic import BaseModel
from tests.server.server_process import Server
from tests.server.serving import error_of, events_of, openai_of

MESSAGES = [{"role": "user", "content": "Tell me of a cat."}]
WIDE = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(5000)}}
MANY = {"type": "array", "prefixItems": [{"type": "array", "items": {"type": "integer"}}] * 8000}


class Cat(BaseModel):
    """What the client wants to know."""

    name: str
    kind: Literal["house cat", "lion"]
    age: int


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx2.Client]:
    with server.client() as client:
        yield client


def schema() -> dict[str, object]:
    made = Cat.model_json_schema()
    made["properties"]["name"]["maxLength"] = 12
    made["properties"]["age"] |= {"minimum": 0, "maximum": 30}
    return made


def test_the_sdk_parses_an_answer_into_its_own_class(client: httpx2.Client) -> None:
    form = {"name": "cat", "strict": True, "schema": schema()}
    body: dict[str, Any] = {
        "model": "any",
        "messages": MESSAGES,
        "response_format": {"type": "json_schema", "json_schema": form},
        "temperature": 1.5,
        "seed": 4,
    }
    with openai_of(client) as sdk:
        answer = sdk.chat.completions.create(**body)
    assert answer.choices[0].finish_reason == "stop"
    cat = Cat.model_validate_json(answer.choices[0].message.content or "")
    assert 0 <= cat.age <= 30
    assert answer.choices[0].message.content == json.dumps(cat.model_dump(), ensure_ascii=False)


@pytest.mark.parametrize("stream", [False, True])
def test_every_route_keeps_to_a_regex(client: httpx2.Client, stream: bool) -> None:
    body = {"regex": "[A-C]{3}-[0-9]{2}", "prompt": "a", "messages": MESSAGES, "stream": stream}
    for path in ("/completion", "/v1/completions", "/v1/chat/completions"):
        response = client.post(path, json=body)
        assert response.status_code == 200, response.text
        assert re.search("[A-C]{3}-[0-9]{2}", _content(response, stream))


def _content(response: httpx2.Response, stream: bool) -> str:
    found = []
    for chunk in events_of(response) if stream else [response.json()]:
        choice = (chunk.get("choices") or [chunk])[0]
        said = choice.get("delta") or choice.get("message") or choice
        found.append(said.get("content") or choice.get("text") or "")
    return "".join(found)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "says"), [({"json_schema": MANY}, "30000"), ({"regex": "(a"}, "unclosed group")]
)
def test_what_cannot_be_compiled_is_400_before_any_header(client, fields, says, stream) -> None:
    response = client.post("/completion", json={"prompt": "a", "stream": stream} | fields)
    assert says in error_of(response, 400)
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_hostile_schema_slows_nobody(client: httpx2.Client) -> None:
    """While it is compiled, another request goes on: no pause is as long as the compilation."""
    wide = WIDE | {"title": "not compiled before"}
    body = {"prompt": "def f(x):\n", "n_predict": 1900, "ignore_eos": True, "stream": True}

    def compile_it() -> tuple[float, float]:
        started = time.monotonic()
        with httpx2.Client(base_url=client.base_url, timeout=60, trust_env=False) as other:
            assert other.post("/completion", json={"prompt": "a", "json_schema": wide}).is_error
        return started, time.monotonic()

    arrivals: list[float] = []
    with ThreadPoolExecutor(1) as pool, client.stream("POST", "/completion", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        compiled = pool.submit(compile_it)
        for _ in lines:
            arrivals.append(time.monotonic())
            if compiled.done():
                break
        started, ended = compiled.result()
    meanwhile = [started, *(at for at in arrivals if started < at < ended)]
    if arrivals[-1] > ended:
        meanwhile.append(ended)  # else the text was whole before
    assert len(meanwhile) > 5
    assert max(np.diff(meanwhile)) < max(1.0, (ended - started) / 2)


def test_a_grammar_can_begin_inside_an_answer(client: httpx2.Client) -> None:
    body = {
        "prompt": "Once upon a time",
        "n_predict": 200,
        "grammar": 'root ::= "e" [0-9][0-9]',
        "grammar_lazy": True,
        "grammar_triggers": [{"type": 1, "value": "e"}],
        "temperature": 0.8,
        "seed": 1,
    }
    text = client.post("/completion", json=body).json()["content"]
    assert re.fullmatch(r"[^e]*e[0-9][0-9]", text)


def test_choices_of_a_constrained_prompt_all_keep_to_it(client: httpx2.Client) -> None:
    body = {"messages": MESSAGES, "n": 2, "temperature": 1.5, "json_schema": schema(), "seed": 2}
    choices = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert len(choices) == 2
    for choice in choices:
        jsonschema.validate(json.loads(choice["message"]["content"]), schema())
    assert choices[0]["message"]["content"] != choices[1]["message"]["content"]


def test_forced_tokens_are_named_in_the_answer_and_counted(client: httpx2.Client) -> None:
    body = {"prompt": "a", "json_schema": schema(), "provenance": True, "seed": 1}
    answer = client.post("/completion", json=body).json()
    assert "grammar" in json.dumps(answer)
    assert 'speculator="grammar"' in client.get("/metrics").text
