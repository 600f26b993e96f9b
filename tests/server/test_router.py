"""Several models behind one server: real processes, the demo model under two names."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from tests.server.server_process import Server, until

from headstart.app import demo

TARGET = demo.path(demo.TARGET)
PRESET = f"""
version = 1
[*]
c = 2048
np = 1
spec = off
[one]
model = {TARGET}
[two]
model = {TARGET}
alias = zwei
[broken]
model = {__file__}
[sleepy]
model = {TARGET}
sleep-idle-seconds = 1
"""
BODY = {"prompt": "def f(x):", "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("router")
    (folder / "models.ini").write_text(PRESET)
    (folder / "hub").mkdir()
    flags = ["--models-preset", str(folder / "models.ini"), "--models-max", "3"]
    before, os.environ["LLAMA_CACHE"] = os.environ.get("LLAMA_CACHE"), str(folder / "hub")
    try:
        running = Server(flags, folder)
    finally:
        os.environ.pop("LLAMA_CACHE") if before is None else os.environ.update(LLAMA_CACHE=before)
    yield running
    assert running.stop() == 0
    assert processes_of(running) == []


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx2.Client]:
    with server.client() as client:
        yield client


def processes_of(server: Server, word: str = "") -> list[int]:
    """Children of the router that run, those with `word` in their command line."""
    try:
        path = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        pids = [int(pid) for pid in path.read_text().split()]
        return [pid for pid in pids if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
    except FileNotFoundError:
        return []


def status_of(client: httpx2.Client, name: str) -> dict:
    listed = client.get("/models").json()["data"]
    return next(one["status"] for one in listed if one["id"] == name)


def ask(client: httpx2.Client, model: str, **more) -> httpx2.Response:
    return client.post("/v1/completions", json=BODY | {"model": model} | more)


def test_two_models_answer_under_their_names(client: httpx2.Client) -> None:
    texts = set()
    for name, asked in (("one", "one"), ("two", "zwei")):
        answer = ask(client, asked)
        assert (answer.status_code, answer.json()["model"]) == (200, name)
        texts.add(answer.json()["choices"][0]["text"])
        assert status_of(client, name)["value"] == "loaded"
    assert len(texts) == 1, "the same file under both names"
    props = client.get("/props", params={"model": "two"}).json()
    assert (props["model_alias"], props["total_slots"]) == ("two", 1)


def test_a_loaded_model_is_listed_with_what_it_says_of_itself(client: httpx2.Client) -> None:
    assert ask(client, "one").status_code == 200

    def listed() -> dict:
        return next(m for m in client.get("/v1/models").json()["data"] if m["id"] == "one")

    until(lambda: "meta" in listed(), "what the model says of itself")
    assert listed()["meta"]["n_ctx"] == 2048
    assert listed()["needs"]["main memory"] > 300 * 2**20


def test_the_router_never_loads_libllama(server: Server, client: httpx2.Client) -> None:
    assert ask(client, "one").status_code == 200
    loaded = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "libllama" not in loaded
    assert "libggml" not in loaded


def test_a_model_that_is_no_model_says_why(client: httpx2.Client) -> None:
    answer = ask(client, "broken")
    assert answer.status_code == 502
    assert "broken could not be loaded" in answer.json()["error"]["message"]
    status = status_of(client, "broken")
    assert (status["failed"], status["exit_code"]) == (True, 1)


def test_a_childs_own_port_wants_the_routers_key(server: Server, client: httpx2.Client) -> None:
    assert ask(client, "one").status_code == 200
    child = processes_of(server, "--alias=one")[0]
    assert "HEADSTART_API_KEY" not in Path(f"/proc/{child}/cmdline").read_text()
    inodes = {
        line.split()[9]: int(line.split()[1].split(":")[1], 16)
        for line in Path(f"/proc/{child}/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    }
    sockets = {os.readlink(f) for f in Path(f"/proc/{child}/fd").iterdir() if f.exists() or True}
    port = next(port for inode, port in inodes.items() if f"socket:[{inode}]" in sockets)
    direct = httpx2.post(f"http://127.0.0.1:{port}/v1/completions", json=BODY, trust_env=False)
    assert direct.status_code == 401


def test_killing_a_child_ends_its_requests_only_and_each_says_so(server, client) -> None:
    for name in ("one", "two"):
        assert ask(client, name).status_code == 200
    other: list[bytes] = []

    def stream_other() -> None:
        body = BODY | {"model": "two", "max_tokens": 200, "stream": True, "ignore_eos": True}
        other.append(httpx2.post(f"{server.url}/v1/completions", json=body, timeout=60).content)

    body = BODY | {"model": "one", "max_tokens": 1900, "stream": True, "ignore_eos": True}
    with client.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("data: ")
        thread = threading.Thread(target=stream_other)
        thread.start()
        os.kill(processes_of(server, "--alias=one")[0], signal.SIGKILL)
        events = [line for line in lines if line.startswith("data: ")]
    thread.join()
    error = json.loads(events[-1][6:])["error"]
    assert (error["code"], error["message"]) == (502, "one broke off its answer")
    assert other[0].endswith(b"data: [DONE]\n\n")
    assert b'"error"' not in other[0]
    until(lambda: status_of(client, "one")["value"] == "unloaded", "the end of the child")
    assert ask(client, "one").status_code == 200, "it is loaded again"


def test_models_are_unloaded_with_all_their_processes(server: Server, client: httpx2.Client):
    assert ask(client, "two").status_code == 200
    assert processes_of(server, "--alias=two")
    assert client.post("/models/unload", json={"model": "two"}).json() == {"success": True}
    until(lambda: status_of(client, "two")["value"] == "unloaded", "the end of the model")
    assert not processes_of(server, "--alias=two")
    assert "failed" not in status_of(client, "two")


def test_what_a_model_has_read_comes_back_with_it(client: httpx2.Client) -> None:
    prompt = "def add(first, second):\n    return first + second\n\n" * 4
    first = ask(client, "one", prompt=prompt)
    client.post("/models/unload", json={"model": "one"})
    again = ask(client, "one", prompt=prompt)
    assert again.json()["choices"] == first.json()["choices"]
    assert again.json()["timings"]["prompt_n"] == 1


def test_a_model_that_sleeps_is_listed_so_and_wakes(client: httpx2.Client) -> None:
    assert ask(client, "sleepy").status_code == 200
    until(lambda: status_of(client, "sleepy")["value"] == "sleeping", "sleep")
    assert client.get("/props?model=sleepy").json()["is_sleeping"] is True
    assert status_of(client, "sleepy")["value"] == "sleeping", "asking does not wake it"
    assert ask(client, "sleepy").status_code == 200
    assert status_of(client, "sleepy")["value"] == "loaded"


def test_a_router_that_is_killed_takes_its_models_along(tmp_path: Path) -> None:
    (tmp_path / "models.ini").write_text(PRESET.replace("[one]", "[one]\nload-on-startup = 1"))
    with Server(["--models-preset", str(tmp_path / "models.ini")], tmp_path) as server:
        until(lambda: bool(processes_of(server, "--alias=one")), "the start of the model")
        child = processes_of(server, "--alias=one")[0]
        os.kill(server.process.pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{child}/cmdline").exists(), "the end of the model")
