"""Streams that go on without their client, and are resumed."""

from __future__ import annotations

import json
import time

import pytest
from tests.server.fake_worker import HOLD, FakeWorker, say
from tests.server.serving import serving
from tests.server.test_wrong_input import error_of

from headstart.server.kept_streams import MAX_STREAMS, KeptStreams

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


def text_of(stream):
    lines = [line for line in stream.split("\n\n") if line.startswith("data: {")]
    deltas = [json.loads(line.removeprefix("data: "))["choices"] for line in lines]
    return "".join(one[0]["delta"].get("content") or "" for one in deltas if one)


def test_a_stream_goes_on_without_its_client_and_is_resumed_from_any_byte(client, worker):
    name = "a/b::c"
    with client.stream("POST", CHAT, json=BODY, headers={"X-Conversation-Id": name}) as response:
        first = next(response.iter_bytes())
    worker.go_on()
    whole = resume(client, name).content
    assert whole.startswith(first)
    assert (text_of(whole.decode()), whole.endswith(b"data: [DONE]\n\n")) == ("one two three", True)
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


def test_a_request_that_fails_leaves_no_stream_and_wrong_questions_are_named(client):
    bad = client.post(CHAT, json=BODY | {"top_k": "x"}, headers={"X-Conversation-Id": "bad"})
    assert bad.status_code == 400
    error_of(resume(client, "bad"), 404, "not_found_error")
    assert "conv_id" in error_of(client.get("/v1/stream"), 400)
    client.post(CHAT, json=BODY, headers={"X-Conversation-Id": "n"})
    assert "number of bytes" in error_of(resume(client, "n", "x"), 400)


async def test_streams_belong_to_their_tenant_and_few_that_are_over_are_kept():
    streams = KeptStreams()

    async def chunks(number):
        for _ in range(number):
            yield b"x" * (1 << 20)

    long = streams.begin("a", "long", "")
    long.write(chunks(5))
    assert b"".join([chunk async for chunk in long.read(1 << 20)])[-4:] == b"xxxx"
    assert (long.num_bytes, long.num_dropped) == (5 << 20, 1 << 20)
    assert streams.find("b", "long") is None
    streams.stop("b", "long")
    for number in range(MAX_STREAMS + 9):
        streams.begin("a", str(number), "").stop()
    assert streams.find("a", "long") is None
    assert sum(streams.find("a", str(n)) is not None for n in range(999)) == MAX_STREAMS + 1
    old = streams.find("a", "70")
    assert old
    old.completed_at = int(time.time()) - 301
    streams.begin("c", "new", "")
    assert streams.find("a", "70") is None
