"""One model over several machines: `serve --rpc` and `rpc-worker` as processes, on loopback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.server_process import Server, environment, until

from headstart.engine.library import api
from headstart.extras.rpc.backend import plugin_file
from headstart.extras.rpc.build import build
from headstart.types.errors import ConfigError

FLAGS = ("--context", "2048", "--threads", "1", "--no-repack", "-np", "2")
GREEDY: dict[str, Any] = {"prompt": "def add(a, b):\n", "max_tokens": 24, "temperature": 0}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    prepare(folder)
    return folder


@pytest.fixture(scope="module")
def worker(cache: Path) -> Iterator[RpcWorker]:
    running = RpcWorker(cache)
    yield running
    running.kill()


@pytest.fixture(scope="module")
def server(cache: Path, worker: RpcWorker) -> Iterator[Server]:
    with Server([*FLAGS, "--rpc", worker.endpoint], cache) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx2.Client]:
    with server.client() as client:
        until(lambda: client.get("/health").status_code == 200, "the server is ready")
        yield client


def test_layers_are_computed_by_the_worker(server: Server, client: httpx2.Client) -> None:
    answer = client.post("/v1/completions", json=GREEDY).json()
    assert answer["usage"]["completion_tokens"] == 24
    (memory,) = [line for line in server.lines if "memory: " in line]
    assert " of RPC0 (" in memory
    # and the output layer here: its logits are more than all else that crosses the network
    assert "weights 0 MiB" not in memory.partition("main memory")[2]


def test_worker_that_is_killed_ends_its_requests_and_comes_back(client, worker) -> None:
    before = client.post("/v1/completions", json=GREEDY).json()["choices"][0]["text"]
    body = {**GREEDY, "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        worker.kill()
        data = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "SIGABRT while this request was running" in data[-1]["error"]["message"]

    def health() -> str:
        return client.get("/health").text

    until(lambda: f"RPC worker {worker.endpoint} cannot be reached" in health(), "health says why")
    assert client.post("/v1/completions", json=GREEDY).status_code == 503
    worker.start()
    until(lambda: client.get("/health").status_code == 200, "the engine is ready again")
    after = client.post("/v1/completions", json=GREEDY).json()["choices"][0]["text"]
    assert after == before


def test_second_engine_is_told_that_the_worker_is_busy(client, cache, worker) -> None:
    done = _devices(worker.endpoint, cache)
    assert done.returncode == 1
    assert "serves one engine at a time" in done.stderr
    assert client.post("/v1/completions", json=GREEDY).status_code == 200


def test_worker_that_cannot_be_reached_stops_the_start(cache: Path, worker: RpcWorker) -> None:
    flags = ["serve", "--port", "0", "--rpc", "127.0.0.1:1"]
    done = _headstart(flags, cache)
    assert done.returncode == 1
    assert "RPC worker 127.0.0.1:1 cannot be reached: Connection refused; start" in done.stderr


def test_port_of_another_worker_is_refused(cache: Path, worker: RpcWorker) -> None:
    done = _headstart(["rpc-worker", "--port", str(worker.port)], cache)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{worker.port}" in done.stderr


def test_devices_of_a_worker_are_listed(cache: Path) -> None:
    other = RpcWorker(cache)
    try:
        done = _devices(other.endpoint, cache)
    finally:
        other.kill()
    (row,) = [line for line in done.stdout.splitlines() if "RPC0" in line]
    assert row.split()[1:3] == ["GPU", other.endpoint]


def test_speculation_does_not_change_the_text(cache: Path) -> None:
    """Greedy, on texts whose next token is clear: exact mode is refused with workers."""
    texts: dict[str, list[list[int]]] = {}
    for spec in ("off", "auto"):
        worker = RpcWorker(cache)
        flags = [*FLAGS, "--spec", spec, "--spec-state", "none"]
        try:
            with (
                Server([*flags, "--rpc", worker.endpoint], cache) as server,
                server.client() as client,
            ):
                until(lambda: client.get("/health").status_code == 200, "the server is ready")
                texts[spec], num_drafted = _equality_texts(client)
        finally:
            worker.kill()
        assert (num_drafted > 0) == (spec == "auto")
    assert texts["auto"] == texts["off"]


def _equality_texts(client: httpx2.Client) -> tuple[list[list[int]], int]:
    """The tokens of every answer, and how many tokens were drafted."""
    code = "def add(first, second):\n    return first + second\n\n"

    def ask(number: int) -> dict[str, Any]:
        body = {
            "prompt": code * (2 + number),
            "n_predict": 32,
            "temperature": 0,
            "return_tokens": True,
            "ignore_eos": True,
        }
        response = client.post("/completion", json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    answers = [ask(number) for number in range(2)]
    drafted = sum(answer["timings"].get("draft_n", 0) for answer in answers)
    return [answer["tokens"] for answer in answers], drafted


def _devices(endpoint: str, cache: Path) -> subprocess.CompletedProcess[str]:
    return _headstart(["devices", "--rpc", endpoint], cache)


def _headstart(arguments: list[str], cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headstart", *arguments],
        capture_output=True,
        text=True,
        env=environment(cache),
        timeout=60,
    )


COMMAND = (sys.executable, "-m", "headstart", "rpc-worker")
SOURCE = "LLAMA_CPP_SOURCE"
# where `headstart rpc-build` puts the plug-in; the tests themselves have a cache of their own
OWN_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def prepare(cache: Path) -> None:
    """Put the RPC backend where `headstart` looks for it, or skip."""
    if api.llama_supports_rpc():
        return
    built = plugin_file(OWN_CACHE / "headstart/rpc")
    if built.exists():
        (cache / "rpc").mkdir(parents=True, exist_ok=True)
        shutil.copy(built, cache / "rpc")
    elif source := os.environ.get(SOURCE):
        try:
            build(Path(source), cache / "rpc")
        except ConfigError as error:
            pytest.skip(f"the RPC plug-in cannot be built: {error}")
    else:
        pytest.skip(f"no RPC backend: run `headstart rpc-build`, or set {SOURCE}")


class RpcWorker:
    """A worker on loopback; `start` again after `kill` has the same port."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.start()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.log = (self.cache / f"worker-{self.port}.log").open("w")
        self.process = subprocess.Popen(
            [*COMMAND, "--port", str(self.port), "--threads", "1"],
            stdout=self.log,
            stderr=subprocess.STDOUT,
            env=environment(self.cache),
        )
        for _ in range(600):
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            if self.process.poll() is not None:
                break
            threading.Event().wait(0.05)
        raise AssertionError(f"the worker does not listen: {Path(self.log.name).read_text()}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()
