"""Random and mutated requests over all paths: of a server with tools, a router, a load balancer.

    python -m benchmarks.fuzz [--requests 10000] [--first 0] [--seed 0] [--clients 12]
    python -m benchmarks.fuzz --seed 0 --first 123 --requests 1         # one of them again
    python -m benchmarks.fuzz --images --requests 5000            # damaged images

A request depends on its number and the seed alone, so that a million can be sent in slices. Paths
and fields come from /openapi.json. Each answer must come within a minute and be no 500 that
docs/errors.md does not name, and every error must have the body that is promised there; the same
greedy text must come before and after; memory of all processes is printed. The tools are those that
only read, because a random command line is not to be run on anybody's machine; nothing is
downloaded. The exit code is 1 if anything was found.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.lib.processes import children, megabytes
from benchmarks.lib.random_bodies import CONSTRAINTS, MARKER, image_body
from tests.images import projector

from headstart.app import demo
from headstart.extras.bench.client import HEADSTART, Client, running
from headstart.types.errors import HeadstartError

SECONDS = 60.0  # before a request counts as hanging
IDLE_SECONDS = 1.0  # before a connection is not used again
CONTEXT = 256
# the demo model is sure of each token behind it: other widths of decodes change none
SURE = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return"
DOCUMENTED = (501, 502, 503)  # of 5xx
# of 500: what the server was started without
MISSING = (b"input is not supported: ", b"unknown tool runtime", b"invalid ssh target",
           b"invalid container id", b"use a container that runs")  # fmt: skip
SHARES = {"server": 6, "router": 2, "balancer": 2}
TOOLS = ("read_file", "grep_search", "file_glob_search", "get_datetime", "no_such_tool")
# of the router and the balancer; not those that download, or stop all others
MORE_PATHS = {
    "router": [("GET", "/models"), ("POST", "/models/load"), ("POST", "/models/unload")],
    "balancer": [("GET", "/router/backends"), ("POST", "/router/resume")],
    "server": [
        ("GET", "/tools"), ("POST", "/tools"), ("GET", "/cors-proxy"), ("POST", "/cors-proxy"),
        ("GET", "/"), ("GET", "/nowhere"), ("POST", "/slots/0"), ("DELETE", "/v1/responses/x"),
        ("OPTIONS", "/completion"), ("PUT", "/completion"), ("HEAD", "/health"),
    ],
}  # fmt: skip
SEEDS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "a"}],
    "prompt": "def f(x):",
    "content": "a",
    "input": "a",
    "input_prefix": "a",
    "input_suffix": "b",
    "tokens": [97, 98],
    "options": {"num_predict": 2},
    "query": "a",
    "documents": ["a", "b"],
    "model": "one",
    "filename": "kept",
    "action": "save",
    "id": "one",
    "conversation_ids": ["one"],
}
JSON = {"Content-Type": "application/json", "Authorization": "Bearer key"}
NAMES = ("one", "two", "two::one", "x" * 3000, "")  # of conversations
SHORT = {"max_tokens": 2, "n_predict": 2, "max_completion_tokens": 2, "max_output_tokens": 2}
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 2**31, 2**63, 10**40, -(2**70), 1e308, 1e-308, float("nan"),
    float("inf"), 0.5, "", "a", "\x00", "😀", "\ud800", "a" * 3000, "\n", "-1", "none", "auto", [],
    {}, [[]], [1] * 500, ["a"] * 300, [{}] * 50, [None], {"a": 1}, {"type": "object"},
    {"type": "json_schema", "json_schema": {"schema": {"type": "string"}}}, [[1, 1.5]],
    {"type": "function", "function": {"name": "f", "parameters": {}}}, "root ::= [a-z]{3}",
    [{"role": "user", "content": [{"type": "text", "text": "b"}]}], [{"role": "tool"}],
)  # fmt: skip
HEADERS = (
    ("Content-Type", "text/plain"), ("Content-Type", "application/json; charset=latin-1"),
    ("Origin", "http://evil.example"), ("Origin", "null"), ("Sec-Fetch-Site", "cross-site"),
    ("Host", "evil.example"), ("X-Tool-Runtime", "docker:x y"), ("X-Tool-Runtime", "ssh:"),
    ("Authorization", "Bearer \xff"), ("Accept-Encoding", "gzip"), ("Connection", "close, x"),
    ("X-Api-Key", ""), ("X-Headstart", "1"), ("Range", "bytes=0-0"), ("Expect", "nothing"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sent:
    """One request."""

    method: str
    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...]


class Generator:
    """Makes requests from what the server says of its paths."""

    def __init__(self, document: dict[str, Any], seed: int, has_images: bool) -> None:
        self._seed, self._has_images = seed, has_images
        self._paths: list[tuple[str, str]] = []
        self._fields: dict[str, list[str]] = {}
        for path, methods in document["paths"].items():
            for method, described in methods.items():
                self._paths.append((method.upper(), path))
                if "requestBody" in described:
                    content = described["requestBody"]["content"]["application/json"]
                    name = content["schema"].get("$ref", "").rpartition("/")[2]
                    schema = document["components"]["schemas"].get(name, {})
                    self._fields[path] = sorted(schema.get("properties", {}))

    def make(self, number: int) -> tuple[str, Sent]:
        """The request of this number, and which program it is for."""
        chance = random.Random(f"{self._seed} {number}")
        if self._has_images:
            path, with_image = image_body(chance)
            data = _mutated(with_image, chance)
            return "server", Sent("POST", path, data, tuple(JSON.items()))
        target = chance.choices(list(SHARES), list(SHARES.values()))[0]
        more = MORE_PATHS[target]
        method, path = chance.choice(more if chance.random() < 0.1 else self._paths)
        if "{" in path:
            name = chance.choice(("0", "1", "-1", "x" * 40, "9" * 4400, "%00", "%2e%2e", "one"))
            path = path[: path.index("{")] + name
        if path.startswith("/slots/"):
            action = chance.choice(("save", "restore", "erase", "", "?"))
            path += f"?action={action}"
        elif path.startswith("/v1/stream"):
            path += f"?conv_id={quote(chance.choice(NAMES))}&from={chance.choice('09-x')}"
        elif path == "/cors-proxy":
            url = chance.choice(("http://127.0.0.1:9/", "ftp://x", "http://[", "%0d%0a", ""))
            path += f"?url={url}"
        elif chance.random() < 0.1:
            path += "?" + quote(str(chance.choice(VALUES))[:200], errors="replace") + "=1"
        if path.startswith(("/models/load", "/models/unload")):
            body: Any = {"model": chance.choice(("one", "two", 1))}
        else:
            body = self._body(path.partition("?")[0], chance)
        data = b"" if method in ("GET", "HEAD") else _mutated(body, chance)
        headers = JSON | {"X-Tenant": chance.choice("abc")}
        if chance.random() < 0.1:
            headers["X-Conversation-Id"] = chance.choice(NAMES)
        if chance.random() < 0.15:
            headers |= [chance.choice(HEADERS)]
        return target, Sent(method, path, data, tuple(headers.items()))

    def _body(self, path: str, chance: random.Random) -> Any:
        if path == "/tools":
            names = ("path", "pattern", "include", "start_line", "end_line", "context_lines")
            arguments = {name: chance.choice(VALUES) for name in chance.sample(names, 2)}
            arguments["path"] = chance.choice((".", "no/such", "/proc/self/maps", "\x00", 5))
            return {"tool": chance.choice(TOOLS), "params": arguments}
        fields = self._fields.get(path, [])
        body = {name: SEEDS[name] for name in fields if name in SEEDS}
        body |= {name: number for name, number in SHORT.items() if name in fields}
        chosen = chance.sample(fields, min(len(fields), chance.choice((0, 1, 1, 2, 4))))
        constraints = [name for name in CONSTRAINTS if name in fields]
        if constraints and chance.random() < 0.2:
            chosen.append(chance.choice(constraints))
        for name in chosen:
            make = CONSTRAINTS.get(name)
            body[name] = make(chance) if make and chance.random() < 0.7 else chance.choice(VALUES)
        return body


def _mutated(body: Any, chance: random.Random) -> bytes:
    """The body as JSON, one time in five damaged."""
    data = bytearray(json.dumps(body).encode())
    for _ in range(chance.choice((0, 0, 0, 0, 1, 1, 3))):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[place:place] = bytes([chance.randrange(256)])
            case 1:
                del data[place : place + chance.randrange(1, 9)]
            case 2:
                data[place:place] = data[place : place + chance.randrange(1, 60)]
            case _:
                data[place:] = b""
    return bytes(data)


class Run:
    """All requests of a slice, sent by several threads."""

    def __init__(
        self, generator: Generator, clients: Mapping[str, Client], first: int, last: int
    ) -> None:
        self._generator = generator
        self._ports = {name: int(one.url.rpartition(":")[2]) for name, one in clients.items()}
        self._numbers, self._last = count(first), last
        self._lock = threading.Lock()
        self.statuses: Counter[str] = Counter()
        self.found: list[str] = []

    def work(self) -> None:
        idle: dict[int, tuple[http.client.HTTPConnection, float]] = {}  # by port, and since when
        while (number := next(self._numbers)) < self._last:
            target, sent = self._generator.make(number)
            began = time.monotonic()
            try:
                status, words = self._send(self._ports[target], sent, idle)
            except (OSError, http.client.HTTPException) as error:
                status, words = "no answer", repr(error)
            seconds = time.monotonic() - began
            with self._lock:
                self.statuses[f"{target} {status}"] += 1
                if words or seconds > SECONDS:
                    line = (
                        f"{number} {target} {status} after {seconds:.1f} s: {words} {sent!r:.600}"
                    )
                    self.found.append(line)
                    print(line, file=sys.stderr, flush=True)

    def _send(
        self, port: int, sent: Sent, idle: dict[int, tuple[http.client.HTTPConnection, float]]
    ) -> tuple[str, str]:
        """The status, and what is wrong with the answer."""
        connection, since = idle.pop(port, (None, 0.0))
        if connection is None or time.monotonic() - since > IDLE_SECONDS:  # it may be closed soon
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        connection.request(sent.method, sent.path, sent.body or None, dict(sent.headers))
        response = connection.getresponse()
        is_stream = "event-stream" in response.headers.get("Content-Type", "")
        if is_stream and sent.method == "GET":  # without end
            data = response.read1(1000)
            connection.close()
        else:
            data = response.read()
            idle[port] = connection, time.monotonic()
        status = response.status
        if status < 400 or sent.method == "HEAD":
            return str(status), ""
        is_missing = status == 500 and any(words in data for words in MISSING)
        if status >= 500 and status not in DOCUMENTED and not is_missing:
            return str(status), f"undocumented: {data[:300]!r}"
        is_promised = _is_promised(sent.path, status, data)
        return str(status), "" if is_promised else f"not the promised body: {data[:300]!r}"


def _is_promised(path: str, status: int, data: bytes) -> bool:
    """Whether an error has the body of its API."""
    try:
        error = json.loads(data)["error"]
        if path.startswith("/api/") and isinstance(error, str):  # as Ollama
            return bool(error)
        is_right = path.startswith("/v1/messages") or error["code"] == status
        return bool(is_right and error["message"] and error["type"])
    except (ValueError, KeyError, TypeError):
        return False


def _text(client: Client) -> str:
    """A greedy answer."""
    body = {"prompt": SURE, "n_predict": 40, "temperature": 0, "model": "one"}
    try:
        return str(client.call("/completion", body)["content"])
    except HeadstartError as error:
        return str(error)


def _memory(pid: int) -> int:
    """MiB of a process and all below it."""
    return megabytes(pid) + sum(map(_memory, children(pid)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Send a slice and print what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--images", action="store_true", help="only requests with images")
    parser.add_argument("--slice", type=int, default=10_000, help="requests between two lines")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        clients = _start(Path(folder), stack, options.images)
        document = clients["server"].call("/openapi.json")
        texts = {target: _text(client) for target, client in clients.items()}
        found, sent, begun = 0, 0, time.monotonic()
        total: Counter[str] = Counter()
        while sent < options.requests:
            first = options.first + sent
            last = options.first + min(options.requests, sent + options.slice)
            run = Run(Generator(document, options.seed, options.images), clients, first, last)
            threads = [threading.Thread(target=run.work) for _ in range(options.clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            sent, found, total = last - options.first, found + len(run.found), total + run.statuses
            changed = [target for target in texts if _text(clients[target]) != texts[target]]
            found += len(changed)
            memory = ", ".join(f"{name} {_memory(one.pid)} MiB" for name, one in clients.items())
            print(
                f"{sent} sent in {time.monotonic() - begun:.0f} s, {found} found; "
                f"greedy texts {f'CHANGED: {changed}' if changed else 'the same'}; {memory}",
                flush=True,
            )
    print(", ".join(f"{status}: {number}" for status, number in sorted(total.items())))
    return 1 if found else 0


def _start(folder: Path, stack: ExitStack, has_images: bool) -> dict[str, Client]:
    """The three programs."""
    model, environment = demo.path(demo.TARGET), os.environ | {"HEADSTART_CACHE": str(folder)}
    environment["LLAMA_CACHE"] = str(folder)
    (folder / "models.ini").write_text(
        f"version = 1\n[*]\nc = {CONTEXT}\n[one]\nmodel = {model}\n[two]\nmodel = {model}\n"
    )
    quiet, keys = ["--log-level", "warning"], ["--api-key", "key", "--tenant-header", "X-Tenant"]
    common = [*quiet, *keys, "--threads", "1"]
    tools = ["--tools", ",".join(TOOLS[:3]), "--ui-mcp-proxy"]
    # bounded, so that what grows beside texts and prompts is seen
    bounds = ["--cache-ram", "16", "--spec-suffix-corpus-tokens", "20000"]
    bounds += ["--cache-disk", "64", "--tenant-responses-mb", "1", "--tenant-compile-seconds", "5"]
    slots = ["--slot-save-path", str(folder), "--tenant-slot-files-mb", "5"]
    kinds = {
        "server": ["serve", *common, "--context", str(CONTEXT), *tools, *slots, *bounds, "--props"],
        "router": ["serve", *quiet, *keys, "--models-preset", str(folder / "models.ini"), *tools],
    }
    if has_images:
        file = projector(folder / "mmproj.gguf", "janus_pro", 256, hears=True)
        kinds["server"] += ["--mmproj", str(file), "--embeddings"]
        environment["LLAMA_MEDIA_MARKER"] = MARKER
    clients: dict[str, Client] = {}
    for name in SHARES:
        flags = kinds.get(name) or ["router", "--backend", clients["server"].url]
        command = [*HEADSTART, *flags]
        log = Path(tempfile.gettempdir(), f"fuzz-{name}.log")
        clients[name] = stack.enter_context(running(command, log, "key", environment))
    return clients


if __name__ == "__main__":
    sys.exit(main())
