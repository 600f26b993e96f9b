"""Asks servers as users do: conversations over OpenAI's API, streamed, with the times of tokens.

Starts servers too, and stops them.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from headstart.extras.bench.library import Question
from headstart.types.errors import HeadstartError

START_SECONDS, ANSWER_SECONDS = 600.0, 600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one turn. Times in seconds of the monotonic clock."""

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
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return max((after - before for before, after in pairs), default=0.0)


@dataclass(frozen=True, slots=True)
class Client:
    """Where to ask, and what every request says."""

    url: str
    key: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)

    def ask_all(self, questions: Sequence[Question], **fields: Any) -> list[Answer]:
        """All at once, a connection each; the turns of a question one after the other.

        Raises:
            HeadstartError: the server cannot be reached, or refuses.
        """
        with ThreadPoolExecutor(len(questions)) as pool:
            bodies = [{**fields, **self.fields, "seed": seed} for seed in range(len(questions))]
            done = pool.map(self._ask, questions, bodies)
            return [answer for answers in done for answer in answers]

    def _ask(self, question: Question, body: dict[str, Any]) -> list[Answer]:
        body["max_tokens"] = min(body["max_tokens"], question.max_tokens)
        if question.body is not None:
            path = "/v1/completions" if question.is_raw else "/v1/chat/completions"
            return [self._stream(path, {**body, **question.body})]
        if question.is_raw:
            return [self._stream("/v1/completions", {**body, "prompt": question.turns[0]})]
        messages: list[dict[str, str]] = []
        answers = []
        for turn in question.turns:
            messages.append({"role": "user", "content": turn})
            answers.append(self._stream("/v1/chat/completions", {**body, "messages": messages}))
            messages.append({"role": "assistant", "content": answers[-1].text})
        return answers

    def _stream(self, path: str, body: Mapping[str, Any]) -> Answer:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        asked = {"model": "default", **body, "stream": True}
        asked["stream_options"] = {"include_usage": True}
        pieces: list[str] = []
        arrivals: list[float] = []
        last: dict[str, Any] = {}
        sent = time.monotonic()
        try:
            with httpx2.stream(
                "POST", self.url + path, json=asked, headers=headers, timeout=ANSWER_SECONDS
            ) as response:
                if response.status_code != 200:
                    text = response.read()[:500].decode("utf-8", "replace")
                    raise HeadstartError(f"{self.url} answered {response.status_code}: {text}")
                for line in response.iter_lines():
                    if not line.startswith("data: {"):
                        continue
                    event = json.loads(line[6:])
                    last |= {name: event[name] for name in ("usage", "timings") if event.get(name)}
                    if text := _text(event):
                        arrivals.append(time.monotonic())
                        pieces.append(text)
        except (httpx2.HTTPError, json.JSONDecodeError) as error:
            raise HeadstartError(f"{self.url}{path} cannot be read: {error}") from error
        num_tokens = last.get("usage", {}).get("completion_tokens", len(pieces))
        end = arrivals or [time.monotonic()]
        return Answer("".join(pieces), sent, end, num_tokens, last.get("timings", {}))


def _text(event: Mapping[str, Any]) -> str:
    """What an event adds to the answer, reasoning included."""
    for choice in event.get("choices", ()):
        delta = choice.get("delta", choice)
        return (delta.get("reasoning_content") or "") + (
            delta.get("content") or delta.get("text") or ""
        )
    return ""


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[str]:
    """Run a server with `--port` appended; yields its address once it is healthy, and stops it.

    If it is Headstart, its warm-up is over: it would disturb what is measured meanwhile.

    Raises:
        HeadstartError: it ended, or did not get ready in time.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port)], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        _wait(process, url, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            rest = log.read_text(errors="replace").strip().splitlines()[-3:]
            raise HeadstartError(
                f"the server ended with exit code {process.returncode}: {' / '.join(rest)}"
            )
        with suppress(httpx2.HTTPError):
            if httpx2.get(f"{url}/health", timeout=5.0).status_code == 200 and _is_warm(url):
                return
        time.sleep(0.2)
    raise HeadstartError(f"the server was not ready after {START_SECONDS:g} s; see {log}")


def _is_warm(url: str) -> bool:
    """Whether it times no decodes any more; true for servers that never do."""
    props = httpx2.get(f"{url}/props", timeout=5.0)
    if props.status_code != 200:
        return True
    control = props.json().get("speculation", {}).get("control", {})
    return bool(control.get("is_warmed_up", True))
