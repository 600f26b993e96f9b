"""Every bad request gets an answer in OpenAI's error shape, with llama-server's types, and harms
nobody else.
"""

from __future__ import annotations

import json
import socket

import pytest
from tests.server.fake_worker import INFO, FakeWorker, say
from tests.server.serving import error_of, served_model, serving

from headstart.config import ServerConfig
from headstart.types.errors import (
    CapacityError,
    ContextLengthError,
    EngineError,
    RequestError,
    WorkerDeadError,
)
from headstart.types.request import Request
from headstart.types.sampling_params import LogitBias

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "not valid JSON"),
        (b"", "not valid JSON"),
        (b'{"messages": "\xff"}', "not valid JSON in UTF-8"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "not valid JSON"),
        (b'{"temperature": NaN}', "not valid JSON"),
        (b"[1]", "must be a JSON object, not [1]"),
        (b"null", "must be a JSON object, not null"),
        (b"[" * 5000, "not valid JSON"),
    ],
)
def test_a_body_that_is_not_a_json_object_is_400(client, content, says):
    for path in (CHAT, "/completion", "/tokenize"):
        assert says in error_of(client.post(path, content=content), 400)


@pytest.mark.parametrize(
    ("field", "value", "means"),
    [
        ("temperature", -0.1, 0.0),
        ("top_k", -1, 0),
        ("top_p", 2, 1.0),
        ("min_p", -1.0, 0.0),
        ("seed", -2, 2**32 - 2),
        ("seed", 2**40 + 3, 3),
        ("samplers", ["top_k", "nonsense"], ("top_k",)),
        ("samplers", "ekzt", ("penalties", "top_k", "temperature")),
        ("logit_bias", {"999": 1, "5": 2}, LogitBias({5: 2.0})),
        ("logit_bias", {"5": "x", "6": True, "7": 1}, LogitBias({7: 1.0})),
        (
            "logit_bias",
            [[5], 6, {"token": 7, "bias": 1}, [1.5, 1], [True, 1], [8, 1]],
            LogitBias({8: 1.0}),
        ),
        ("logit_bias", 3, LogitBias({})),
        ("logit_bias", True, LogitBias({})),
        ("dry_base", 0.5, 1.75),
        ("dry_base", 0, 1.75),
    ],
)
def test_a_value_that_can_only_mean_one_thing_is_taken_as_llama_server_takes_it(
    client, worker, field, value, means
):
    assert client.post("/completion", json={"prompt": "a", field: value}).status_code == 200
    assert getattr(worker.requests[-1].sampling, field) == means


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("temperature", "hot", "temperature is 'hot' but must be a number"),
        ("temperature", True, "temperature is true but must be a number"),
        ("response_format", [], "response_format is [] but must be an object"),
        ("stream", 1, "stream is 1 but must be true or false"),
        ("top_k", 1.5, "top_k is 1.5"),
        ("repeat_penalty", 0, "repeat_penalty is 0"),
        ("seed", 2**64, "seed is"),
        ("max_tokens", -2, "max_tokens is -2 but must be at least -1"),
        ("max_tokens", "9", "max_tokens is '9'"),
        ("n_predict", -9, "n_predict is -9"),
        ("n", 0, "from 1 to 4"),
        ("n", 5, "the number of slots"),
        ("stop", 5, "stop must be"),
        ("lora", "adapter.gguf", "lora is 'adapter.gguf' but must be a list"),
        ("lora", [{"id": 0, "scale": "much"}], "lora.0.scale is 'much' but must be a number"),
        ("stop", ["a", 1], "stop must be"),
        ("stop", ["a"] * 65, "at most 64"),
        ("stop", "x" * 2000, "2000 bytes but at most 1024"),
        ("stream", "yes", "stream is 'yes'"),
        ("stream_options", {"include_usage": 3}, "stream_options.include_usage is 3"),
        ("samplers", 5, "samplers is 5 but must be a list of names"),
        ("dry_sequence_breakers", [], "but must have at least 1 item"),
        ("speculative.n_max", -1, "speculative.n_max is -1"),
        ("speculative", {"p_min": 1.5}, "speculative.p_min is 1.5"),
        ("speculative", {"mode": "fast"}, "must be 'auto', 'fixed' or 'off'"),
        ("speculative", {"mode": ""}, "must be 'auto', 'fixed' or 'off'"),
        (
            "speculative",
            {"mode": "auto", "types": ["none"]},
            "mode is auto but speculative.types is none",
        ),
        ("speculative", {"types": [3]}, "speculative.types is [3] but must be a list of names"),
        ("speculative", {"types": ""}, "speculative.types is '' but must be"),
        ("speculative", {"types": ["suffix", "none"]}, "none cannot stand beside others"),
        ("speculative", {"types": ["suffix"], "type": "ngram-mod"}, "two names of one field"),
        (
            "speculative",
            {"n_min": 5, "n_max": 2},
            "n_min is 5 but must not exceed speculative.n_max, which is 2",
        ),
        ("speculative", {"n_maxx": 3}, "speculative.n_maxx does not exist; there are mode, types"),
        ("speculative.ngram_size_n", 3, "speculative.ngram_size_n does not exist"),
        ("speculative", 4, "speculative is 4 but must be an object"),
        ("speculative.n_max", 10**30, "must be at most 9007199254740992"),
        ("n_predict", 10**30, "must be at most 9007199254740992"),
        ("sse_ping_interval", -2, "sse_ping_interval is -2"),
        ("response_format", {"type": "xml"}, "must be one of text, json_object, json_schema"),
        ("dry_sequence_breakers", ["x"] * 12_000, "but must have at most 32 items, not 12000"),
        ("dry_sequence_breakers", ["x" * 5000], "but must have at most 256 characters"),
        ("samplers", "k" * 4_000_000, "samplers holds 4000000 entries but at most 32"),
        ("samplers", ["top_k"] * 20_000, "samplers holds 20000 entries"),
        ("logit_bias", [[5, 1]] * 100_000, "holds 100000 entries but at most 258"),
        ("logit_bias", {"a" * 9000: 1}, "9000 bytes but at most 1024"),
        ("speculative", {"types": ["x"] * 20_000}, "speculative.types holds 20000 entries"),
        ("speculative", {"types": "x," * 50_000}, "100000 characters"),
    ],
)
def test_a_value_that_cannot_be_honoured_is_400_and_named(client, worker, field, value, says):
    for path, body in ((CHAT, {"messages": MESSAGES}), ("/completion", {"prompt": "a"})):
        assert says in error_of(client.post(path, json=body | {field: value}), 400)
    assert worker.requests == []


