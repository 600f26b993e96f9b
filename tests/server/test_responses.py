"""OpenAI's responses API, with its own client."""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import Any

import httpx2
import openai
import pytest
from tests.images import TINY_GIF, asking, image_part
from tests.planted import threads_of
from tests.server.fake_worker import HOLD, INFO, FakeWorker, say
from tests.server.serving import error_of, events_of, openai_of, served_model, serving
from tests.server.test_tool_calls import TEMPLATE

from headstart.config import ServerConfig
from headstart.server import responses
from headstart.server.response_dialect import ResponsesBody, chat_body
from headstart.server.schemas import ChatBody
from headstart.types.errors import HeadstartError
from headstart.types.media import MediaChunk, MediaQuestion
from headstart.types.request import ReplyEvent, Request, TokenEvent, TokenLogprob

TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]


def test_a_text_is_answered(sdk: Any, worker: FakeWorker) -> None:
    answer = sdk.responses.create(
        model="any", input="Hi", instructions="Be brief.", max_output_tokens=9, temperature=0.5
    )
    assert answer.output_text == "Höi!"
    assert answer.id.startswith("resp_")
    assert answer.output[0].id.startswith("msg_")
    assert (answer.status, answer.output[0].status) == ("completed", "completed")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (5, 4)
    assert answer.usage.input_tokens_details.cached_tokens == 2
    (request,) = worker.requests
    assert (request.max_tokens, request.sampling.temperature) == (9, 0.5)
    prompt = bytes(request.prompt).decode()
    assert prompt.index("Be brief.") < prompt.index("Hi")


def test_a_stream_has_openais_events_in_their_order(sdk: Any) -> None:
    events = list(sdk.responses.create(model="any", input="Hi", stream=True))
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(10))
    created, end = events[0].response, events[-1].response
    assert (created.status, created.output, created.id) == ("in_progress", [], end.id)
    assert end.output_text == "Höi!"
    assert end.completed_at >= end.created_at
    assert {events[i].item_id for i in (3, 4, 5, 6, 7)} == {end.output[0].id}
    assert "timings" in events[-1].model_extra


def test_an_answer_that_was_cut_says_so(sdk: Any, worker: FakeWorker) -> None:
    worker.script = lambda request: say(request, b"ab", reason="length")
    answer = sdk.responses.create(model="any", input="Hi", max_output_tokens=2)
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.completed_at is None
    *_, last = sdk.responses.create(model="any", input="Hi", stream=True)
    assert (last.type, last.response.status) == ("response.incomplete", "incomplete")


def test_a_conversation_goes_on_from_a_stored_response(sdk: Any, worker: FakeWorker) -> None:
    first = sdk.responses.create(model="any", input="One", instructions="Only now")
    second = sdk.responses.create(model="any", input="Two", previous_response_id=first.id)
    third = sdk.responses.create(
        model="any", input="Three", previous_response_id=second.id, stream=True
    )
    list(third)
    prompt = bytes(worker.requests[-1].prompt).decode()
    places = [prompt.index(text) for text in ("One", "Höi!", "Two", "Three")]
    assert places == sorted(places)
    assert "Only now" not in prompt
    assert sdk.responses.retrieve(second.id).previous_response_id == first.id


def test_a_stored_response_can_be_read_and_deleted(sdk: Any) -> None:
    answer = sdk.responses.create(model="any", input="Hi", metadata={"a": "b"})
    again = sdk.responses.retrieve(answer.id)
    assert (again.output_text, again.metadata) == ("Höi!", {"a": "b"})
    sdk.responses.delete(answer.id)
    for lost in (
        lambda: sdk.responses.retrieve(answer.id),
        lambda: sdk.responses.delete(answer.id),
    ):
        with pytest.raises(openai.NotFoundError, match="not found"):
            lost()
    with pytest.raises(openai.BadRequestError, match=r"Previous response with id .* not found"):
        sdk.responses.create(model="any", input="Hi", previous_response_id=answer.id)
    kept = sdk.responses.create(model="any", input="Hi", store=False)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(kept.id)


def test_nobody_reads_the_responses_of_another_key() -> None:
    config = ServerConfig(api_key="one,two")
    with serving(config=config) as client, openai_of(client, "one") as mine:
        answer = mine.responses.create(model="any", input="secret")
        with openai_of(client, "two") as other:
            with pytest.raises(openai.NotFoundError):
                other.responses.retrieve(answer.id)
            with pytest.raises(openai.BadRequestError):
                other.responses.create(model="any", input="a", previous_response_id=answer.id)


def thinking(request: Request) -> list[Any]:
    return say(request, b"Hm", b".</think>Yes", b".")  # the template opens the thoughts


def calling(request: Request) -> list[Any]:
    call = b'</think><tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>'
    return say(request, call[:40], call[40:])


