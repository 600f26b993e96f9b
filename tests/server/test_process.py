"""The real thing: `headstart serve` as a process, with its engine in another, over HTTP."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.models import aborting, broken
from tests.server.server_process import Server, environment, until
from tests.server.serving import error_of, text_of

CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Repeat `abc`."}],
    "max_tokens": 16,
    "temperature": 0,
}
HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# other libraries do not ask for huge pages, and where the system always gives them, none needs to
ASKS = platform.libc_ver()[0] == "glibc" and HUGE.exists() and "[madvise]" in HUGE.read_text()
ENDLESS = {"prompt": "def f(x):\n", "max_tokens": 1500, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx2.Client]:
    with server.client() as client:
        yield client


def num_busy(client: httpx2.Client) -> int:
    return sum(slot["is_processing"] for slot in client.get("/slots").json())


def idle(client: httpx2.Client) -> bool:
    # /slots shows the last report, made at least every 0.25 s while requests run
    return num_busy(client) == 0


def test_a_chat_is_answered_and_streamed_alike(client: httpx2.Client) -> None:
    answer = client.post("/v1/chat/completions", json=CHAT).json()
    text = answer["choices"][0]["message"]["content"]
    assert text
    assert answer["usage"]["completion_tokens"] <= 16
    streamed = client.post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert streamed.text.rstrip().endswith("data: [DONE]")
    assert text_of(streamed) == text


def test_timings_and_the_log_line_tell_what_was_drafted(server: Server, client: httpx2.Client):
    body = ENDLESS | {
        "stream": False,
        "max_tokens": 64,
        "temperature": 0,
        "speculative": {"mode": "fixed", "n_max": 4},
    }
    timings = client.post("/completion", json=body).json()["timings"]
    assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]
    accepted, drafted = timings["draft_n_accepted"], timings["draft_n"]
    wanted = f"({accepted} accepted / {drafted} drafted), acceptance length = "
    until(lambda: any(wanted in line for line in server.lines), "the log line of the request")


def test_fifty_requests_on_four_slots_are_answered_as_one_at_a_time(client: httpx2.Client) -> None:
    def ask(number: int) -> str:
        body = {
            "prompt": f"def f{number % 7}(x, y):\n",
            "n_predict": 12,
            "seed": number,
            "temperature": 0.8,
        }
        response = client.post("/completion", json=body)
        assert response.status_code == 200
        return response.json()["content"]

    with ThreadPoolExecutor(50) as pool:
        together = list(pool.map(ask, range(50)))
    assert together == [ask(number) for number in range(50)]
    assert len(set(together)) > 10


def test_a_client_that_leaves_while_its_text_is_generated_frees_its_slot(server, client) -> None:
    url, payload, received = urlsplit(server.url), json.dumps(ENDLESS).encode(), b""
    with socket.create_connection((url.hostname, url.port), 30) as connection:
        head = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n\r\n"
        connection.sendall(head.encode() + payload)
        while b'"content"' not in received:
            received += connection.recv(4096)
    until(lambda: idle(client), "the slot of a client that left while generating is free")
    until(lambda: any(", cancelled, " in line for line in server.lines), "its line in the log")


def test_an_engine_that_aborts_fails_its_requests_and_is_restarted(server, client) -> None:
    before = client.post("/v1/chat/completions", json=CHAT).json()["choices"][0]["message"][
        "content"
    ]
    with ThreadPoolExecutor(2) as pool:
        plain = pool.submit(client.post, "/completion", json=ENDLESS | {"stream": False})
        streamed = pool.submit(client.post, "/completion", json=ENDLESS)
        until(lambda: num_busy(client) == 2, "both requests run")
        os.kill(server.engine_pid(), signal.SIGABRT)
        response = plain.result()
        assert "SIGABRT" in error_of(response, 500, "server_error")
        assert "restart" in response.json()["error"]["message"]
        assert "SIGABRT" in streamed.result().text.splitlines()[-2] + streamed.result().text
    until(lambda: client.get("/health").status_code == 200, "the engine is back")
    after = client.post("/v1/chat/completions", json=CHAT).json()["choices"][0]["message"][
        "content"
    ]
    assert after == before


def test_ctrl_c_while_the_engine_starts_ends_without_a_traceback(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "headstart", "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(tmp_path),
        start_new_session=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(children.read_text().split()) < 2:  # the engine, after the tracker of resources
        assert process.poll() is None
    # the engine is the last child; until it has all it needs, the server ignores Ctrl-C
    until(lambda: _catches(process.pid, signal.SIGINT), "Ctrl-C is taken again")
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert b"Traceback" not in out
    assert process.returncode in (0, 130, -signal.SIGINT)  # 0: the port was open, it stopped


def test_ctrl_c_while_python_imports_ends_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "headstart", "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment(tmp_path)) as process:
        assert process.stderr is not None
        while b"numpy._core" not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGINT)
        assert b"Traceback" not in process.stderr.read()
    assert process.returncode == -signal.SIGINT


def _catches(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (number - 1) & 1)


def test_a_second_signal_does_not_wait_for_an_engine_that_does_not_answer(tmp_path: Path) -> None:
    server = Server(["--context", "4096", "--spec", "off"], tmp_path)
    engine = server.engine_pid()
    with server.client() as client, ThreadPoolExecutor(1) as pool:
        streamed = pool.submit(client.post, "/completion", json=ENDLESS)
        until(lambda: num_busy(client) == 1, "the request runs")
        os.kill(engine, signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0.5)
        assert server.stop() == 0
        assert "shutting down" in streamed.result().text.rstrip().splitlines()[-1]
    assert not Path(f"/proc/{engine}").exists()
    waited = ("did not stop in time", "restart", "Traceback")
    assert not any(word in line for word in waited for line in server.lines)


def test_sigterm_in_the_middle_of_requests_tells_them_and_ends_with_code_0(tmp_path: Path) -> None:
    """To the whole group, as service managers send it: the engine leaves its end to the server."""
    server = Server(["--context", "65536", "--threads", "1", "--spec", "off"], tmp_path)
    engine = server.engine_pid()
    blocks = re.split(r"\n(?=[0-9a-f]+-)", Path(f"/proc/{engine}/smaps").read_text())
    largest = max(blocks, key=lambda b: int((re.search(r"Anonymous: *(\d+)", b) or "00")[1]))
    assert "hg" in largest.rpartition("VmFlags:")[2].split() or not ASKS
    # more than any machine generates before its time is over
    endless = ENDLESS | {"max_tokens": 30_000}
    with server.client() as client, ThreadPoolExecutor(2) as pool:
        plain = pool.submit(client.post, "/completion", json=endless | {"stream": False, "seed": 1})
        streamed = pool.submit(client.post, "/completion", json=endless | {"seed": 2})
        until(lambda: num_busy(client) == 2, "both requests run")
        os.killpg(server.process.pid, signal.SIGTERM)
        assert server.process.wait(60) == 0
        server.stop()
        assert plain.result().status_code == 503
        assert "shutting down" in plain.result().json()["error"]["message"]
        assert "shutting down" in streamed.result().text.rstrip().splitlines()[-1]
    assert not Path(f"/proc/{engine}").exists()
    assert not any("restart" in line or "Traceback" in line for line in server.lines)


def refused(arguments: Sequence[str], cache: Path) -> str:
    """What a start that cannot work prints; it ends with code 1."""
    done = subprocess.run(
        [sys.executable, "-m", "headstart", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(cache),
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("headstart: error: ")
    assert done.stderr.count(last.removeprefix("headstart: error: ")) == 1
    return last


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda path: broken(path, "truncated-tensors"), r"bad\.gguf"),
        (aborting, r"bad\.gguf|SIGABRT"),
    ],
    ids=["broken", "aborting"],
)
def test_a_model_that_cannot_be_loaded_is_refused(write, says, tmp_path) -> None:
    path = write(tmp_path / "bad.gguf")
    assert re.search(says, refused(["--port", "0", "-m", str(path)], tmp_path))
