"""Client for measurements: streamed conversations over OpenAI's API, with arrival times.

Also starts and stops servers. Plain `http.client`: on few cores the client's processor time is
taken from the server's.
"""

from __future__ import annotations

import ctypes
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise, repeat
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import orjson

from headstart.extras.bench.library import Question
from headstart.types.errors import HeadstartError

HEADSTART = (sys.executable, "-m", "headstart")
TENANT_HEADER = "x-bench-tenant"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one turn. Times in seconds of the monotonic clock."""

    text: str
    sent: float
    arrivals: Sequence[float]  # of the pieces of text
    num_tokens: int
    timings: Mapping[str, Any] = field(default_factory=dict)  # as the server reports them

    @property
    def first_seconds(self) -> float:
        """Until the first piece."""
        return self.arrivals[0] - self.sent

    @property
    def longest_wait(self) -> float:
        """Seconds between two pieces; 0 with fewer."""
        return max((after - before for before, after in pairwise(self.arrivals)), default=0.0)


@dataclass(frozen=True, slots=True)
class Client:
    """A server to ask, and the fields of every request."""

    url: str
    key: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    pid: int = 0  # of its process, if `running` started it

    def ask_all(
        self,
        questions: Sequence[Question],
        *,
        users: int = 0,
        tenants: Iterable[str] = repeat(""),
        rate: float = 0.0,
        **fields: Any,
    ) -> list[Answer]:
        """Ask all questions, one connection each; the turns of a question one after the other.

        Args:
            users: questions at the same time; 0: all.
            tenants: by question, whose texts the server may draft from; a server of ours keeps
                them apart.
            rate: questions a second, which then come one by one at random times.
            fields: of every request; seeds count up from the one that is given.

        Raises:
            HeadstartError: the server cannot be reached, or refuses.
        """
        random, after, waits = Random(len(questions)), 0.0, []
        for _ in questions:
            waits.append(after)
            after += random.expovariate(rate) if rate else 0.0
        seed = fields.pop("seed", 0)
        with ThreadPoolExecutor(len(questions) if rate else users or len(questions)) as pool:
            bodies = [{**fields, **self.fields, "seed": seed + i} for i in range(len(questions))]
            done = pool.map(self._ask, questions, bodies, waits, tenants)
            return [answer for answers in done for answer in answers]

    def lines(
        self, path: str, body: Mapping[str, Any] | None = None, tenant: str = ""
    ) -> Iterator[bytes]:
        """Lines of an answer as they arrive; a POST if there is a body.

        Raises:
            HeadstartError: the server answered with an error.
            OSError, http.client.HTTPException: it cannot be reached.
        """
        place = urlsplit(self.url)
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        if place.scheme not in kinds or not place.hostname:
            raise HeadstartError(
                f"{self.url!r} is no address of a server; write http://127.0.0.1:8080"
            )
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        headers |= {TENANT_HEADER: tenant} if tenant else {}
        with closing(kinds[place.scheme](place.hostname, place.port, timeout=600.0)) as connection:
            data = None if body is None else orjson.dumps(body)
            connection.request("GET" if data is None else "POST", place.path + path, data, headers)
            response = connection.getresponse()
            if response.status != 200:
                text = response.read(500).decode("utf-8", "replace")
                raise HeadstartError(f"{self.url} answered {response.status}: {text}")
            yield from response

    def call(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON answer of a GET, or of a POST if there is a body; raises as `lines`."""
        return orjson.loads(b"".join(self.lines(path, body)))

    def get(self, path: str) -> Any:
        """The same, or None if the server has none."""
        with suppress(HeadstartError, OSError, http.client.HTTPException, orjson.JSONDecodeError):
            return self.call(path)
        return None

    def is_ready(self) -> bool:
        """Whether it answers, and Headstart's warm-up, which disturbs a measurement, is over."""
        with suppress(HeadstartError, OSError, http.client.HTTPException):
            list(self.lines("/health"))  # of other programs not always JSON
            return bool(self.control().get("is_warmed_up", True))
        return False

    def control(self) -> dict[str, Any]:
        """The state of Headstart's control; empty for other programs."""
        props = self.get("/props") or {}
        return dict(props.get("speculation", {}).get("control", {}))

    def counters(self) -> dict[str, float]:
        """Seconds in "target", "draft" and "other", and draft tokens by position ("drafted 0",
        "accepted 0"), since the server's start; empty for other programs.
        """
        counted: dict[str, float] = defaultdict(float)
        with suppress(HeadstartError, OSError, http.client.HTTPException):
            text = b"".join(self.lines("/metrics"))
            names = {b"step_seconds": "", b"draft_tokens_by_position": "drafted "}
            sample = (
                rb"(?m)^headstart_(step_seconds|draft_tokens(?:_accepted)?_by_position)_total"
                rb'\{.*?(?:part|position)="(\w+)"\} (\S+)$'
            )
            for kind, label, value in re.findall(sample, text):
                counted[names.get(kind, "accepted ") + label.decode()] += float(value)
        return counted

    def _ask(
        self, question: Question, body: dict[str, Any], wait: float, tenant: str
    ) -> list[Answer]:
        time.sleep(wait)
        body["max_tokens"] = min(body["max_tokens"], question.max_tokens)
        body.update(question.body)
        if question.is_raw:
            body = {"prompt": question.turns[0], **body} if question.turns else body
            return [self.stream("/v1/completions", body, tenant)]
        messages: list[Mapping[str, Any]] = []
        answers = []
        for turn in question.turns or ((),):
            messages += [{"role": "user", "content": turn}] if isinstance(turn, str) else turn
            asked = {"messages": messages, **body}
            answers.append(self.stream("/v1/chat/completions", asked, tenant))
            messages.append({"role": "assistant", "content": answers[-1].text})
        return answers

    def stream(self, path: str, body: Mapping[str, Any], tenant: str = "") -> Answer:
        """Ask for one answer as a stream, the prompt as the path wants it.

        Raises:
            HeadstartError: the server cannot be reached, or refuses.
        """
        asked = {"model": "default", **body, "stream": True}
        asked["stream_options"] = {"include_usage": True}
        pieces: list[str] = []
        arrivals: list[float] = []
        last: dict[str, Any] = {}
        sent = time.monotonic()
        try:
            for line in self.lines(path, asked, tenant):
                if not line.startswith(b"data: {"):
                    continue
                event = orjson.loads(line[6:])
                last |= {name: event[name] for name in ("usage", "timings") if event.get(name)}
                if text := _text(event):
                    arrivals.append(time.monotonic())
                    pieces.append(text)
        except (OSError, http.client.HTTPException, orjson.JSONDecodeError) as error:
            raise HeadstartError(f"{self.url}{path} cannot be read: {error}") from error
        num_tokens = last.get("usage", {}).get("completion_tokens", len(pieces))
        end = arrivals or [time.monotonic()]
        return Answer("".join(pieces), sent, end, num_tokens, last.get("timings", {}))


