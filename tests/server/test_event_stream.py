"""Events are read together where several have come, in order, and silence is noticed in time."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.requests import ClientDisconnect
from tests.planted import threads_of
from tests.server.fake_worker import HOLD, FakeWorker, say
from tests.server.serving import served_model, serving
from tests.server.test_tool_calls import TEMPLATE

from headstart.config import ServerConfig
from headstart.server import answer, completions, dialect
from headstart.server.event_stream import MOST_AT_ONCE, EventStream
from headstart.server.threads import Threads
from headstart.testing import ByteVocab
from headstart.types.errors import CapacityError, EngineError
from headstart.types.request import (
    Event,
    FinishEvent,
    ProgressEvent,
    PromptEvent,
    Request,
    RequestStats,
    TokenEvent,
    TokenLogprob,
    VerifiedDraft,
)

REQUESTS = [Request(request_id=name, prompt=(1,)) for name in "ab"]


class Silent(FakeWorker):
    """What happens to its requests is the test's to say."""

    def __init__(self) -> None:
        super().__init__()
        self.deliver: dict[str, Any] = {}
        self.ended: list[str] = []

    def submit(self, request: Any, deliver: Any) -> None:
        self.deliver[request.request_id] = deliver

    def cancel(self, request_id: str) -> None:
        self.ended.append(request_id)


async def stay() -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


def token(name: str, number: int = 0) -> TokenEvent:
    return TokenEvent(name, (number,), b"x", ("",))


def end(name: str) -> FinishEvent:
    return FinishEvent(name, "eos", RequestStats())


async def test_what_has_come_is_read_at_once_with_the_index_of_its_request() -> None:
    worker = Silent()
    async with EventStream(worker, REQUESTS, stay) as events:
        told = [("a", token("a", 1)), ("b", token("b", 2)), ("a", end("a"))]
        for name, event in told:
            worker.deliver[name](event)
        assert await events.take() == [("ab".index(name), event) for name, event in told]
        assert not events.is_over
        worker.deliver["b"](end("b"))
        assert await events.take() == [(1, end("b"))]
        assert events.is_over


async def test_of_very_many_events_only_some_are_read_without_a_pause() -> None:
    worker = Silent()
    async with EventStream(worker, REQUESTS, stay) as events:
        for number in range(MOST_AT_ONCE + 3):
            worker.deliver["a"](token("a", number))
        assert len(await events.take()) == MOST_AT_ONCE
        rest = range(MOST_AT_ONCE, MOST_AT_ONCE + 3)
        assert await events.take() == [(0, token("a", number)) for number in rest]


async def test_what_comes_while_somebody_waits_can_be_dealt_with_at_once() -> None:
    worker, told, is_busy = Silent(), list[tuple[int, Event]](), False

    def deal(index: int, event: Event) -> bool:
        told.append((index, event))
        return not is_busy

    async with EventStream(worker, REQUESTS, stay) as events:
        worker.deliver["a"](token("a", 1))
        events.handle_directly = deal
        worker.deliver["a"](token("a", 2))  # behind one that waits to be taken
        assert await events.take() == [(0, token("a", 1)), (0, token("a", 2))]
        taking = asyncio.create_task(events.take())
        await asyncio.sleep(0)
        worker.deliver["a"](token("a", 3))
        worker.deliver["b"](token("b", 4))
        assert told == [(0, token("a", 3)), (1, token("b", 4))]
        is_busy = True
        for number in (5, 6):
            worker.deliver["a"](token("a", number))
        worker.deliver["a"](end("a"))
        assert (await taking)[:-1] == [(0, token("a", 5)), (0, token("a", 6))]
        taking = asyncio.create_task(events.take())
        await asyncio.sleep(0)
        worker.deliver["b"](end("b"))  # an end is always taken
        assert await taking == [(1, end("b"))]
        assert len(told) == 3


async def test_what_fails_at_once_ends_the_call() -> None:
    worker = Silent()
    async with EventStream(worker, REQUESTS, stay) as events:
        events.handle_directly = lambda index, event: 1 / 0 > 0
        taking = asyncio.create_task(events.take())
        await asyncio.sleep(0)
        for event in (token("a"), token("a"), end("a")):  # nothing comes behind what was lost
            worker.deliver["a"](event)
        assert worker.ended == ["a", "b"]
        with pytest.raises(ZeroDivisionError):
            await taking


async def test_a_failure_is_told_after_what_came_before_it() -> None:
    worker = Silent()
    async with EventStream(worker, REQUESTS, stay) as events:
        worker.deliver["a"](token("a"))
        worker.deliver["b"](EngineError("first"))
        worker.deliver["a"](EngineError("second"))
        assert len(await events.take()) == 1
        with pytest.raises(EngineError, match="first"):
            await events.take()


async def test_a_client_that_leaves_wakes_who_waits() -> None:
    has_left = asyncio.Event()

    async def leave() -> dict[str, Any]:
        await has_left.wait()
        return {"type": "http.disconnect"}

    worker = Silent()
    async with EventStream(worker, REQUESTS, leave) as events:
        asyncio.get_running_loop().call_later(0.01, has_left.set)
        with pytest.raises(ClientDisconnect):
            await events.take()


async def test_silence_is_counted_from_when_somebody_waits() -> None:
    worker = Silent()
    loop = asyncio.get_running_loop()
    async with EventStream(worker, REQUESTS, stay, max_silence=0.2) as events:
        await asyncio.sleep(0.15)  # the client took so long for what it had
        for seconds in (0.0, 0.15):  # an event in between begins it anew
            loop.call_later(seconds, worker.deliver["a"], token("a"))
            assert await events.take()
        for _ in range(2):
            started = time.monotonic()
            assert await events.take() == []
            assert time.monotonic() - started >= 0.19


