"""A model sleeps without requests, and answers go on without their client."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from starlette.responses import StreamingResponse
from tests.harness import Model, make_requests, make_scheduler
from tests.server.fake_worker import HOLD, INFO, FakeWorker, say
from tests.server.server_process import Server, until
from tests.server.serving import error_of, served_model, serving, text_of
from tests.thread_transport import ThreadTransport

from headstart.config import ServerConfig
from headstart.server import app, conversation, kept_streams
from headstart.server.conversation import render_chat
from headstart.server.kept_streams import PIECE_BYTES, KeptStream, KeptStreams
from headstart.server.service import Service
from headstart.types.errors import CapacityError, ModelError, RequestError
from headstart.types.request import FinishEvent
from headstart.worker.client import WorkerClient

PROMPT = {"prompt": "def f(", "n_predict": 4, "temperature": 0}


def test_the_model_sleeps_and_is_woken_by_several_requests_at_once(tmp_path: Path) -> None:
    flags = ["--sleep-idle-seconds", "1", "-c", "512", "--spec", "off"]
    with Server(flags, tmp_path) as server, server.client() as client:

        def is_sleeping() -> bool:
            return bool(client.get("/props").json()["is_sleeping"])

        before = client.post("/completion", json=PROMPT).json()["content"]
        engine = server.engine_pid()
        until(is_sleeping, "the model sleeps")
        until(lambda: not os.path.exists(f"/proc/{engine}"), "its memory is free")
        for path in ("/health", "/v1/models", "/metrics", "/slots", "/props"):
            assert client.get(path).status_code == 200
        assert "\nheadstart_engine_memory_bytes 0\n" in client.get("/metrics").text
        assert is_sleeping()  # who only looks does not wake it
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: client.post("/completion", json=PROMPT), "1234"))
        assert [a.json()["content"] for a in answers] == [before] * 4
        assert not is_sleeping()
        assert server.engine_pid() != engine
        until(is_sleeping, "it sleeps again")
        assert client.post("/tokenize", json={"content": "a"}).status_code == 200
        assert not is_sleeping()
        assert server.stop() == 0


def client_of(failures: list[Exception]) -> WorkerClient:
    """A worker whose engine fails to load for each of these, from the second one on."""
    num_built = 0

    def build():
        nonlocal num_built
        num_built += 1
        if num_built > 1 and failures:
            raise failures.pop()
        return make_scheduler(Model()), INFO

    return WorkerClient(lambda: ThreadTransport(build))


async def ask(worker: WorkerClient) -> None:
    done = asyncio.get_running_loop().create_future()
    (request,) = make_requests(1)

    def deliver(event: object) -> None:
        if isinstance(event, FinishEvent):
            done.set_result(event)

    worker.submit(request, deliver)
    await done


async def test_a_model_that_cannot_be_loaded_again_is_tried_with_the_next_request() -> None:
    worker = client_of([ModelError("no memory is left")])
    await worker.start()
    await worker.sleep()
    with pytest.raises(CapacityError, match="could not be loaded again: no memory is left"):
        await worker.wake()
    assert worker.status == "sleeping"
    await asyncio.gather(worker.wake(), worker.wake())
    assert worker.status == "ready"
    await ask(worker)
    await worker.close()


async def test_a_model_wakes_also_if_there_was_no_thread_to_close_its_engine(monkeypatch) -> None:
    worker = client_of([])
    await worker.start()
    with monkeypatch.context() as patch:
        patch.setattr(ThreadTransport, "close", Mock(side_effect=RuntimeError("no new thread")))
        await worker.sleep()
        await asyncio.sleep(0.01)
    await worker.wake()
    assert worker.status == "ready"
    await ask(worker)
    await worker.close()


async def test_a_worker_that_is_closed_while_it_loads_leaves_no_error_behind() -> None:
    loop, errors = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: errors.append(context))

    class Loading:
        def start(self, hear: Callable[[None], None]) -> None:
            self.close = lambda: loop.call_soon_threadsafe(hear, None)

        def send(self, command: None) -> None: ...

    worker = WorkerClient(Loading)  # type: ignore[arg-type]
    starting = asyncio.create_task(worker.start())
    await asyncio.sleep(0)
    starting.cancel()
    await worker.close()
    await asyncio.sleep(0)
    del worker, starting
    gc.collect()
    assert not errors


async def test_who_waits_for_a_sleeping_model_is_told_that_the_server_ends() -> None:
    worker = client_of([])
    await worker.start()
    await worker.sleep()
    waiting = asyncio.create_task(worker.wake())
    await asyncio.sleep(0)  # it waits for the end of the engine before
    await worker.close()
    with pytest.raises(CapacityError, match="shutting down"):
        await asyncio.wait_for(waiting, 10.0)


async def test_a_worker_with_a_request_does_not_sleep() -> None:
    worker = client_of([])
    await worker.start()
    asking = asyncio.create_task(ask(worker))
    await asyncio.sleep(0)
    await worker.sleep()
    assert worker.status == "ready"
    await asking
    await worker.sleep()
    assert worker.status == "sleeping"
    await worker.close()
    with pytest.raises(CapacityError):
        worker.submit(make_requests(1)[0], lambda event: None)


async def test_a_model_that_takes_long_to_load_is_not_unloaded_before_it_is_used(monkeypatch):
    service, slept = Service(ServerConfig(sleep_idle_seconds=1), FakeWorker()), list[float]()

    async def sleep() -> None:
        slept.append(time.monotonic() - service.idle_since)

    monkeypatch.setattr(service.worker, "sleep", sleep, raising=False)
    looking = asyncio.create_task(app._unload_when_idle(service))
    await asyncio.sleep(1.5)  # a look, while it loads
    assert not slept
    service.idle_since, service.model = time.monotonic(), served_model()
    async with asyncio.timeout(20):
        while not slept:
            await asyncio.sleep(0.1)
    looking.cancel()
    assert min(slept) >= 1


CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}


def held(request):
    begin, *rest = say(request, b"one ", b"two ", b"three")
    return [begin, HOLD, *rest]


@pytest.fixture(scope="module")
def worker():
    return FakeWorker(held)


@pytest.fixture(scope="module")
def client(worker):
    with serving(worker) as client:
        yield client


def resume(client, name, start=0):
    return client.get("/v1/stream", params={"conv_id": name, "from": start})


def test_a_stream_goes_on_without_its_client_and_is_resumed_from_any_byte(client, worker):
    name = "a/b::c"
    with client.stream("POST", CHAT, json=BODY, headers={"X-Conversation-Id": name}) as response:
        first = next(response.iter_bytes())
    worker.go_on()
    resumed = resume(client, name)
    whole = resumed.content
    assert whole.startswith(first)
    assert (text_of(resumed), whole.endswith(b"data: [DONE]\n\n")) == ("one two three", True)
    assert resume(client, name, len(first)).content == whole[len(first) :]
    for ids, number in ((["x", name], 1), (["a/b"], 1), (["a"], 0)):
        found = client.post("/v1/streams/lookup", json={"conversation_ids": ids}).json()
        assert len(found) == number
        for one in found:
            assert (one["is_done"], one["total_bytes"]) == (True, len(whole))
    assert client.delete("/v1/stream", params={"conv_id": name}).status_code == 204
    error_of(resume(client, name), 404, "not_found_error")


def test_a_stopped_stream_ends_its_answer():
    worker = FakeWorker(held)
    with (
        serving(worker) as client,
        client.stream("POST", CHAT, json=BODY, headers={"X-Conversation-Id": "x"}) as response,
    ):
        next(response.iter_bytes())
        assert client.delete("/v1/stream", params={"conv_id": "x"}).status_code == 204
        assert worker.cancelled.get(timeout=10)


def test_the_next_request_of_a_conversation_ends_the_last_one_and_no_other():
    """The last one got 499 without a body, and its end ended the next one too."""
    worker = FakeWorker(lambda request: [HOLD, *say(request, b"one")])

    def ask(client):
        return client.post(CHAT, json=BODY, headers={"X-Conversation-Id": "x"})

    with serving(worker) as client, ThreadPoolExecutor(2) as pool:
        last = pool.submit(ask, client)
        worker.started.get(timeout=60)
        following = pool.submit(ask, client)
        assert "cancelled" in error_of(last.result(60), 400)
        worker.started.get(timeout=60)
        worker.go_on()
        assert text_of(following.result(60)) == "one"


def test_an_answer_can_be_stopped_while_its_prompt_is_still_read(monkeypatch):
    """Stopping it answered 204 and stopped nothing."""
    is_reading, may_read = threading.Event(), threading.Event()
    read = render_chat

    def read_later(*args):
        is_reading.set()
        assert may_read.wait(60)
        return read(*args)

    monkeypatch.setattr(conversation, "render_chat", read_later)
    worker = FakeWorker()
    with serving(worker) as client, ThreadPoolExecutor(1) as pool:
        headers = {"X-Conversation-Id": "x"}
        asked = pool.submit(client.post, CHAT, json=BODY, headers=headers)
        assert is_reading.wait(60)
        named = {"conversation_ids": ["x"]}
        assert len(client.post("/v1/streams/lookup", json=named).json()) == 1
        assert client.delete("/v1/stream", params={"conv_id": "x"}).status_code == 204
        may_read.set()
        assert "cancelled" in error_of(asked.result(60), 400)
    assert worker.requests == []


def test_a_request_that_fails_leaves_no_stream_and_wrong_questions_are_named(client, worker):
    worker.go_on()
    bad = client.post(CHAT, json=BODY | {"top_k": "x"}, headers={"X-Conversation-Id": "bad"})
    assert bad.status_code == 400
    error_of(resume(client, "bad"), 404, "not_found_error")
    assert "conv_id" in error_of(client.get("/v1/stream"), 400)
    client.post(CHAT, json=BODY, headers={"X-Conversation-Id": "n"})
    assert "number of bytes" in error_of(resume(client, "n", "x"), 400)


def begin(stream: KeptStream, chunks: AsyncIterator[bytes]) -> None:
    stream.begin(StreamingResponse(chunks).stream_response(stream.send), "text/event-stream")


async def end(stream: KeptStream, *chunks: bytes) -> None:
    async def answer():
        for chunk in chunks:
            yield chunk

    begin(stream, answer())
    assert sum([len(piece) async for piece in stream.read()]) == sum(map(len, chunks))


async def test_streams_belong_to_their_tenant_and_keep_their_newest_bytes():
    streams = KeptStreams()

    async def chunks(number):
        for _ in range(number):
            yield b"x" * (1 << 20)

    long = streams.begin("a", "long")
    begin(long, chunks(5))
    pieces = [piece async for piece in long.read(1 << 20)]
    assert (sum(map(len, pieces)), {*map(len, pieces)}) == (4 << 20, {PIECE_BYTES})
    assert (long.num_bytes, long.num_dropped) == (5 << 20, 1 << 20)
    [late] = [piece async for piece in long.read()]  # does not look like an end
    assert late.startswith(b'\n\ndata: {"error":')
    assert b"the first 1048576 bytes of the stream are gone" in late
    assert streams.find("b", "long") is None
    streams.stop("b", "long")
    assert streams.find("a", "long")
    streams.stop("a", "long")
    assert streams.find("a", "long") is None


async def test_a_stream_is_forgotten_without_another_request_whatever_the_clock_says(monkeypatch):
    """A clock that was set back kept it until the next stream's end."""
    monkeypatch.setattr(kept_streams, "KEPT_SECONDS", 0)
    streams = KeptStreams()
    streams.begin("a", "running")
    await end(streams.begin("a", "over"))
    monkeypatch.setattr("time.time", lambda: 0.0)
    for _ in range(9):
        await asyncio.sleep(0)
    assert not streams.find("a", "over")
    assert streams.find("a", "running")