def test_thoughts_are_an_item_of_their_own() -> None:
    worker = FakeWorker(thinking)
    with serving(worker, model=served_model(TEMPLATE)) as client, openai_of(client) as sdk:
        answer = sdk.responses.create(model="any", input="Hi", reasoning={"effort": "low"})
        events = list(sdk.responses.create(model="any", input="Hi", stream=True))
    for output in (answer.output, events[-1].response.output):
        assert [item.type for item in output] == ["reasoning", "message"]
        assert output[0].content[0].text == "Hm."
        assert output[1].content[0].text == "Yes."
    kinds = [event.type for event in events]
    assert "response.reasoning_text.delta" in kinds
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
    assert answer.usage.output_tokens_details.reasoning_tokens == 3


def test_calls_are_items_whose_results_come_back() -> None:
    worker = FakeWorker(calling)
    with serving(worker, model=served_model(TEMPLATE)) as client, openai_of(client) as sdk:
        answer = sdk.responses.create(model="any", input="Look!", tools=TOOLS)
        events = list(sdk.responses.create(model="any", input="Look!", tools=TOOLS, stream=True))
        (call,) = answer.output
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "a hill"}
        worker.script = lambda request: say(request, b"</think>A hill.")
        final = sdk.responses.create(
            model="any", input=[result], previous_response_id=answer.id, tools=TOOLS
        )
        again = sdk.responses.create(
            model="any",
            input=[{"role": "user", "content": "Look!"}, call.model_dump(), result],
            tools=TOOLS,
        )
    for one in (call, events[-1].response.output[0]):
        assert (one.type, one.name, json.loads(one.arguments)) == (
            "function_call",
            "look",
            {"at": "x"},
        )
    kinds = [event.type for event in events]
    arguments = "".join(e.delta for e in events if e.type.endswith("arguments.delta"))
    assert json.loads(arguments) == {"at": "x"}
    assert kinds.index("response.output_item.added") < kinds.index(
        "response.function_call_arguments.done"
    )
    assert final.output_text == again.output_text == "A hill."
    stored, sent = (bytes(request.prompt) for request in worker.requests[-2:])
    assert stored == sent


def test_logprobs_come_with_the_text(sdk: Any) -> None:
    wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = sdk.responses.create(model="any", input="Hi", **wanted)
    *_, last = sdk.responses.create(model="any", input="Hi", stream=True, **wanted)
    for response in (answer, last.response):
        logprobs = response.output[0].content[0].logprobs
        assert b"".join(bytes(one.bytes) for one in logprobs) == "Höi!".encode()
        assert len(logprobs[0].top_logprobs) == 2


CALL = b'<tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>'


@pytest.mark.parametrize(
    ("said", "kinds"),
    [
        ([b"Hm.</think>One.", CALL, b"Two."], "reasoning message function_call message"),
        ([b"Hm.</think>", CALL[:9], CALL[9:], CALL], "reasoning function_call function_call"),
        ([b"Hm.</think>One", b".", CALL], "reasoning message function_call"),
        ([b"Hm."], "reasoning"),
        ([], "message"),
    ],
)
def test_a_stream_has_the_items_of_the_whole_answer(said: list[bytes], kinds: str) -> None:
    def script(request: Request) -> list[Any]:
        *events, end = say(request, *said)
        ending = TokenEvent(request.request_id, (0,), b"", ("",), (TokenLogprob(0, -0.5),))
        return [*events, ending, end]  # a token without text

    wish = {"model": "any", "input": "Look!", "tools": TOOLS, "top_logprobs": 1}
    worker = FakeWorker(script)
    with serving(worker, model=served_model(TEMPLATE)) as client, openai_of(client) as sdk:
        whole = sdk.responses.create(**wish)
        *events, last = sdk.responses.create(**wish, stream=True)
    outputs = [
        [item.model_dump(exclude={"id", "call_id"}) for item in one.output]
        for one in (whole, last.response)
    ]
    assert outputs[0] == outputs[1]
    assert [item["type"] for item in outputs[0]] == kinds.split()
    for event in events:
        if event.type == "response.content_part.added":
            assert not event.part.text
            assert not getattr(event.part, "logprobs", None)


def test_progress_and_times_come_with_a_stream(client: httpx2.Client) -> None:
    body = {"input": "Hi", "stream": True, "return_progress": True, "timings_per_token": True}
    events = events_of(client.post("/responses", json=body | {"metadata": {"a": "b" * 10_000}}))
    told = [event for event in events if "prompt_progress" in event]
    assert [event["type"] for event in told] == ["response.in_progress"]
    assert all(len(str(event)) < 1000 for event in told)  # there may be thousands
    assert all("timings" in e for e in events if e["type"] == "response.output_text.delta")


