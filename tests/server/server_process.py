"""A server as a process, with its engine in another, for tests that talk to it over HTTP."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import httpx2

ROOT = Path(__file__).parents[2]


class Server:
    """A running server and what it printed; stopped at the end of a `with` block."""

    def __init__(self, arguments: Sequence[str], cache: Path, command: str = "serve") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headstart", command, "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(cache),
            start_new_session=True,
        )
        self.lines: list[str] = []
        self.url = ""
        self._found = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        if not self._found.wait(60) or not self.url:
            self.stop()
            raise AssertionError("the server did not start:\n" + "".join(self.lines))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(r"listens on (http://\S+?)\.? ", line):
                self.url = found[1]
                self._found.set()
        self._found.set()

    def engine_pid(self) -> int:
        """The child that runs the engine."""
        for child in (
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ):
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        raise AssertionError("there is no engine process")

    def client(self, **headers: str) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=60, trust_env=False, headers=headers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdout is not None
        if not self.process.stdout.closed:
            self.stop()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # whatever a failed test left
            self.process.wait()
            self._reader.join()
            assert self.process.stdout is not None
            self.process.stdout.close()


def environment(cache: Path) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "HEADSTART_CACHE": str(cache),
        "PYTHONUNBUFFERED": "1",
    }


def until(condition: Callable[[], bool], what: str) -> None:
    """Ask again and again; the asking itself takes time."""
    for _ in range(3000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"never happened: {what}")
