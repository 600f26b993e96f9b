"""A client that leaves frees its slot, whatever its request was doing; silence is filled with
pings.
"""

from __future__ import annotations

import json
import socket
from urllib.parse import urlsplit

import pytest
from tests.server.fake_worker import HOLD, FakeWorker, say
from tests.server.serving import serving

from headstart.config import ServerConfig
from headstart.types.errors import EngineError
from headstart.types.request import ProgressEvent


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
