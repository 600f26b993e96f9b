"""Starting and failing to start."""

from __future__ import annotations

import signal
import socket
import threading

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tests.server.fake_worker import FakeWorker
from tests.server.serving import served_model

from headstart.config import ServerConfig
from headstart.server.listen import address_of, serve, take_port, uvicorn_config
from headstart.server.model import ServedModel
from headstart.types.errors import ConfigError, ModelError


def test_a_port_in_use_is_named_with_the_remedy():
    with take_port(ServerConfig(port=0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port}: .*in use.*; choose another --port"):
            serve(ServerConfig(port=port), FakeWorker(), served_model, print)


def test_an_address_that_is_not_ours_is_a_config_error():
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        take_port(ServerConfig(host="192.0.2.1"))


def test_sockets_name_their_protocol_so_that_tokens_are_sent_at_once():
    with take_port(ServerConfig(port=0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_the_address_is_a_url():
    with take_port(ServerConfig(port=0)) as listener:
        assert address_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_serving_ends_with_the_reason_when_the_model_cannot_be_loaded(caplog):
    before = signal.getsignal(signal.SIGTERM)
    worker, announced = FakeWorker(), []
    worker.start_error = ModelError("draft.gguf is truncated")
    with pytest.raises(ModelError, match="truncated"):
        serve(ServerConfig(port=0), worker, served_model, announced.append)
    assert worker.is_closed
    assert announced == []
    assert "truncated" not in caplog.text  # whoever gets the exception prints it
    assert signal.getsignal(signal.SIGTERM) is before  # children would inherit that it is ignored


def test_the_address_is_announced_once_requests_can_be_answered():
    worker, loaded, announced = FakeWorker(), [], []

    def load() -> ServedModel:
        loaded.append(worker.status)
        return served_model()

    def announce(url: str) -> None:
        announced.append((url, list(loaded)))
        signal.raise_signal(signal.SIGINT)

    # a shell's background job ignores it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            serve(ServerConfig(port=0), worker, load, announce)
    finally:
        signal.signal(signal.SIGINT, before)
    [(url, loaded_before)] = announced
    assert url.startswith("http://127.0.0.1:")
    assert loaded_before == ["ready"]


def test_headers_are_spelled_as_usual():
    listener = take_port(ServerConfig(port=0))
    app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("hello"))])
    server = uvicorn.Server(uvicorn_config(app, ServerConfig()))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    with socket.create_connection(listener.getsockname(), timeout=60) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    server.should_exit = True
    thread.join()
    assert b"\r\nContent-Type: text/plain" in answer
    assert b"\r\ncontent-length: 5\r\n" in answer
    assert answer.endswith(b"\r\n\r\nhello")
