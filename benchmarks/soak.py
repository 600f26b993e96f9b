"""A server under mixed traffic for as long as you like: tenants, constraints, slot files, kills.

    python -m benchmarks.soak [MINUTES] [--kills-per-minute 0.2] [--clients 4] [serve flags ...]

Clients of two tenants ask, stream, chat, constrain their answers, save and restore slots, store
responses, fill contexts, ask for what cannot be, leave in the middle and do not read. A third
tenant is greedy: many prompts at once, without end, constraints that take long, files under ever
new names. Some requests are known: greedy, with `--exact`, so that whole answers must be
equal to the first one. A watchdog in the engine (`lib/watched.py`) sees what holds up its loop.

A row at times: calls, answers by class, answers that changed, requests lost without a kill that
explains it, memory and open files of both processes, and the longest that /health and a single
request of the polite tenants took. The exit code is 1 if anything is lost, changed or stuck, or had
the loop's processor for longer than a step may wait, which is printed with its stack, more often
than the machine explains.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.lib.processes import children, megabytes, read
from benchmarks.lib.watched import page_seconds, tell_stalls

from headstart.extras.bench.client import Client, running
from headstart.extras.bench.report import table_head, table_row

CONTEXT = 2048
POLITE, GREEDY = ("alice", "bob"), "mallory"  # tenants, by their keys
CLASSES = ("2xx", "4xx", "429", "503", "500", "other 5xx")
WATCHED = (*CLASSES, "lost", "changed", "left")
PROMPTS = [f"def f{i}(data):\n    total = {i}\n    for item in data:\n" for i in range(8)]
NAME = {"type": "string", "maxLength": 8}
SLOW_SCHEMA = {"allOf": [{"multipleOf": n} for n in (97, 89, 83)] + [{"type": "integer"}]}


def engine_of(pid: int) -> int:
    """The child of a server that runs the engine; 0 if there is none now."""
    engines = (child for child in children(pid) if "spawn_main" in read(child, "cmdline"))
    return next(engines, 0)


@dataclass(slots=True)
class Record:
    """What happened, counted by all clients."""

    counts: Counter[str] = field(default_factory=Counter)
    known: dict[str, str] = field(default_factory=dict)  # body of a repeatable request -> its text
    kills: list[float] = field(default_factory=list)  # when; monotonic seconds
    slowest: float = 0.0  # seconds of a single request of a polite tenant, since the last row
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def compare(self, body: str, text: str) -> None:
        with self.lock:
            if self.known.setdefault(body, text) != text:
                self.counts["changed"] += 1
                print(f"changed: {body}: {text!r}", file=sys.stderr, flush=True)

    def lose(self, since: float, what: str) -> None:
        """A request that began then did not end as it should, and this is what was seen of it."""
        # a request may be sent to an engine whose end nobody has noticed yet
        was_killed = "SIGKILL" in what or any(since - 1 <= kill for kill in self.kills)
        self.add("lost to a kill" if was_killed else "lost")
        if not was_killed:
            print(f"lost: {what}", file=sys.stderr, flush=True)


class User(threading.Thread):
    """One client after another, until it is told to stop."""

    def __init__(
        self, server: Client, record: Record, key: str, seed: int, stop: threading.Event
    ) -> None:
        super().__init__(daemon=True)
        self._server, self._record, self._key, self._ending = server, record, key, stop
        self._random = random.Random(seed)

    def run(self) -> None:
        kinds = self._kinds()
        while not self._ending.is_set():
            began = time.monotonic()
            try:
                self._random.choice(kinds)()
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._record.lose(began, repr(error))
                self._ending.wait(0.2)
            self._ending.wait(0.1)

    def _kinds(self) -> Sequence[Callable[[], None]]:
        if self._key == GREEDY:
            return [self._flood] * 2 + [self._compile, self._save_new, self._store, self._fill]
        return (
            [self._repeat] * 6 + [self._chat] * 2 + [self._leave, self._fill, self._wrong]
            + [self._count, self._unread, self._slot, self._slot, self._constrain, self._constrain]
            + [self._store]
        )  # fmt: skip

    def _open(
        self, path: str, body: dict[str, Any]
    ) -> tuple[http.client.HTTPResponse, http.client.HTTPConnection]:
        connection = http.client.HTTPConnection(urlsplit(self._server.url).netloc, timeout=300)
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        return connection.getresponse(), connection

    def _post(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        began = time.monotonic()
        response, connection = self._open(path, body)
        try:
            data = response.read()
        finally:
            connection.close()
        status = response.status
        self._record.add("calls")
        kind = f"{status // 100}xx" if status < 429 else str(status)
        self._record.add(kind if kind in CLASSES else "other 5xx")
        if status == 500 and b"while this request was running" not in data:
            self._record.lose(began, f"{path}: {data[:300]!r}")
        if self._key != GREEDY:
            with self._record.lock:
                self._record.slowest = max(self._record.slowest, time.monotonic() - began)
                if status in (429, 503) and not self._record.kills:
                    self._record.counts["polite refused"] += 1
        return status, data

    def _repeat(self) -> None:
        """A request whose answer is known, streamed or not."""
        body: dict[str, Any] = {
            "prompt": self._random.choice(PROMPTS),
            "max_tokens": self._random.choice((8, 32, 64)),
            "temperature": 0,
        }
        began = time.monotonic()
        if self._random.random() < 0.5:
            status, data = self._post("/completion", body)
            if status == 200:
                self._record.compare(json.dumps(body), json.loads(data)["content"])
            return
        status, data = self._post("/completion", body | {"stream": True})
        if status != 200:
            return
        lines = [line[6:] for line in data.splitlines() if line.startswith(b"data: ")]
        chunks = [json.loads(line) for line in lines]
        if chunks and chunks[-1].get("stop"):
            text = "".join(chunk["content"] for chunk in chunks)
            self._record.compare(json.dumps(body), text)
        else:
            self._record.lose(began, f"a stream of {len(chunks)} pieces; the last: {lines[-1:]}")

    def _chat(self) -> None:
        question = f"Repeat `{self._random.randrange(1000)}`."
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 24}
        self._post("/v1/chat/completions", body)

    def _constrain(self) -> None:
        """An answer that must satisfy a schema, mostly one that nobody has asked for."""
        name = f"n{self._random.randrange(300)}"
        schema: dict[str, Any] = {"type": "object", "required": ["name", name]}
        schema["properties"] = {"name": NAME, name: {"type": "integer"}}
        body = {"prompt": "JSON:", "json_schema": schema, "max_tokens": 60, "temperature": 0}
        status, data = self._post("/completion", body)
        if status == 200:
            self._record.compare(json.dumps(body), json.loads(data)["content"])

    def _slot(self) -> None:
        """Save or restore a slot under one of few names; busy ones are refused."""
        slot, name = self._random.randrange(4), f"kept{self._random.randrange(3)}"
        action = self._random.choice(("save", "restore"))
        self._post(f"/slots/{slot}?action={action}", {"filename": name})

    def _store(self) -> None:
        body = {"input": "x" * self._random.randrange(2000), "max_output_tokens": 8}
        status, data = self._post("/v1/responses", body)
        if status == 200 and self._random.random() < 0.5:
            answered = json.loads(data)["id"]
            self._post("/v1/responses", body | {"previous_response_id": answered})

    def _leave(self) -> None:
        body = {"prompt": self._random.choice(PROMPTS), "max_tokens": 500, "stream": True}
        response, connection = self._open("/completion", body)
        response.read1(200)
        connection.close()
        self._record.add("left")

    def _fill(self) -> None:
        words = " ".join(f"word{self._random.randrange(999)}" for _ in range(CONTEXT // 5))
        self._post("/completion", {"prompt": words, "max_tokens": 16})

    def _wrong(self) -> None:
        wrong = ({"max_tokens": -7}, {"samplers": "?"}, {"n_probs": 10**9}, {"prompt": "a" * 10**6})
        self._post("/completion", {"prompt": "a", "n_predict": 8} | self._random.choice(wrong))

    def _count(self) -> None:
        self._post("/tokenize", {"content": self._random.choice(PROMPTS) * 50})

    def _unread(self) -> None:
        """Ask for much, read nothing, go."""
        body = {"prompt": "a", "max_tokens": 400, "stream": True, "n_probs": 20}
        _, connection = self._open("/completion", body)
        self._ending.wait(3)
        connection.close()
        self._record.add("left")

    def _flood(self) -> None:
        """Some hundred endless answers at once; leave while most of them wait."""
        body = {"prompt": [f"{i} {self._random.random()}" for i in range(100)], "stream": True}
        body |= {"max_tokens": 2000, "ignore_eos": True}
        response, connection = self._open("/v1/completions", body)
        self._record.add("flood")
        self._ending.wait(self._random.uniform(1, 20))
        connection.close()
        if response.status != 200:
            self._record.add(str(response.status))

    def _compile(self) -> None:
        schema = {**SLOW_SCHEMA, "title": str(self._random.random())}
        self._post("/completion", {"prompt": "x", "n_predict": 1, "json_schema": schema})

    def _save_new(self) -> None:
        name = f"new{self._random.randrange(10**9)}"
        self._post(f"/slots/{self._random.randrange(4)}?action=save", {"filename": name})


class Killer(threading.Thread):
    """Kills the engine at random, and never while it starts."""

    def __init__(self, server: Client, record: Record, rate: float, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._server, self._record, self._rate, self._ending = server, record, rate, stop

    def run(self) -> None:
        chance = random.Random(1)
        while not self._ending.wait(chance.expovariate(self._rate / 60.0)):
            if self._server.get("/health") and (pid := engine_of(self._server.pid)):
                with suppress(OSError):
                    self._record.kills.append(time.monotonic())
                    os.kill(pid, signal.SIGKILL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run for so many minutes and print a row now and then."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("minutes", nargs="?", type=float, default=2.0)
    parser.add_argument("--kills-per-minute", type=float, default=0.2)
    parser.add_argument("--clients", type=int, default=4, help="of the polite tenants together")
    parser.add_argument("--row-minutes", type=float, default=1.0)
    options, flags = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name), Path(tempfile.gettempdir(), "soak.log")
        (folder / "slots").mkdir()
        command = [sys.executable, "-m", "benchmarks.lib.watched", "serve", "--exact"]
        # bounded, so that what grows beside the prompts in main memory is seen
        command += ["--context", str(CONTEXT), "--threads", "1", "--cache-ram", "256", *flags]
        command += ["--api-key", ",".join((*POLITE, GREEDY)), "--tenant-slot-files-mb", "20"]
        command += ["--slot-save-path", str(folder / "slots")]
        environment = os.environ | {"HEADSTART_CACHE": name}
        with running(command, log, POLITE[0], environment) as client:
            code = _soak(client, options)
    return tell_stalls(log.read_text(errors="replace"), page_seconds()) or code


def _soak(server: Client, options: argparse.Namespace) -> int:
    record, stop = Record(), threading.Event()
    keys = [POLITE[i % len(POLITE)] for i in range(options.clients)] + [GREEDY] * 2
    users = [User(server, record, key, seed, stop) for seed, key in enumerate(keys)]
    threads: list[threading.Thread] = list(users)
    if options.kills_per_minute > 0:
        threads.append(Killer(server, record, options.kills_per_minute, stop))
    for thread in threads:
        thread.start()
    columns = ["minute", "calls", *WATCHED, "lost to a kill", "kills", "server MB", "engine MB"]
    columns += ["files", "/health ms", "polite s"]
    print(table_head(*columns))
    begun, end = time.monotonic(), time.monotonic() + 60 * options.minutes
    while (now := time.monotonic()) < end:
        slowest, until = 0.0, min(now + 60 * options.row_minutes, end)
        while time.monotonic() < until:
            began = time.monotonic()
            server.get("/health")
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.25)
        print(_row(server, record, time.monotonic() - begun, slowest), flush=True)
    stop.set()
    for user in users:
        user.join(300)
    stuck, hanging = _stuck(server), sum(user.is_alive() for user in users)
    print(f"\nstuck slots: {stuck}; clients that hang: {hanging}")
    print(f"polite requests refused before the first kill: {record.counts['polite refused']}")
    bad = sum(record.counts[name] for name in ("lost", "changed", "other 5xx")) + stuck + hanging
    return 1 if bad else 0


def _stuck(server: Client) -> int:
    """Slots that are busy though nobody asks any more."""
    busy = -1
    for _ in range(100):
        slots = server.get("/slots")
        busy = -1 if slots is None else sum(slot["is_processing"] for slot in slots)
        if not busy:
            return 0
        time.sleep(0.5)
    return busy


def _row(server: Client, record: Record, seconds: float, health: float) -> str:
    with record.lock:
        counts, slowest = dict(record.counts), record.slowest
        record.slowest = 0.0
    return table_row(
        f"{seconds / 60:.0f}",
        *(counts.get(name, 0) for name in ("calls", *WATCHED, "lost to a kill")),
        len(record.kills),
        *map(megabytes, (server.pid, engine_of(server.pid))),
        _open_files(server.pid),
        f"{1000 * health:.0f}",
        f"{slowest:.1f}",
    )


def _open_files(pid: int) -> str:
    with suppress(OSError):
        return str(len(os.listdir(f"/proc/{pid}/fd")))
    return "-"


if __name__ == "__main__":
    sys.exit(main())