@pytest.mark.parametrize(
    "field",
    [
        {"mirostat": 2},
        {"lora": [{"id": 0, "scale": 1.0}]},
        {"adaptive_target": 0.5},
        {"adaptive_target": 0},
        {"continue_final_message": "role"},
    ],
    ids=str,
)
def test_what_is_not_built_is_refused_not_ignored(client, worker, field):
    error_of(client.post(CHAT, json={"messages": MESSAGES} | field), 400, "not_supported_error")
    assert worker.requests == []


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}},
    ],
    ids=["image", "sound"],
)
def test_what_a_model_cannot_read_has_the_status_of_llama_server(client, worker, part):
    answer = client.post(CHAT, json={"messages": [{"role": "user", "content": [part]}]})
    assert "input is not supported" in error_of(answer, 500, "server_error")
    assert worker.requests == []


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("logprobs", 999, "n_probs is 999 but must be from 0 to 258"),
        ("logprobs", "x", "logprobs is 'x' but must be"),
        ("n_probs", 10**5, "n_probs is 100000 but must be from 0 to 258"),
        ("response_fields", ["a/b"] * 20_000, "but must have at most 64 items, not 20000"),
        ("response_fields", ["/" * 300], "but must have at most 256 characters"),
    ],
)
def test_fields_of_a_native_completion_are_checked(client, field, value, says):
    assert says in error_of(client.post("/completion", json={"prompt": "a", field: value}), 400)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "messages is required"),
        ({"messages": []}, "messages is [] but must be a list with at least one message"),
        ({"messages": "hi"}, "messages is 'hi' but must be a list"),
        ({"messages": ["hi"]}, "messages.0 is 'hi'"),
        ({"messages": [None]}, "messages.0 is null but must be an object"),
        ({"messages": MESSAGES, "tool_choice": {"type": "function"}}, "names null but there are"),
        (
            {"messages": MESSAGES, "response_format": {"type": "json_schema"}},
            "response_format.json_schema is null but must be an object with a schema",
        ),
        ({"messages": [{"content": "hi"}]}, "messages.0.role is required"),
        ({"messages": [{"role": "user"}]}, "messages.0.content is required"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content must be"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "without a text"),
        ({"messages": [{"role": "assistant", "content": "a"}] * 2}, "both of role assistant"),
        ({"messages": MESSAGES, "continue_final_message": True}, "last message of role assistant"),
        ({"messages": MESSAGES, "top_logprobs": 3}, "needs logprobs"),
        ({"messages": MESSAGES, "logprobs": True, "top_logprobs": 999}, "from 0 to 258"),
    ],
)
def test_bad_messages_are_400(client, body, says):
    assert says in error_of(client.post(CHAT, json=body), 400)


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (None, "prompt is required"),
        ([], "empty list"),
        ([258], "ids 0 to 257"),
        ([-1], "token id -1"),
        (5.5, "must be a text"),
        ({"x": 1}, "must be a text"),
        ({"text": "x"}, "it holds {'text': 'x'}"),
        (["a"] * 257, "at most 256"),
    ],
)
def test_bad_prompts_are_400(client, prompt, says):
    for path in ("/completion", "/v1/completions"):
        assert says in error_of(client.post(path, json={"prompt": prompt}), 400)


