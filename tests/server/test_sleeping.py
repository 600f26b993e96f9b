"""A model that nobody asks leaves memory, and comes back with the next request."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.harness import Model, make_requests, make_scheduler
from tests.server.fake_worker import INFO
from tests.server.server_process import Server, until
from tests.thread_transport import ThreadTransport

from headstart.server.sleeping import IdleTimer
from headstart.types.errors import ModelError, UnavailableError
from headstart.types.request import FinishEvent
from headstart.worker.client import WorkerClient

PROMPT = {"prompt": "def f(", "n_predict": 4, "temperature": 0}


def test_the_model_sleeps_and_is_woken_by_several_requests_at_once(tmp_path: Path) -> None:
    flags = ["--sleep-idle-seconds", "1", "-c", "512"]
    with Server(flags, tmp_path) as server, server.client() as client:

        def is_sleeping() -> bool:
            return bool(client.get("/props").json()["is_sleeping"])

        before = client.post("/completion", json=PROMPT).json()["content"]
        engine = server.engine_pid()
        until(is_sleeping, "the model sleeps")
        until(lambda: not os.path.exists(f"/proc/{engine}"), "its memory is free")
        for path in ("/health", "/v1/models", "/metrics", "/slots", "/props"):
            assert client.get(path).status_code == 200
        assert is_sleeping()  # who only looks does not wake it
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: client.post("/completion", json=PROMPT), "1234"))
        assert [a.json()["content"] for a in answers] == [before] * 4
        assert not is_sleeping()
        assert server.engine_pid() != engine
        until(is_sleeping, "it sleeps again")
        assert client.post("/tokenize", json={"content": "a"}).status_code == 200
        assert not is_sleeping()
        assert server.stop() == 0


def client_of(failures: list[Exception]) -> WorkerClient:
    """A worker whose engine fails to load for each of these, from the second one on."""
    num_built = 0

    def build():
        nonlocal num_built
        num_built += 1
        if num_built > 1 and failures:
            raise failures.pop()
        return make_scheduler(Model()), INFO

    return WorkerClient(lambda: ThreadTransport(build))


async def ask(worker: WorkerClient) -> None:
    done = asyncio.get_running_loop().create_future()
    (request,) = make_requests(1)

    def deliver(event: object) -> None:
        if isinstance(event, FinishEvent):
            done.set_result(event)

    worker.submit(request, deliver)
    await done


async def test_a_model_that_cannot_be_loaded_again_is_tried_with_the_next_request() -> None:
    worker = client_of([ModelError("no memory is left")])
    await worker.start()
    await worker.sleep()
    with pytest.raises(UnavailableError, match="could not be loaded again: no memory is left"):
        await worker.wake()
    assert worker.status == "sleeping"
    await asyncio.gather(worker.wake(), worker.wake())
    assert worker.status == "ready"
    await ask(worker)
    await worker.close()


async def test_a_request_that_comes_as_the_time_is_over_keeps_the_model() -> None:
    worker = client_of([])
    await worker.start()
    timer = IdleTimer(worker, 60)
    timer._sleep()
    await timer.begin()
    await asyncio.sleep(0.01)
    assert worker.status == "ready"
    timer.end()
    await worker.close()


async def test_a_worker_with_a_request_does_not_sleep() -> None:
    worker = client_of([])
    await worker.start()
    asking = asyncio.create_task(ask(worker))
    await asyncio.sleep(0)
    await worker.sleep()
    assert worker.status == "ready"
    await asking
    await worker.sleep()
    assert worker.status == "sleeping"
    await worker.close()
    with pytest.raises(UnavailableError):
        worker.submit(make_requests(1)[0], lambda event: None)
