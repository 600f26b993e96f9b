"""What somebody without a key can take: little memory, little time, and nobody else's place."""

from __future__ import annotations

import gc
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from starlette.requests import Request as HttpRequest
from tests.planted import noted
from tests.server.fake_worker import HOLD, INFO, FakeWorker, hello, say
from tests.server.server_process import until
from tests.server.serving import serving

from headstart.config import ServerConfig
from headstart.server import body as body_module
from headstart.server import connections, guard
from headstart.server.connections import MAX_HEAD_BYTES, affordable
from headstart.types.report import EmbeddingInfo
from headstart.types.request import EmbeddingEvent, ReplyEvent


@contextmanager
def connected(client):
    url = client.base_url
    with socket.create_connection((url.host, url.port), timeout=60) as connection:
        yield connection


def answer_of(connection) -> bytes:
    """All that comes until the server closes."""
    parts = []
    while True:
        try:
            part = connection.recv(1 << 16)
        except ConnectionError:
            part = b""
        if not part:
            return b"".join(parts)
        parts.append(part)


def push(connection, data: bytes) -> None:
    with suppress(ConnectionError):  # refused on the way
        connection.sendall(data)


def post(body: bytes, path: str = "/completion") -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    return head % (path.encode(), len(body)) + body


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nX: " + b"a" * (8 << 20),
        b"GET /health HTTP/1.1\r\n" + b"X: aaaaaaaa\r\n" * 500_000,
        b"GET /" + b"a" * (8 << 20),
        b"POST /completion HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"1\r\na\r\n0\r\nX: " + b"a" * (8 << 20),
        b"POST /completion HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"1;" + b"a" * (8 << 20),
    ],
    ids=["one header", "many headers", "path", "trailer", "chunk extension"],
)
def test_a_head_without_end_is_refused_early(client, head):
    with connected(client) as connection:
        push(connection, head)
        answer = answer_of(connection)
        assert b" 408 " not in answer  # its time was not over
        assert client.get("/health").status_code == 200


def test_what_stands_behind_a_body_is_no_header():
    """A proxy in front has removed it from the head."""
    with serving(config=ServerConfig(api_key="a")) as client, connected(client) as connection:
        push(
            connection,
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nAuthorization: Bearer a\r\n\r\n",
        )
        assert answer_of(connection).startswith(b"HTTP/1.1 401")