async def test_without_a_limit_it_waits() -> None:
    async with EventStream(Silent(), REQUESTS, stay) as events:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(events.take(), 0.05)


def queued(request):
    return [HOLD]


def prefilling(request):
    return [ProgressEvent(request.request_id, 5, 0, 2, 0.1), HOLD]


def generating(request):
    return [*say(request, b"ab")[:-1], HOLD]


def connect(client, body):
    """A raw connection that has sent a request and can be dropped at any time."""
    url = urlsplit(str(client.base_url))
    connection = socket.create_connection((url.hostname, url.port), 10)
    payload = json.dumps({"prompt": "a"} | body).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n\r\n"
    connection.sendall(head.encode() + payload)
    return connection


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [queued, prefilling, generating])
def test_leaving_cancels_the_request(script, stream):
    worker = FakeWorker(script)
    with serving(worker) as client:
        connection = connect(client, {"stream": stream, "return_progress": True, "n": 2})
        started = {worker.started.get(timeout=60) for _ in range(2)}
        connection.close()
        assert {worker.cancelled.get(timeout=60) for _ in range(2)} == started
        assert client.get("/health").status_code == 200


def test_one_failing_choice_cancels_the_others():
    worker = FakeWorker(
        lambda request: [EngineError("x")] if request.request_id.endswith("-1") else [HOLD]
    )
    with serving(worker) as client:
        assert client.post("/completion", json={"prompt": "a", "n": 2}).status_code == 500
        assert worker.cancelled.get(timeout=60) == worker.requests[0].request_id


def test_a_finished_request_is_not_cancelled():
    worker = FakeWorker()
    with serving(worker) as client:
        client.post("/completion", json={"prompt": "a"})
        client.post("/completion", json={"prompt": "a", "stream": True})
    assert worker.cancelled.empty()


def test_a_silent_stream_is_pinged_while_queued():
    worker = FakeWorker(queued)
    with serving(worker, ServerConfig(sse_ping_interval=1)) as client:
        connection = connect(client, {"stream": True})
        received = b""
        while b": ping\n\n" not in received:
            received += connection.recv(65536)
        assert received.startswith(b"HTTP/1.1 200")
        assert b"text/event-stream" in received
        connection.close()
        worker.cancelled.get(timeout=60)


def test_a_stream_goes_on_while_no_more_requests_can_be_read(monkeypatch) -> None:
    queue, is_full = Threads._queue, threading.Event()

    def refusing(self: Threads, job: Any) -> None:
        if is_full.is_set() and self._name == "prompts":
            raise CapacityError("requests wait to be read")
        queue(self, job)

    def script(request: Request) -> list[Event]:
        is_full.set()
        return say(request, b"x" * 1500)

    monkeypatch.setattr(Threads, "_queue", refusing)
    with serving(FakeWorker(script)) as client:
        body = {"prompt": "a", "stream": True, "n_probs": 100}
        text = client.post("/completion", json=body).text
    assert "wait to be read" not in text
    assert "x" * 1500 in text


def test_a_client_that_pauses_gets_every_token_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are sent where they arrive until the connection is full, and taken from then on."""
    sent = list[bool]()
    words = [b"%06d " % number + b"x" * 500 for number in range(20_000)]

    def script(request: Request) -> list[Event]:
        told = [TokenEvent(request.request_id, (1,), word, ("",)) for word in words]
        return [*told, *say(request)]

    write_directly = answer._StreamedAnswer._write_directly

    def noted(*given: Any) -> bool:
        sent.append(write_directly(*given))
        return sent[-1]

    monkeypatch.setattr(answer._StreamedAnswer, "_write_directly", noted)
    with serving(FakeWorker(script)) as client:
        connection = connect(client, {"stream": True})
        received = connection.recv(1000)
        until = time.monotonic() + 60
        while False not in sent and time.monotonic() < until:  # it is full
            time.sleep(0.01)
        while b'"stop":true' not in received[-10_000:]:
            received += connection.recv(1 << 20)
        connection.close()
    assert {True, False} <= {*sent}
    found = [int(one) for one in re.findall(rb'"content":"(\d{6}) x', received)]
    assert found == [*range(20_000)]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "owner", "name"),
    [
        ("/v1/responses", ByteVocab, "tokenize"),
        ("/v1/chat/completions", dialect, "counterfactual"),
        ("/v1/completions", completions, "legacy_logprobs"),
    ],
)
def test_what_is_told_of_a_long_prompt_or_counted_of_a_long_answer_holds_up_no_other(
    path: str, owner: object, name: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = VerifiedDraft((), (), (), 1.0, 0.0)

    def script(request: Request) -> list[Event]:
        read = PromptEvent(request.request_id, (TokenLogprob(97, -0.5),) * 2500)
        steps = [*[b"x"] * 2500, *(bytes([byte]) for byte in b"</think>Yes")]
        *events, end = say(request, *steps)
        told = [replace(one, step=step) for one in events if isinstance(one, TokenEvent)]
        return [*[read] * request.wants_prompt_scores, *told, end]

    threads = threads_of(monkeypatch, owner, name)
    asked = [{"role": "user", "content": "Hi"}]
    body = {"input": asked, "messages": asked, "provenance": True, "stream": stream}
    if path == "/v1/completions":
        body |= {"prompt": "a", "echo": True, "logprobs": 0}
    with serving(FakeWorker(script), model=served_model(TEMPLATE)) as client:
        reply = client.post(path, json=body, timeout=60)
    assert reply.status_code == 200
    assert any("answers" in one for one in threads)
