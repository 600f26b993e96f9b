"""Servers as users run them: start one, stream completions from it, stop it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.types.errors import HeadstartError

START_SECONDS, ANSWER_SECONDS = 120.0, 600.0
HEADSTART = (sys.executable, "-m", "headstart")


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed completion. Times in seconds of the monotonic clock."""

    tokens: tuple[int, ...]
    first: float  # arrival of the first token
    last: float
    timings: Mapping[str, Any]  # as the server reports them
    sent: float = 0.0
    arrivals: tuple[float, ...] = ()  # of each token


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[int]:
    """Run a server as `started` does; yields the port. If it is Headstart, its warm-up is over:
    it would disturb the servers that are measured meanwhile.
    """
    with started(command, log) as (_, port):
        _wait_for_warm_up(port)
        yield port


@contextmanager
def started(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a server with `--port` appended; yields its process and port once it is healthy, stops it
    at the end.

    Raises:
        HeadstartError: it ended or did not get ready in time.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    try:
        _wait(process, port, log)
        yield process, port
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_warm_up(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/props", timeout=5) as response:
            control = json.load(response).get("speculation", {}).get("control", {})
        if control.get("is_warmed_up", True):
            return
        time.sleep(0.1)
    raise HeadstartError(f"the warm-up takes more than {START_SECONDS:g} s")


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise HeadstartError(f"the server ended with exit code {process.returncode}; see {log}")
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.2)
    raise HeadstartError(f"the server was not ready after {START_SECONDS:g} s; see {log}")


def cpu_seconds(pid: int) -> list[float]:
    """Processor time of a process and of its children; empty where there is no /proc."""
    seconds = []
    with suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for one in (str(pid), *children):
            fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
            seconds.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return seconds


def post(port: int, path: str, body: Mapping[str, Any]) -> Iterator[bytes]:
    """Send a request; yields the lines of the answer as they arrive.

    Raises:
        HeadstartError: the server answered with an error.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    with closing(connection):
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise HeadstartError(f"the server answered {response.status}: {response.read(500)!r}")
        yield from response


def complete(port: int, body: Mapping[str, Any]) -> Answer:
    """Stream one completion from the native endpoint.

    Raises:
        HeadstartError: the server answered with an error.
    """
    sent = time.monotonic()
    tokens: list[int] = []
    arrivals: list[float] = []
    timings: Mapping[str, Any] = {}
    first = last = 0.0
    for line in post(port, "/completion", {**body, "stream": True, "return_tokens": True}):
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if event.get("tokens") and not event.get("stop"):
            last = time.monotonic()
            first = first or last
            tokens += event["tokens"]
            arrivals += [last] * len(event["tokens"])
        timings = event.get("timings", timings)
    return Answer(tuple(tokens), first, last, timings, sent, tuple(arrivals))


def complete_all(port: int, bodies: Sequence[Mapping[str, Any]]) -> list[Answer]:
    """Stream all at once, one connection each."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: complete(port, body), bodies))