def test_a_head_that_came_at_once_has_the_same_limit(client):
    for size, status in ((MAX_HEAD_BYTES // 2, b"200"), (MAX_HEAD_BYTES + 1, b"431")):
        with connected(client) as connection:
            head = b"GET /health HTTP/1.1\r\nConnection: close\r\nX: %b\r\n\r\n" % (b"a" * size)
            push(connection, head)
            answer = answer_of(connection)
            assert answer.startswith(b"HTTP/1.1 " + status) or (status == b"431" and not answer)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(connections, "PAUSE_SECONDS", 0.3)
    with serving() as client:
        yield client


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b""),
        (b"GET /hea", b"408"),
        (b"POST /completion HTTP/1.1\r\nHost: localhost\r\n", b"408"),
        (b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n{", b"408"),
    ],
    ids=["silent", "half a line", "half a head", "half a body"],
)
def test_who_stops_in_the_middle_is_disconnected(impatient, sent, status):
    with connected(impatient) as connection:
        push(connection, sent)
        answer = answer_of(connection)
        assert answer[9:12] == status


def test_timeout_shortens_the_other_limits():
    body = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n{"
    with (
        serving(config=ServerConfig(timeout=1)) as client,
        connected(client) as first,
        connected(client) as second,
    ):
        push(first, b"GET /hea")
        push(second, body)
        for connection in (first, second):
            answer = answer_of(connection)
            assert answer[9:12] == b"408"
            assert b" 1 seconds" in answer


def test_a_client_that_does_not_read_is_disconnected(monkeypatch):
    monkeypatch.setattr(connections, "PAUSE_SECONDS", 0.3)
    worker = FakeWorker(lambda request: [*say(request, *[b"x" * 4096] * 100)[:-1], HOLD])
    with serving(worker) as client, connected(client) as connection:
        body = b'{"prompt": "a", "stream": true, "n_probs": 1}'
        push(connection, post(body))
        assert worker.cancelled.get(timeout=60)


def test_silent_connections_do_not_take_the_places_of_others():
    def ask(connection):
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            part = connection.recv(1 << 16)
            assert part
            answer += part
        assert b"200 OK" in answer

    with (
        serving(config=ServerConfig(max_connections=8)) as client,
        connected(client) as waiting,  # for its user's next request
        ExitStack() as silent,
    ):
        ask(waiting)
        for _ in range(40):
            silent.enter_context(connected(client))
        for _ in range(5):
            assert client.get("/health").status_code == 200
        ask(waiting)


def test_when_all_connections_are_busy_the_next_is_told_so():
    worker = FakeWorker(lambda request: [HOLD])
    with serving(worker, config=ServerConfig(max_connections=3)) as client:
        request = post(b'{"prompt": "a"}')
        with ExitStack() as busy:
            for _ in range(3):  # one that has not asked yet would make room for the next
                push(busy.enter_context(connected(client)), request)
                worker.started.get(timeout=60)
            with connected(client) as connection:
                push(connection, request)
                answer = answer_of(connection)
                assert b"503" in answer
                assert b"\r\nretry-after: 1\r\n" in answer
        for _ in range(3):
            worker.cancelled.get(timeout=60)


def test_a_pipelined_request_ends_when_its_client_leaves(caplog):
    worker = FakeWorker(lambda request: [HOLD])
    with serving(worker) as client:
        request = post(b'{"prompt": "a", "stream": true}')
        with connected(client) as connection:
            push(connection, 3 * request)
            worker.started.get(timeout=60)
        worker.cancelled.get(timeout=60)
        assert client.get("/health").status_code == 200
    assert "Traceback" not in caplog.text
    assert worker.cancelled.empty()


def test_thousands_of_pipelined_requests_are_refused(client):
    with connected(client) as connection:
        push(connection, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5000)
        connection.shutdown(socket.SHUT_WR)
        answer = answer_of(connection)
        assert answer.count(b'"ok"') < 5000
        assert client.get("/health").status_code == 200


def test_the_start_tells_when_too_few_files_may_be_opened(monkeypatch, caplog):
    monkeypatch.setattr("headstart.structures.system.resource.setrlimit", lambda *_: None)
    monkeypatch.setattr("headstart.structures.system.resource.getrlimit", lambda _: (256, 256))
    config = ServerConfig(max_connections=1000)
    assert affordable(config, 1).max_connections == 192
    assert "ulimit -n" in caplog.text
    monkeypatch.setattr("headstart.structures.system.resource.getrlimit", lambda _: (70, 70))
    assert affordable(config, 1).max_connections == 16


@pytest.mark.parametrize("size", [1, 300_000])
def test_calls_that_were_given_up_at_once_are_not_read_before_others(monkeypatch, size):
    let_go, read = threading.Event(), noted(monkeypatch, body_module, "read_object")

    def script(request):
        let_go.wait(60)  # the event loop has something else to do, and they pile up
        return hello(request)

    with serving(worker := FakeWorker(script)) as client, connected(client) as first:
        push(first, post(b'{"prompt": "a"}'))
        worker.started.get(timeout=60)
        for _ in range(50):
            with connected(client) as connection:
                push(connection, post(b'{"prompt": "%b"}' % (b"a" * size)))
        let_go.set()
        assert client.get("/health").status_code == 200
        assert client.post("/tokenize", json={"content": "a"}).status_code == 200
    assert len(read) == 2
    assert len(worker.requests) == 1


def test_commands_are_obeyed_though_their_clients_left_at_once():
    worker = FakeWorker(lambda command: [ReplyEvent(command.request_id, "")])
    with serving(worker) as client:
        for _ in range(20):
            with connected(client) as connection:
                body = b'{"id": "chatcmpl-a", "action": "reasoning_end"}'
                push(connection, post(body, "/v1/chat/completions/control"))
        for _ in range(20):
            worker.started.get(timeout=60)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/show", b"{}", b"200"),
        ("/api/generate", b'{"model": "a"}', b"200"),  # loads it
        ("/lora-adapters", b"[]", b"200"),
        ("/v1/chat/completions/control", b"{}", b"400"),
    ],
)
def test_who_sends_no_more_is_answered_where_no_model_is_asked(client, path, body, status):
    with connected(client) as connection:
        push(connection, post(body, path))
        connection.shutdown(socket.SHUT_WR)
        assert answer_of(connection).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/embed"])
