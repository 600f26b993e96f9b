"""The router that started this server, if one did: hears how it is doing, and takes it along when
it ends.

Both hold one end of a pair of sockets. Ours has lines of JSON for the router; its end closes when
the router ends, however it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import MutableMapping
from typing import Any

VARIABLE = "HEADSTART_ROUTER"  # number of the open socket


class Parent:
    """Our end; without a router everything here does nothing."""

    def __init__(self, connection: socket.socket | None = None) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> Parent:
        """What the environment names, which is taken from it: it means this process alone."""
        number = environment.pop(VARIABLE, "")
        if not number.isdigit():
            return cls()
        connection = socket.socket(fileno=int(number))
        connection.set_inheritable(False)
        return cls(connection)

    @property
    def is_there(self) -> bool:
        return self._connection is not None

    def tell(self, state: str, **more: Any) -> None:
        """Say how this server is doing."""
        if self._connection is None:
            return
        line = json.dumps({"state": state, **more}).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):  # it ended: `follow` sees that
            self._connection.sendall(line)

    def follow(self) -> None:
        """End as after SIGTERM when the router ends."""
        if self._connection is not None:
            threading.Thread(target=self._wait, name="headstart-router", daemon=True).start()

    def _wait(self) -> None:
        assert self._connection is not None
        with contextlib.suppress(OSError):
            while self._connection.recv(4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
