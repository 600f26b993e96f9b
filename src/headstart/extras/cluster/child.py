"""One Headstart server of a replica: a process tree that ends with the process that started it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import httpx2

from headstart.app.process import VARIABLE
from headstart.gateway.balancer.health import requests_of
from headstart.gateway.router.child import TENANT_HEADER
from headstart.structures.system import kill_group, own_group
from headstart.types.errors import ModelError


class ServerChild:
    """`headstart serve` on one address of this machine, with a key."""

    def __init__(self, arguments: Sequence[str], *, host: str, key: str) -> None:
        """Start the server; `wait` returns when it is ready."""
        self.url = ""
        self._failure = ""
        self._ready = threading.Event()
        self._ours, theirs = socket.socketpair()
        own = (f"--host={host}", "--port=0", f"--tenant-header={TENANT_HEADER}", "--no-page")
        number = theirs.fileno()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headstart", "serve", *arguments, *own],
                env=os.environ | {VARIABLE: str(number), "HEADSTART_API_KEY": key},
                stdin=subprocess.DEVNULL,
                **own_group(number),
            )
        self._client = httpx2.Client(
            headers={"Authorization": f"Bearer {key}"}, timeout=5, trust_env=False
        )
        threading.Thread(target=self._listen, name="headstart-child", daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._ours.makefile() as lines:
            for line in lines:
                state = json.loads(line)
                self.url = state.get("url", self.url)
                self._failure = state.get("message", "") if state["state"] == "failed" else ""
                if self.url:
                    self._ready.set()
        self._ready.set()

    def wait(self) -> None:
        """Wait until the server is ready.

        Raises:
            ModelError: it ended instead.
        """
        self._ready.wait()
        if not self.url:
            code = self._process.wait()
            raise ModelError(
                self._failure or f"headstart serve ended with exit code {code}; its log says why"
            )

    @property
    def pid(self) -> int:
        """Of the server, which leads a session of its own."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def counts(self) -> tuple[int, int]:
        """Requests that run, and that wait.

        Raises:
            httpx2.HTTPError: it does not answer.
        """
        return requests_of(self._client.get(f"{self.url}/metrics").raise_for_status().content)

    def is_healthy(self) -> bool:
        """Whether it takes requests."""
        with contextlib.suppress(httpx2.HTTPError):
            return self._client.get(f"{self.url}/health").status_code == 200
        return False

    def drain(self, seconds: float) -> None:
        """Wait until nothing runs there any more, no longer than this.

        Three looks in a row must show no request: reports of a server are up to 0.25 s old.
        """
        deadline, num_idle = time.monotonic() + seconds, 0
        while num_idle < 3 and time.monotonic() < deadline and self.is_running:
            with contextlib.suppress(httpx2.HTTPError):
                num_idle = num_idle + 1 if self.counts() == (0, 0) else 0
            time.sleep(0.3)

    def stop(self) -> None:
        """End it and what it started."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20.0)
        kill_group(self._process.pid)
        self._process.wait()
        self._ours.close()
        self._client.close()