def _text(event: Mapping[str, Any]) -> str:
    """The text that an event adds to the answer, including reasoning and tool calls."""
    for choice in event.get("choices", ()):
        delta = choice.get("delta", choice)
        calls = [call.get("function", {}) for call in delta.get("tool_calls") or ()]
        called = "".join((c.get("name") or "") + (c.get("arguments") or "") for c in calls)
        thought = delta.get("reasoning_content") or ""
        return thought + (delta.get("content") or delta.get("text") or "") + called
    return ""


@contextmanager
def running(
    command: Sequence[str],
    log: Path,
    key: str = "",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Client]:
    """Run a server with `--port` appended; yields a client with this API key once it is ready, and
    stops it. On Linux it also stops if this process is killed.

    Raises:
        HeadstartError: it ended, or did not get ready in time.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            # no prompt that an earlier server read, unless --cache-disk is in the command
            env={**(environment or os.environ), "HEADSTART_CACHE_DISK": "0"},
            preexec_fn=_end_with_parent,
        )
    client = Client(f"http://127.0.0.1:{port}", key, pid=process.pid)
    deadline = time.monotonic() + 600.0
    try:
        while not client.is_ready():
            if process.poll() is not None:
                rest = log.read_text(errors="replace").strip().splitlines()[-3:]
                raise HeadstartError(
                    f"the server ended with exit code {process.returncode}: {' / '.join(rest)}"
                )
            if time.monotonic() > deadline:
                raise HeadstartError(f"the server was not ready after 600 s; see {log}")
            time.sleep(0.05)
        yield client
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG of <linux/prctl.h>
