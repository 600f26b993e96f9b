"""A worker is asked before libllama connects, which would end the process: all wrong answers."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headstart.config import EngineConfig
from headstart.config.engine import rpc_endpoints
from headstart.extras.rpc.backend import SILENT_SECONDS, notice_silence
from headstart.extras.rpc.handshake import VERSION, shake_hands, why_exposed
from headstart.types.errors import ConfigError, RpcWorkerError

Serve = Callable[[bytes], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server that answers one connection with these bytes, then closes it."""
    servers: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(answers: bytes) -> str:
        server = socket.create_server(("127.0.0.1", 0))

        def run() -> None:
            connection, _ = server.accept()
            with connection, suppress(ConnectionError):
                connection.sendall(answers)
                while connection.recv(4096):
                    pass

        servers.append(server)
        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield start
    for thread in threads:
        thread.join()
    for server in servers:
        server.close()


def framed(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def hello(version: tuple[int, int, int] = VERSION) -> bytes:
    return framed(bytes(version) + bytes(25))


def test_worker_tells_its_devices_and_their_memory(serve: Serve) -> None:
    answers = hello() + framed(struct.pack("<I", 2))
    answers += framed(struct.pack("<QQ", 3 * 2**30, 4 * 2**30)) + framed(struct.pack("<QQ", 5, 6))
    assert "2 devices (3.0 GiB free, 0.0 GiB free)" in shake_hands(serve(answers))


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (hello((VERSION[0] + 1, 0, 0)), r"speaks version 8\.0\.0 of the protocol .*install the"),
        (hello((VERSION[0], VERSION[1], 9)), r"speaks version 7\.0\.9"),  # other operations
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4, "does not speak llama.cpp's RPC protocol"),
        (framed(bytes(3)), "does not speak llama.cpp's RPC protocol, or another version of it"),
        (hello() + framed(struct.pack("<I", 0)), "has no device; start it with --device"),
        (b"", "takes connections but does not answer; it serves one engine at a time"),
        (hello()[:20], "takes connections but does not answer"),
    ],
)
def test_wrong_answer_is_told_with_a_remedy(serve: Serve, answers: bytes, words: str) -> None:
    with pytest.raises(RpcWorkerError, match=words):
        shake_hands(serve(answers), seconds=0.3)


def test_worker_that_slowly_says_nothing_useful_ends_in_time() -> None:
    """The time is for all of the handshake, not for each byte."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, suppress(ConnectionError):
                connection.sendall(hello()[:8])  # the size; 28 bytes of another version follow
                while True:
                    connection.sendall(b"\x1c")
                    time.sleep(0.05)

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        with pytest.raises(RpcWorkerError, match="takes connections but does not answer"):
            shake_hands(f"127.0.0.1:{server.getsockname()[1]}", seconds=0.2)
        thread.join()


def test_worker_that_resets_the_connection_is_told_with_a_remedy(monkeypatch) -> None:
    """A BrokenPipeError would end the engine without a word: its server would be gone."""
    connect = socket.create_connection
    with socket.create_server(("127.0.0.1", 0)) as server:

        def connected_and_reset(*arguments: Any) -> socket.socket:
            connection = connect(*arguments)
            far, _ = server.accept()
            with far:
                far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return connection

        monkeypatch.setattr(socket, "create_connection", connected_and_reset)
        with pytest.raises(RpcWorkerError, match=r"broke off: .*; see its log"):
            shake_hands(f"127.0.0.1:{server.getsockname()[1]}")


def test_unreachable_worker_is_told_with_a_remedy() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(RpcWorkerError, match=rf"refused; start .* --port {port}"):
            shake_hands(f"127.0.0.1:{port}")
    with pytest.raises(RpcWorkerError, match="cannot be reached"):
        shake_hands("no-such-host.invalid:50052")


@pytest.mark.parametrize(
    "text", ["host", ":50052", "host:", "host:x", "host:70000", "[::1]:1", "a:1,a:1", "a:1,,b:2"]
)
def test_endpoints_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--rpc"):
        EngineConfig(rpc=text)


def test_endpoints_are_hosts_and_ports() -> None:
    assert rpc_endpoints("10.0.0.2:50052, b:1") == [("10.0.0.2", 50052), ("b", 1)]
    with pytest.raises(ConfigError, match="at most 16"):
        rpc_endpoints(",".join(f"h{n}:1" for n in range(17)))


def test_remote_devices_and_reference_kernels_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="--exact"):
        EngineConfig(rpc="a:1", exact=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3", "192.168.0.9", "172.16.4.4"])
def test_loopback_and_private_networks_need_no_warning(host: str) -> None:
    assert why_exposed(host) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "8.8.8.8"])
def test_elsewhere_a_warning_says_why(host: str) -> None:
    assert "neither authentication nor encryption" in (why_exposed(host) or "")


KEEPALIVE = (socket.SOL_SOCKET, socket.SO_KEEPALIVE)

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="finds its sockets in /proc"
)


def test_connections_of_this_process_break_when_nothing_is_heard() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def is_ours(sock: socket.socket) -> bool:
            return bool(sock.getsockname()[1] == port)

        assert notice_silence(is_ours) == 1  # as a worker does, before anybody connects
        with socket.create_connection(("127.0.0.1", port)) as near:
            far, _ = server.accept()
            with far:
                assert far.getsockopt(*KEEPALIVE)  # taken over from the one that listens
                timeout = far.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert timeout == 1000 * SILENT_SECONDS
            assert not near.getsockopt(*KEEPALIVE)  # not asked for
            assert near.fileno() >= 0