def test_vectors_that_are_ready_are_not_refused_because_many_are(path):
    def script(request):
        vectors = (np.ones((1, 1024), np.float32),)
        return [HOLD, EmbeddingEvent(request.request_id, vectors, 1, 0.0)]

    worker = FakeWorker(script)
    worker.info_when_ready = replace(INFO, embedding=EmbeddingInfo(1024, 64, "mean"))
    with serving(worker) as client, ExitStack() as stack:
        all_of_them = [stack.enter_context(connected(client)) for _ in range(150)]
        for connection in all_of_them:
            push(connection, post(b'{"input": "a"}', path))
            worker.started.get(timeout=60)
        worker.go_on()
        assert all(one.recv(12) == b"HTTP/1.1 200" for one in all_of_them)


@pytest.mark.parametrize(
    ("keys", "header", "number"),
    [(None, None, 8), ("a", None, 8), ("a,b", None, 4), ("a", "x-user", 4)],
)
def test_all_bodies_together_take_no_more_than_their_limit(monkeypatch, keys, header, number):
    # eight bodies then, four of one tenant where there may be others
    monkeypatch.setattr(guard, "MAX_BODY_BYTES", 0)
    worker = FakeWorker(lambda request: [HOLD])
    body = post(b'{"prompt": "a", "unknown": "%b"}' % (b"x" * 1_000_000))
    body = body.replace(b"Host", b"X-Api-Key: a\r\nHost", 1)
    config = ServerConfig(max_body_mb=1, api_key=keys, tenant_header=header)
    with serving(worker, config) as client, ExitStack() as busy:
        for _ in range(number):
            push(busy.enter_context(connected(client)), body)
            worker.started.get(timeout=60)
        with connected(client) as connection:
            push(connection, body)
            assert connection.recv(1000).startswith(b"HTTP/1.1 503")
        busy.close()
        for _ in range(number):
            worker.cancelled.get(timeout=60)
        with connected(client) as connection:
            push(connection, body)
            worker.started.get(timeout=60)


def test_a_kept_stream_whose_client_left_holds_no_body():
    body = post(b'{"prompt": "a", "stream": true, "unknown": "%b"}' % (b"x" * 1_000_000))
    body = body.replace(b"Host", b"X-Conversation-Id: c\r\nHost", 1)
    with serving(worker := FakeWorker(lambda request: [*hello(request)[:1], HOLD])) as client:
        with connected(client) as connection:
            push(connection, body)
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")

        def is_held():
            gc.collect()
            requests = [one for one in gc.get_objects() if isinstance(one, HttpRequest)]
            return any(len(getattr(one, "_body", b"")) > 1_000_000 for one in requests)

        until(lambda: not is_held(), "the body is given back")
        assert worker.cancelled.empty()


def test_slot_actions_whose_clients_left_before_their_turn_are_not_done(tmp_path):
    worker = FakeWorker(lambda action: [HOLD, ReplyEvent(action.request_id, (1, 2, 0.5))])
    with (
        serving(worker, ServerConfig(slot_save_path=str(tmp_path))) as client,
        connected(client) as first,
    ):
        save = post(b'{"filename": "a"}', "/slots/0?action=save")
        push(first, save)
        worker.started.get(timeout=60)
        for _ in range(20):
            with connected(client) as connection:
                push(connection, save)
                for _ in range(3):  # it comes so far that it waits for its turn
                    assert client.get("/health").status_code == 200
        for _ in range(3):
            assert client.get("/health").status_code == 200
        worker.go_on()
        assert client.post("/slots/0?action=erase").json() == {"id_slot": 0, "n_erased": 1}
    actions: Any = worker.requests
    assert [one.action for one in actions] == ["save", "erase"]
