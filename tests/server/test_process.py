"""The real thing: `headstart serve` as a process, with its engine in another, over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import openai
import pytest
from tests.models import aborting, broken
from tests.server.server_process import Server, environment, until

CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Repeat `abc`."}],
    "max_tokens": 16,
    "temperature": 0,
}
ENDLESS = {"prompt": "def f(x):\n", "max_tokens": 1500, "ignore_eos": True, "stream": True}
DETERMINISTIC = ("--exact", "--context", "2048", "--threads", "1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server([*DETERMINISTIC, "-np", "4"], tmp_path_factory.mktemp("cache")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx2.Client]:
    with server.client() as client:
        yield client


def num_busy(client: httpx2.Client) -> int:
    return sum(slot["is_processing"] for slot in client.get("/slots").json())


def idle(client: httpx2.Client) -> bool:
    # /slots shows the last report, made at least every 0.25 s while requests run
    return num_busy(client) == 0


def texts_of(response: httpx2.Response) -> str:
    parts = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    return "".join(
        json.loads(p)["choices"][0]["delta"].get("content") or ""
        for p in parts
        if json.loads(p)["choices"]
    )


def test_a_chat_is_answered_and_streamed_alike(client: httpx2.Client) -> None:
    answer = client.post("/v1/chat/completions", json=CHAT).json()
    text = answer["choices"][0]["message"]["content"]
    assert text
    assert answer["usage"]["completion_tokens"] <= 16
    streamed = client.post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert streamed.text.rstrip().endswith("data: [DONE]")
    assert texts_of(streamed) == text


def test_timings_and_the_log_line_tell_what_was_drafted(
    server: Server, client: httpx2.Client
) -> None:
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


def test_the_openai_client_works(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as sdk:
        answer = sdk.chat.completions.create(model="demo", **CHAT)
        stream = sdk.chat.completions.create(model="demo", stream=True, **CHAT)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert answer.choices[0].message.content == text
    assert text


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


def leave(server: Server, body: dict[str, object], when: Callable[[socket.socket], None]) -> None:
    """Send a request and close the connection at some point."""
    url = urlsplit(server.url)
    payload = json.dumps(body).encode()
    with socket.create_connection((url.hostname, url.port), 30) as connection:
        head = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n\r\n"
        connection.sendall(head.encode() + payload)
        when(connection)


def test_clients_that_leave_while_generating_prefilling_or_queued_free_their_slots(
    server: Server, client: httpx2.Client
) -> None:
    def generating(connection: socket.socket) -> None:
        received = b""
        while b'"content"' not in received:
            received += connection.recv(4096)

    leave(server, ENDLESS, generating)
    until(lambda: idle(client), "the slot of a client that left while generating is free")
    until(lambda: any(", cancelled, " in line for line in server.lines), "its line in the log")

    long = ENDLESS | {"prompt": [5] * 1900, "cache_prompt": False}
    leave(server, long, lambda _: until(lambda: num_busy(client) == 1, "the long prompt is read"))
    until(lambda: idle(client), "the slot of a client that left while prefilling is free")

    held, leaving = [], threading.Event()
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            held.append(pool.submit(leave, server, ENDLESS, lambda _: leaving.wait(30)))
        until(lambda: num_busy(client) == 4, "all slots are busy")
        leave(
            server,
            ENDLESS,
            lambda _: until(
                lambda: "requests_deferred 1" in client.get("/metrics").text, "it waits"
            ),
        )
        until(
            lambda: "requests_deferred 0" in client.get("/metrics").text, "the queue is empty again"
        )
        assert num_busy(client) == 4
        leaving.set()
    for one in held:
        one.result()
    until(lambda: idle(client), "all slots are free")
    assert client.post("/v1/chat/completions", json=CHAT).status_code == 200


def test_an_engine_that_aborts_fails_its_requests_and_is_restarted(
    server: Server, client: httpx2.Client
) -> None:
    before = client.post("/v1/chat/completions", json=CHAT).json()["choices"][0]["message"][
        "content"
    ]
    with ThreadPoolExecutor(2) as pool:
        plain = pool.submit(client.post, "/completion", json=ENDLESS | {"stream": False})
        streamed = pool.submit(client.post, "/completion", json=ENDLESS)
        until(lambda: num_busy(client) == 2, "both requests run")
        os.kill(server.engine_pid(), signal.SIGABRT)
        response = plain.result()
        assert response.status_code == 500
        assert "SIGABRT" in response.json()["error"]["message"]
        assert "restart" in response.json()["error"]["message"]
        assert "SIGABRT" in streamed.result().text.splitlines()[-2] + streamed.result().text
    until(lambda: client.get("/health").status_code == 200, "the engine is back")
    after = client.post("/v1/chat/completions", json=CHAT).json()["choices"][0]["message"][
        "content"
    ]
    assert after == before


@pytest.mark.parametrize("to_group", [False, True], ids=["server", "process group"])
def test_sigterm_ends_it_cleanly_and_the_engine_with_it(to_group: bool, tmp_path: Path) -> None:
    """Service managers signal the whole group: the engine must leave its end to the server."""
    server = Server(["--context", "256"], tmp_path)
    engine = server.engine_pid()
    if to_group:
        os.killpg(server.process.pid, signal.SIGTERM)
    assert server.stop() == 0
    assert not Path(f"/proc/{engine}").exists()
    assert not any("restart" in line or "Traceback" in line for line in server.lines)


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
    server = Server(["--context", "4096"], tmp_path)
    engine = server.engine_pid()
    with (
        server.client() as client,
        ThreadPoolExecutor(1) as pool,
    ):
        streamed = pool.submit(client.post, "/completion", json=ENDLESS)
        until(lambda: num_busy(client) == 1, "the request runs")
        os.kill(engine, signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(2)
        assert server.stop() == 0
        assert "shutting down" in streamed.result().text.rstrip().splitlines()[-1]
    assert not Path(f"/proc/{engine}").exists()
    waited = ("did not stop in time", "restart", "Traceback")
    assert not any(word in line for word in waited for line in server.lines)


def test_sigterm_in_the_middle_of_requests_tells_them_and_ends_with_code_0(tmp_path: Path) -> None:
    server = Server(["--context", "65536", "--threads", "1", "--spec", "off"], tmp_path)
    # more than any machine generates before its time is over
    endless = ENDLESS | {"max_tokens": 30_000}
    with (
        server.client() as client,
        ThreadPoolExecutor(2) as pool,
    ):
        plain = pool.submit(client.post, "/completion", json=endless | {"stream": False, "seed": 1})
        streamed = pool.submit(client.post, "/completion", json=endless | {"seed": 2})
        until(lambda: num_busy(client) == 2, "both requests run")
        assert server.stop() == 0
        assert plain.result().status_code == 503
        assert "shutting down" in plain.result().json()["error"]["message"]
        assert "shutting down" in streamed.result().text.rstrip().splitlines()[-1]
    assert not any("Traceback" in line for line in server.lines)


def test_slots_props_metrics_and_answers_agree_on_what_was_drafted(tmp_path: Path) -> None:
    chain = "suffix,ngram-cache,ngram-simple,draft-model"
    server = Server(
        ["--context", "4096", "--threads", "1", "-np", "4", "--spec-type", chain], tmp_path
    )
    wishes = [
        {},
        {"mode": "off"},
        {"mode": "fixed", "n_max": 3},
        {"types": ["draft-model"], "mode": "fixed"},
    ]
    with (
        server.client() as client,
        ThreadPoolExecutor(4) as pool,
    ):

        def ask(number: int) -> dict[str, Any]:
            body = {
                "prompt": f"def f{number}(x):\n    return x\n" * 3,
                "n_predict": 30,
                "temperature": number % 2,
                "return_metrics": True,
            }
            answer = client.post(
                "/completion", json=body | {"speculative": wishes[number % 4]}
            ).json()
            return answer["metrics"]["speculative_decoding"]

        answers = list(pool.map(ask, range(16)))
        until(
            lambda: "\nheadstart_requests_total 16\n" in client.get("/metrics").text,
            "all requests are counted",
        )
        metrics = client.get("/metrics").text
        speculators = client.get("/props").json()["speculation"]["speculators"]

    def metric(name: str) -> int:
        return sum(
            int(float(line.split()[-1])) for line in metrics.splitlines() if line.startswith(name)
        )

    def total(name: str) -> int:
        return sum(one[name] for one in answers)

    assert total("num_accepted_draft_tokens") > 0
    assert total("num_draft_tokens") == metric("llamacpp:spec_decode_num_draft_tokens_total")
    assert total("num_draft_tokens") == metric("headstart_draft_tokens_total")
    assert total("num_draft_tokens") == metric("headstart_draft_tokens_by_position_total")
    assert total("num_accepted_draft_tokens") == metric(
        "llamacpp:spec_decode_num_accepted_tokens_total"
    )
    assert total("num_accepted_draft_tokens") == metric(
        "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
    )
    assert total("num_accepted_draft_tokens") == metric("headstart_draft_tokens_accepted_total")
    assert total("num_spec_steps") == metric("llamacpp:spec_decode_num_drafts_total")
    wasted = total("num_draft_tokens") - total("num_accepted_draft_tokens")
    assert (
        wasted
        == metric("headstart_rows_wasted_total")
        == sum(one["num_rows_wasted"] for one in speculators)
    )
    reasons = sum(sum(one["reasons_not_drafted"].values()) for one in answers)
    assert reasons == metric("headstart_steps_without_draft_total")
    # the first token comes with the prompt
    assert total("num_steps") == 16 + total("num_spec_steps") + reasons
    for one in speculators:
        by_name = [answer["by_speculator"].get(one["name"], {}) for answer in answers]
        for count in (
            "num_calls",
            "num_drafts",
            "num_draft_tokens",
            "num_accepted_draft_tokens",
        ):
            assert one[count] == sum(counts.get(count, 0) for counts in by_name)
        reasons = sum(sum(counts["reasons_not_drafted"].values()) for counts in by_name if counts)
        assert reasons == metric(f'headstart_speculator_reasons_total{{speculator="{one["name"]}"')
    assert server.stop() == 0


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


def test_a_port_in_use_is_refused_with_the_remedy(server: Server, tmp_path: Path) -> None:
    port = server.url.rsplit(":", 1)[1]
    assert re.search(rf"{port}.*in use.*--port", refused(["--port", port], tmp_path))


def test_a_missing_draft_file_is_refused(tmp_path: Path) -> None:
    assert "nowhere.gguf" in refused(
        ["--port", "0", "-md", str(tmp_path / "nowhere.gguf")], tmp_path
    )


def test_a_broken_model_is_refused(tmp_path: Path) -> None:
    path = broken(tmp_path / "bad.gguf", "truncated-tensors")
    assert "bad.gguf" in refused(["--port", "0", "-m", str(path)], tmp_path)


def test_a_model_that_makes_libllama_abort_is_refused(tmp_path: Path) -> None:
    path = aborting(tmp_path / "abort.gguf")
    assert re.search(r"abort\.gguf|SIGABRT", refused(["--port", "0", "-m", str(path)], tmp_path))