def test_unknown_routes_are_404_and_wrong_methods_405(client):
    message = error_of(client.get("/v1/nothing"), 404, "not_found_error")
    assert message == "there is no /v1/nothing here (/openapi.json lists the paths)"
    assert client.get("/openapi.json").status_code == 200
    message = error_of(client.post(CHAT[:-1], json={}), 404, "not_found_error")
    assert f"; did you mean {CHAT}? (" in message
    response = client.get(CHAT)
    assert "POST" in error_of(response, 405)
    assert response.headers["allow"] == "POST"


def test_a_long_name_is_shortened_in_the_error(client):
    message = error_of(client.get("/v1/models/" + "a" * 10_000), 404, "not_found_error")
    assert "aaa...aaa" in message
    assert len(message) < 200


def test_errors_have_the_form_of_their_paths_api(client, worker, monkeypatch):
    for path in ("/api/chat", "/api/nothing"):  # another method; no such path
        assert path in client.get(path).json()["error"]
    for path in ("/v1/messages", "/v1/messages/nothing"):
        answer = client.get(path).json()
        assert (answer["type"], path in answer["error"]["message"]) == ("error", True)
    monkeypatch.setattr(worker, "submit", None)  # raises a TypeError
    closing = {"Connection": "close"}  # uvicorn closes the connection after a failure
    failed = client.post("/api/chat", json={"messages": MESSAGES}, headers=closing)
    assert (failed.status_code, "internal error" in failed.json()["error"]) == (500, True)


def test_null_means_absent_and_unknown_fields_are_ignored(client, worker):
    body = {
        "messages": MESSAGES,
        "temperature": None,
        "stop": None,
        "tools": None,
        "banana": {"x": 1},
        "top_k": 40.0,
    }
    assert client.post(CHAT, json=body).status_code == 200
    assert worker.requests[0].sampling.temperature == 0.8


def test_a_template_that_raises_is_400_with_its_message():
    template = "{{ raise_exception('roles must alternate') }}"
    with serving(model=served_model(template)) as client:
        assert "roles must alternate" in error_of(
            client.post(CHAT, json={"messages": MESSAGES}), 400
        )
        assert "roles must alternate" in error_of(
            client.post("/apply-template", json={"messages": MESSAGES}), 400
        )


