"""A machine that goes without a word must not be waited for for ever."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headstart.extras.rpc.backend import SILENT_SECONDS, notice_silence

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
