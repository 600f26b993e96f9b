"""A server under mixed traffic for as long as you like, its engine killed now and then.

    python -m benchmarks.soak [MINUTES] [--kills-per-minute 0.5] [--clients 6] [serve flags ...]

Clients ask, stream, chat, fill contexts, ask for what cannot be, leave in the middle and do not
read. Some requests are known: greedy, with `--deterministic`, so that whole answers must be equal
to the first one. Every minute a row: calls, answers by class, streams that ended without their end,
answers that changed, memory and open files of both processes, the slowest /health. At the end no
slot may be busy. The exit code is 1 if anything is lost, changed or stuck that no kill explains.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONTEXT = 2048
WATCHED = ("2xx", "4xx", "503", "500", "other 5xx", "lost", "changed", "left", "unread")
PROMPTS = [f"def f{i}(data):\n    total = {i}\n    for item in data:\n" for i in range(8)]


@dataclass(slots=True)
class Server:
    """The running server and its two processes."""

    process: subprocess.Popen[bytes]
    port: int

    def engine(self) -> int | None:
        """The child that runs the engine, if there is one now."""
        with suppress(OSError):
            path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            for child in path.read_text().split():
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        return None

    def get(self, path: str, timeout: float = 30) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()


@dataclass(slots=True)
class Tally:
    """What happened, counted by all clients."""

    counts: Counter[str] = field(default_factory=Counter)
    known: dict[str, str] = field(default_factory=dict)  # body of a repeatable request -> its text
    kills: list[float] = field(default_factory=list)  # when; monotonic seconds
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def compare(self, body: str, text: str) -> None:
        with self.lock:
            if self.known.setdefault(body, text) != text:
                self.counts["changed"] += 1

    def lose(self, since: float, what: str) -> None:
        """A request that began then did not end as it should, and this is what was seen of it."""
        # a request may be sent to an engine whose end nobody has noticed yet
        was_killed = "SIGKILL" in what or any(since - 1 <= kill for kill in self.kills)
        self.add("lost to a kill" if was_killed else "lost")
        if not was_killed:
            print(f"lost: {what}", file=sys.stderr, flush=True)


class Client(threading.Thread):
    """One client after another, until it is told to stop."""

    def __init__(self, server: Server, tally: Tally, seed: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._server, self._tally, self._ending = server, tally, stop
        self._random = random.Random(seed)

    def run(self) -> None:
        kinds = (
            [self._repeat] * 6 + [self._chat] * 3 + [self._leave] * 2 + [self._fill, self._wrong]
            + [self._count, self._unread]
        )  # fmt: skip
        while not self._ending.is_set():
            started = time.monotonic()
            try:
                self._random.choice(kinds)()
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._tally.lose(started, repr(error))
                time.sleep(0.2)

    def _post(self, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=120)
        connection.request("POST", path, json.dumps(body))
        self._tally.add("calls")
        response = connection.getresponse()
        status = response.status
        kind = f"{status // 100}xx" if status < 500 else str(status)
        self._tally.add(kind if kind in WATCHED else "other 5xx")
        return response

    def _repeat(self) -> None:
        """A request whose answer is known, streamed or not."""
        body: dict[str, Any] = {
            "prompt": self._random.choice(PROMPTS),
            "max_tokens": self._random.choice((8, 32, 64)),
            "temperature": 0,
        }
        started = time.monotonic()
        if self._random.random() < 0.5:
            response = self._post("/completion", body)
            data = json.loads(response.read())
            if response.status == 200:
                self._tally.compare(json.dumps(body), data["content"])
            return
        response = self._post("/completion", body | {"stream": True})
        lines = [line[6:] for line in response.read().splitlines() if line.startswith(b"data: ")]
        if response.status != 200:
            return
        chunks = [json.loads(line) for line in lines]
        if chunks and chunks[-1].get("stop"):
            text = "".join(chunk["content"] for chunk in chunks)
            self._tally.compare(json.dumps(body), text)
        else:
            self._tally.lose(started, f"a stream of {len(chunks)} pieces; the last: {lines[-1:]}")

    def _chat(self) -> None:
        question = f"Repeat `{self._random.randrange(1000)}`."
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 24}
        json.loads(self._post("/v1/chat/completions", body).read())

    def _leave(self) -> None:
        body = {"prompt": self._random.choice(PROMPTS), "max_tokens": 500, "stream": True}
        response = self._post("/completion", body)
        response.read1(200)
        response.close()
        self._tally.add("left")

    def _fill(self) -> None:
        words = " ".join(f"word{self._random.randrange(999)}" for _ in range(CONTEXT // 5))
        json.loads(self._post("/completion", {"prompt": words, "max_tokens": 16}).read())

    def _wrong(self) -> None:
        wrong = ({"max_tokens": -7}, {"samplers": "?"}, {"n_probs": 10**9}, {"prompt": "a" * 10**6})
        json.loads(self._post("/completion", {"prompt": "a"} | self._random.choice(wrong)).read())

    def _count(self) -> None:
        json.loads(self._post("/tokenize", {"content": self._random.choice(PROMPTS) * 50}).read())

    def _unread(self) -> None:
        """Ask for much, read nothing, go."""
        body = {"prompt": "a", "max_tokens": 400, "stream": True, "n_probs": 20}
        data = json.dumps(body).encode()
        head = "POST /completion HTTP/1.1\r\nHost: localhost\r\n"
        address = ("127.0.0.1", self._server.port)
        with socket.create_connection(address, timeout=30) as connection:
            connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            self._ending.wait(3)
        self._tally.add("unread")


class Killer(threading.Thread):
    """Kills the engine at random, and never while it starts."""

    def __init__(self, server: Server, tally: Tally, rate: float, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._server, self._tally, self._rate, self._ending = server, tally, rate, stop

    def run(self) -> None:
        chance = random.Random(1)
        while not self._ending.wait(chance.expovariate(self._rate / 60.0)):
            with suppress(OSError, ValueError):
                if self._server.get("/health")[0] == 200 and (pid := self._server.engine()):
                    self._tally.kills.append(time.monotonic())
                    os.kill(pid, signal.SIGKILL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run for so many minutes and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("minutes", nargs="?", type=float, default=2.0)
    parser.add_argument("--kills-per-minute", type=float, default=0.5)
    parser.add_argument("--clients", type=int, default=6)
    options, flags = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        server = _start(flags, Path(folder))
        try:
            return _soak(server, options)
        finally:
            server.process.terminate()
            server.process.wait(60)


def _start(flags: Sequence[str], folder: Path) -> Server:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "headstart", "serve", "--port", str(port)]
    command += ["--deterministic", "--context", str(CONTEXT), "--threads", "1", *flags]
    environment = os.environ | {"HEADSTART_CACHE": str(folder)}
    with (Path(tempfile.gettempdir()) / "soak.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    server = Server(process, port)
    for _ in range(600):
        with suppress(OSError, ValueError):
            if server.get("/health")[0] == 200:
                return server
        time.sleep(0.2)
    raise SystemExit("the server did not start; see soak.log in the folder for temporary files")


def _soak(server: Server, options: argparse.Namespace) -> int:
    tally, stop = Tally(), threading.Event()
    clients = [Client(server, tally, seed, stop) for seed in range(options.clients)]
    threads: list[threading.Thread] = list(clients)
    if options.kills_per_minute > 0:
        threads.append(Killer(server, tally, options.kills_per_minute, stop))
    for thread in threads:
        thread.start()
    columns = ["minute", "calls", *WATCHED, "lost to a kill", "kills", "server MB", "engine MB"]
    print("| " + " | ".join([*columns, "files", "slowest /health ms"]) + " |")
    print("|" + " ---: |" * (len(columns) + 2))
    begun = time.monotonic()
    while (now := time.monotonic()) - begun < 60 * options.minutes:
        slowest, until = 0.0, min(now + 60, begun + 60 * options.minutes)
        while time.monotonic() < until:
            started = time.monotonic()
            with suppress(OSError, ValueError):
                server.get("/health")
            slowest = max(slowest, time.monotonic() - started)
            time.sleep(0.25)
        print(_row(server, tally, time.monotonic() - begun, slowest), flush=True)
    stop.set()
    for client in clients:
        client.join(150)
    stuck = _stuck(server)
    print(f"\nstuck slots: {stuck}; clients that hang: {sum(c.is_alive() for c in clients)}")
    bad = tally.counts["lost"] + tally.counts["changed"] + tally.counts["other 5xx"] + stuck
    return 1 if bad else 0


def _stuck(server: Server) -> int:
    """Slots that are busy though nobody asks any more."""
    busy = -1
    for _ in range(100):
        with suppress(OSError, ValueError, TypeError):
            status, slots = server.get("/slots")
            busy = sum(slot["is_processing"] for slot in slots) if status == 200 else -1
            if not busy:
                return 0
        time.sleep(0.5)
    return busy


def _row(server: Server, tally: Tally, seconds: float, slowest: float) -> str:
    with tally.lock:
        counts = dict(tally.counts)
    engine = server.engine()
    cells = [
        f"{seconds / 60:.0f}",
        *(str(counts.get(name, 0)) for name in ("calls", *WATCHED, "lost to a kill")),
        str(len(tally.kills)),
        _megabytes(server.process.pid),
        _megabytes(engine),
        _open_files(server.process.pid),
        f"{1000 * slowest:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def _megabytes(pid: int | None) -> str:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return str(int(line.split()[1]) // 1024)
    return "-"


def _open_files(pid: int) -> str:
    with suppress(OSError):
        return str(len(os.listdir(f"/proc/{pid}/fd")))
    return "-"


if __name__ == "__main__":
    sys.exit(main())