def test_tokens_are_counted(sdk: Any, worker: FakeWorker, client: httpx2.Client) -> None:
    sdk.responses.create(model="any", input="Hi")
    counted = client.post("/v1/responses/input_tokens", json={"input": "Hi"}).json()
    assert counted == {
        "object": "response.input_tokens",
        "input_tokens": len(worker.requests[0].prompt),
    }


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "input is required"),
        ({"input": 3}, "must be a text or a list"),
        ({"input": ["a"]}, "input.0 is 'a'"),
        ({"input": [{"role": "king", "content": "a"}]}, "must be user, system"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": 3}]}]},
            "image_url is 3 but must be a text",
        ),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ({"input": [{"type": "function_call", "name": "a", "arguments": "{}"}]}, "call_id"),
        ({"input": "a", "background": True}, "background is not supported"),
        ({"input": "a", "reasoning": {"effort": 3}}, "reasoning.effort"),
        ({"input": [{"type": "reasoning", "content": 5}]}, "input.0 is 5 but must be"),
    ],
)
def test_what_cannot_be_answered_is_refused(body: dict[str, Any], words: str) -> None:
    with pytest.raises(HeadstartError, match=words):
        chat_body(ResponsesBody.model_validate(body), [])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"text": {"format": {"type": "xml"}}}, "response_format.type is 'xml'"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "response_format.json_schema"),
        ({"tools": [{"type": "function"}]}, "tools.0.function.name"),
    ],
)
def test_what_a_chat_refuses_is_refused_in_a_response_too(client: httpx2.Client, body, words):
    assert words in error_of(client.post("/v1/responses", json={"input": "a"} | body), 400)


def test_items_of_one_answer_are_one_message() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
        {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": [
            {"type": "input_text", "text": "b"}]},
    ]  # fmt: skip
    asked: dict[str, Any] = {
        "input": items,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        "reasoning": {"effort": "low"},
        "tools": [{"type": "web_search"}, *TOOLS],
        "top_k": 3,
    }
    body = chat_body(ResponsesBody.model_validate(asked), [])
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    assert body.messages == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "A", "reasoning_content": "Hm", "tool_calls": [call]},
        {"role": "tool", "content": "b", "tool_call_id": "1"},
    ]
    assert body.response_format == asked["text"]["format"]
    assert (body.reasoning_effort, body.model_dump()["top_k"]) == ("low", 3)
    assert [tool["function"]["name"] for tool in body.tools or []] == ["look"]


def test_a_client_that_leaves_cancels_its_request() -> None:
    worker = FakeWorker(lambda request: [HOLD])
    with serving(worker) as client:
        with pytest.raises(httpx2.ReadTimeout):
            client.post("/v1/responses", json={"input": "Hi"}, timeout=0.3)
        assert worker.cancelled.get(timeout=60).startswith("resp_")


def test_a_conversation_is_put_together_off_the_event_loop(client: httpx2.Client, monkeypatch):
    threads = threads_of(monkeypatch, responses, "chat_body")
    first = client.post("/v1/responses", json={"input": "Hi"}).json()
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        body = {"input": "Hi", "previous_response_id": first["id"]}
        assert client.post(path, json=body).status_code == 200
    assert len(threads) == 3
    assert all("prompts" in one for one in threads)


def test_a_kept_answer_goes_on_though_its_client_left_as_its_prompt_was_put_together(monkeypatch):
    begun, may_go_on = threading.Event(), threading.Event()

    def slow(*given: Any) -> ChatBody:
        begun.set()
        may_go_on.wait(60)
        return chat_body(*given)

    monkeypatch.setattr(responses, "chat_body", slow)
    with serving(worker := FakeWorker()) as client:
        body, headers = {"input": "Hi", "stream": True}, {"X-Conversation-Id": "c"}
        with pytest.raises(httpx2.ReadTimeout):
            client.post("/v1/responses", json=body, headers=headers, timeout=0.3)
        assert begun.wait(60)
        for _ in range(3):  # the server sees that it left
            client.get("/health")
        may_go_on.set()
        assert worker.started.get(timeout=60).startswith("resp_")


def test_a_kept_answer_goes_on_though_its_client_left_as_its_image_was_read() -> None:
    def script(request: Any) -> list[Any]:
        if not isinstance(request, MediaQuestion):
            return say(request, b"a")
        parts = ((MediaChunk(b"k" * 16, 4),),)
        return [HOLD, ReplyEvent(request.request_id, parts)]

    worker = FakeWorker(script)
    worker.info_when_ready = dataclasses.replace(INFO, modalities=("image",))
    body, stream = asking(image_part(TINY_GIF), stream=True), "/v1/stream?conv_id=c"
    with serving(worker) as client:

        def ask_and_leave() -> str:
            with pytest.raises(httpx2.ReadTimeout):
                client.post(
                    "/v1/chat/completions",
                    json=body,
                    headers={"X-Conversation-Id": "c"},
                    timeout=0.3,
                )
            for _ in range(3):  # the server sees that it left
                client.get("/health")
            return worker.started.get(timeout=60)

        stopped = ask_and_leave()
        assert client.delete(stream).status_code == 204
        assert worker.cancelled.get(timeout=60) == stopped
        ask_and_leave()
        worker.go_on()
        assert '"content":"a"' in client.get(stream).text