FAILURES = [
    (RequestError("no such speculator"), 400, "invalid_request_error"),
    (CapacityError("256 requests are waiting"), 503, "unavailable_error"),
    (EngineError("decode failed"), 500, "server_error"),
    (WorkerDeadError("the engine process ended"), 500, "server_error"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("failure", "status", "kind"), FAILURES)
def test_failures_before_the_first_token_have_their_status(
    client, worker, failure, status, kind, stream
):
    worker.script = lambda request: [failure]
    response = client.post("/completion", json={"prompt": "a", "stream": stream})
    assert error_of(response, status, kind) == str(failure)
    assert ("retry-after" in response.headers) == (status == 503)


def test_a_prompt_longer_than_the_context_says_both_sizes(client, worker):
    worker.script = lambda request: [ContextLengthError(600, 512)]
    response = client.post("/completion", json={"prompt": "a"})
    assert "600 tokens" in error_of(response, 400, "exceed_context_size_error")
    assert response.json()["error"]["n_prompt_tokens"] == 600
    assert response.json()["error"]["n_ctx"] == 512


@pytest.mark.parametrize("length", [512, 3001, 100_000])
def test_errors_for_long_prompts_have_the_exact_number_of_tokens(client, length):
    text = "a" * length
    for path, body in (
        ("/completion", {"prompt": text}),
        ("/completion", {"prompt": [1] * length}),
        ("/v1/completions", {"prompt": [1] * length}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
    ):
        tokens = length
        if "messages" in body:
            tokens = len(client.post("/apply-template", json=body).json()["prompt"])
        response = client.post(path, json=body)
        if tokens > INFO.context_size:
            assert f"{tokens} tokens" in error_of(response, 400, "exceed_context_size_error")
            assert response.json()["error"]["n_prompt_tokens"] == tokens
            assert response.json()["error"]["n_ctx"] == INFO.context_size


def test_unexpected_failures_are_500_without_details():
    def fail(request: Request) -> list:
        raise ZeroDivisionError("secret")

    worker = FakeWorker()
    worker.submit = lambda request, deliver: fail(request)
    with serving(worker) as client:
        response = client.post("/completion", json={"prompt": "a"})
        assert "secret" not in error_of(response, 500, "server_error")


BROKE = {"code": 500, "message": "it broke", "type": "server_error"}


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        (CHAT, {"messages": MESSAGES}, {"error": BROKE}),
        (
            "/v1/messages",
            {"messages": MESSAGES, "max_tokens": 9},
            {"type": "error", "error": BROKE},
        ),
        (
            "/v1/responses",
            {"input": "Hi"},
            {"type": "error", "code": "server_error", "message": "it broke", "param": None},
        ),
    ],
)
def test_a_failure_after_the_stream_began_is_an_event_in_it(client, worker, path, body, last):
    worker.script = lambda request: [*say(request, b"ab")[:-1], EngineError("it broke")]
    response = client.post(path, json=body | {"stream": True})
    assert response.status_code == 200
    *_, before, end = response.text.strip().split("\n\n")
    name, _, data = end.rpartition("data: ")
    assert name == ("" if path == CHAT else "event: error\n")
    error = json.loads(data)
    assert {key: error[key] for key in last} == last
    assert error.keys() - last.keys() <= {"sequence_number"}
    assert '"ab"' in before


def test_a_large_body_is_413_and_the_next_request_works():
    with serving(config=ServerConfig(max_body_mb=1)) as client:
        # with and without a length
        for content in (b" " * (3 << 20), (b" " * 65536 for _ in range(48))):
            assert "larger than 1 MiB" in error_of(client.post(CHAT, content=content), 413)
        assert client.post(CHAT, json={"messages": MESSAGES}).status_code == 200


def test_a_client_that_waits_for_100_continue_is_told_413_before_it_sends():
    with (
        serving(config=ServerConfig(max_body_mb=1)) as client,
        socket.create_connection((client.base_url.host, client.base_url.port), 10) as connection,
    ):
        connection.sendall(
            b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 104857600\r\nExpect: "
            b"100-continue\r\n\r\n"
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("slot", ["4", "9" * 4400, "-1", "x", "\u0661"])
def test_a_slot_that_is_not_there_is_400_and_named(tmp_path, slot):
    with serving(config=ServerConfig(slot_save_path=str(tmp_path))) as client:
        message = error_of(client.post(f"/slots/{slot}?action=erase"), 400)
    assert "id_slot is" in message
    assert "from 0 to 3" in message
