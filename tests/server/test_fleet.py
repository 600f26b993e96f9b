"""`headstart router` before real servers on the embedded model, all as processes, over HTTP."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from tests.server.server_process import Server, until
from tests.server.serving import text_of

ARGUMENTS = ("--context", "2048", "--threads", "1", "-np", "2", "--spec", "off")
CODE = "\n".join(f"def function_{i}(argument):\n    return argument + {i}" for i in range(20))
ENDLESS = {"prompt": "def f(x):\n", "max_tokens": 600, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def servers(cache: Path) -> Iterator[list[Server]]:
    with ThreadPoolExecutor() as pool:
        running = list(pool.map(lambda _: Server(ARGUMENTS, cache), range(2)))
    yield running
    for server in running:
        server.stop()


@pytest.fixture(scope="module")
def router(servers: list[Server], cache: Path) -> Iterator[Server]:
    backends = [flag for one in servers for flag in ("--backend", one.url)]
    with Server([*backends, "--health-seconds", "0.2"], cache, "router") as running:
        yield running


@pytest.fixture(scope="module")
def client(router: Server) -> Iterator[httpx2.Client]:
    with router.client() as client:
        until(lambda: states(client) == ["healthy", "healthy"], "both are healthy")
        yield client


def states(client: httpx2.Client) -> list[str]:
    return [one["state"] for one in client.get("/router/backends").json()["backends"]]


def chat(contents: list[str], **more) -> dict:
    roles = ["user", "assistant"] * len(contents)
    messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
    return {"messages": messages, "max_tokens": 12, "temperature": 0, **more}


def events(lines: Iterator[str]) -> Iterator[dict]:
    for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line[6:])


def test_an_answer_is_the_same_as_without_the_router(client, servers):
    body = chat([f"Repeat this:\n{CODE}"], max_tokens=40, cache_prompt=False)
    direct = httpx2.post(f"{servers[0].url}/v1/chat/completions", json=body, trust_env=False)
    routed = client.post("/v1/chat/completions", json=body)
    assert routed.json()["choices"] == direct.json()["choices"]
    streamed = client.post("/v1/chat/completions", json=body | {"stream": True})
    assert text_of(streamed) == direct.json()["choices"][0]["message"]["content"]
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert client.get("/v1/models").json()["data"]


def test_turns_of_a_conversation_find_their_prefix_and_conversations_use_both(client):
    sent_before = [one["num_sent"] for one in client.get("/router/backends").json()["backends"]]
    conversations = [[f"Number {i}. Explain:\n{CODE[i * 40 :]}"] for i in range(6)]
    num_before = [0] * 6

    def ask(contents: list[str]) -> dict:
        return client.post("/v1/chat/completions", json=chat(contents)).raise_for_status().json()

    with ThreadPoolExecutor(6) as pool:
        for turn in range(3):
            # at first all at once, so that they spread; then nobody waits, or another may be better
            for i, answer in enumerate((map if turn else pool.map)(ask, conversations)):
                cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert cached >= (0.8 * num_before[i] if turn else 0)
                num_before[i] = answer["usage"]["prompt_tokens"]
                said = answer["choices"][0]["message"]["content"]
                conversations[i] += [said, "And why?"]
    sent = [one["num_sent"] for one in client.get("/router/backends").json()["backends"]]
    assert min(now - before for now, before in zip(sent, sent_before, strict=True)) >= 3


def test_a_stopped_router_ends_its_streams_first(servers, cache):
    router = Server(["--backend", servers[0].url], cache, "router")
    with (
        router.client() as client,
        client.stream("POST", "/v1/completions", json=ENDLESS) as response,
    ):
        stream = events(response.iter_lines())
        next(stream)
        router.process.send_signal(signal.SIGTERM)
        *_, last = stream
    assert last["timings"]["predicted_n"] == ENDLESS["max_tokens"]
    assert router.stop() == 0


def test_a_router_that_is_told_to_stop_again_and_again_has_not_failed(servers, cache):
    router = Server(["--backend", servers[0].url], cache, "router")
    while router.process.poll() is None:
        router.process.send_signal(signal.SIGTERM)
        threading.Event().wait(0.002)
    assert router.stop() == 0


def test_a_killed_backend_ends_its_own_streams_only(servers, cache):
    victim = Server(ARGUMENTS, cache)
    engines = [victim.engine_pid(), servers[0].engine_pid()]
    backends = ["--backend", victim.url, "--backend", servers[0].url]
    router = Server([*backends, "--health-seconds", "0.2"], cache, "router")
    ends: dict[int, dict] = {}
    begun = [threading.Event() for _ in range(4)]

    def ask(i: int) -> None:
        body = ENDLESS | {"prompt": f"def f_{i}(x):\n", "max_tokens": 1000}
        with (
            router.client() as client,
            client.stream("POST", "/v1/completions", json=body) as response,
        ):
            for ends[i] in events(response.iter_lines()):
                begun[i].set()

    try:
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        for thread, has_begun in zip(threads, begun, strict=True):
            thread.start()
            assert has_begun.wait(30)
        for engine in engines:
            os.kill(engine, signal.SIGSTOP)  # nobody's answer ends before the other is killed
        with router.client() as client:
            states_now = client.get("/router/backends").json()["backends"]
            num_hit = states_now[0]["num_in_flight"]
            assert num_hit
            assert states_now[1]["num_in_flight"]
            victim.stop(signal.SIGKILL)
            os.kill(engines[1], signal.SIGCONT)
            for thread in threads:
                thread.join(60)
            failed = [one["error"] for one in ends.values() if "error" in one]
            whole = [one for one in ends.values() if "error" not in one]
            assert len(failed) == num_hit
            assert all(one["code"] in (500, 502) and one["message"] for one in failed)
            assert {one["timings"]["predicted_n"] for one in whole} == {1000}
            until(lambda: states(client) == ["unhealthy", "healthy"], "the router knows")
            assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).is_success
    finally:
        os.kill(engines[1], signal.SIGCONT)
        router.stop()
        if victim.process.poll() is None:
            victim.stop()