async def test_the_end_of_a_stopped_stream_does_not_forget_the_next_one(monkeypatch):
    monkeypatch.setattr(kept_streams, "KEPT_SECONDS", 0)
    streams = KeptStreams()
    stopped = streams.begin("a", "x")
    following = streams.begin("a", "x")
    await end(stopped)
    for _ in range(9):
        await asyncio.sleep(0)
    assert streams.find("a", "x") is following


async def test_the_tenant_whose_streams_take_most_loses_its_oldest(monkeypatch):
    """Short ones count too: they are objects as well."""
    monkeypatch.setattr(kept_streams, "MAX_STREAM_BYTES", 10 * PIECE_BYTES)
    streams = KeptStreams()
    await end(streams.begin("quiet", "0"), b"short")
    for number in range(4):
        await end(streams.begin("loud", str(number)), bytes(3 * PIECE_BYTES))
    assert streams.find("quiet", "0")
    assert [bool(streams.find("loud", str(n))) for n in range(4)] == [False, True, True, True]
    with pytest.raises(RequestError, match=r"X-Conversation-Id holds 257 .* at most 256"):
        streams.begin("loud", "x" * 257)  # names do not count


async def test_a_stream_looks_at_no_other_that_is_kept(monkeypatch):
    """2 ms for each of 4,096 in the web process' loop."""
    streams, looks = KeptStreams(), list[KeptStream]()

    def held_bytes(one: KeptStream) -> int:
        looks.append(one)
        return PIECE_BYTES

    monkeypatch.setattr(KeptStream, "held_bytes", property(held_bytes))
    for number in range(50):
        looks.clear()
        await end(streams.begin("a", str(number % 40)), b"x")
        assert len(looks) <= 2


async def test_a_lookup_looks_at_each_stream_once():
    """Not once for each conversation: the web process' loop waits."""
    streams, looks = KeptStreams(), list[str]()

    class Name(str):
        def __eq__(self, other):
            looks.append(self)
            return str(self) == other

        def startswith(self, *prefixes):
            looks.append(self)
            return super().startswith(*prefixes)

        __hash__ = str.__hash__

    streams.begin("other", "c1")
    own = [streams.begin("a", Name(name)) for name in ("c1", "c2", "c1::model", "c1::b::model")]
    looks.clear()
    found = streams.of_conversations("a", ["c2", "c1", *map(str, range(200))])
    assert set(found) == set(own)
    assert streams.of_conversations("a", ["c1::b"]) == own[3:]
    assert len(looks) < 10
