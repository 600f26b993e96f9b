"""The engine dies, stops, cannot be made, fails: clients are told, and it comes back."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import httpx2
import pytest
from tests.harness import (
    Model,
    ReadingFilters,
    check,
    make_requests,
    make_scheduler,
    play,
    run,
    steps,
    submit_all,
)
from tests.planted import fail_at, noted
from tests.server.fake_worker import HOLD, INFO, FakeWorker, say
from tests.server.serving import serving

from headstart.sampling.sampler import PIECE
from headstart.server import event_stream
from headstart.types.errors import CapacityError, EngineError, RpcWorkerError, WorkerDeadError
from headstart.types.request import FinishEvent, Request, RequestStats
from headstart.types.sampling_params import SamplingParams
from headstart.worker import client as client_module
from headstart.worker import pipes
from headstart.worker.client import WorkerClient
from headstart.worker.loop import run_loop
from headstart.worker.pipes import MAX_REQUESTS, Cancel, Sender, item_reader
from headstart.worker.transport import ProcessTransport

REQUEST = Request(request_id="r", prompt=(1, 2, 3))


# The prompt cache of one tenant


def cached(scheduler, request: Request, namespace: str, **changes) -> int:
    one = replace(request, namespace=namespace, request_id=namespace + str(changes), **changes)
    return run(scheduler, [one])[one.request_id].stats.num_cached


def test_nobody_is_told_how_much_of_a_guess_another_tenant_wrote():
    secret = Request(request_id="", prompt=list(range(20)), max_tokens=8)
    for changes in ({}, {"slot_id": 0}, {"slot_id": 1}):
        scheduler = make_scheduler(Model())
        assert cached(scheduler, secret, "victim", slot_id=0) == 0
        assert cached(scheduler, secret, "stranger", **changes) == 0
        assert cached(scheduler, secret, "stranger") == 19  # his own, by now
        assert cached(scheduler, secret, "") == 0


# Commands to the engine


class Commands:
    """A sender of commands, and what the engine reads of them."""

    def __init__(self) -> None:
        self.theirs, pipe = multiprocessing.Pipe(duplex=False)
        self.read, self.items = item_reader(self.theirs.fileno()), list[bytes]()
        self.sender = Sender(pipe)
        self.send("first", prompt=range(1 << 18))  # fills the pipe

    def send(self, *names: str, prompt: Sequence[int] = (1,), tenant: str = "") -> None:
        for name in names:
            request = Request(request_id=name, prompt=prompt, namespace=tenant)
            self.sender.send(request)

    async def receive(self):
        while not self.items:
            await asyncio.sleep(0)
            self.items += self.read()
        return pickle.loads(self.items.pop(0))


@pytest.fixture
async def commands():
    one = Commands()
    yield one
    one.sender.close()
    one.theirs.close()


NAMES = [str(number) for number in range(MAX_REQUESTS)]


async def test_a_reader_that_stopped_holds_up_nobody_who_sends(commands):
    commands.send(*NAMES, prompt=(1,) * 2000)
    with pytest.raises(CapacityError, match=r"512 requests wait for the engine.*try again later"):
        commands.send("another")
    for name in NAMES[100:400]:  # a client that leaves makes room, and is never sent
        commands.sender.send(Cancel(name))
    commands.send("last")
    received = []
    while "last" not in received:
        received.append((await commands.receive()).request_id)
    assert received == ["first", *NAMES[:100], *NAMES[400:], "last"]


async def test_many_requests_for_a_busy_engine_leave_room_for_another_tenant_s(commands):
    commands.send(*NAMES, tenant="a")
    with pytest.raises(CapacityError):
        commands.send("a", tenant="a lora")
    commands.send("b", tenant="b")
    received = [(await commands.receive()).request_id for _ in range(514)]
    assert received == ["first", *NAMES, "b"]


async def test_sending_and_taking_back_look_at_none_of_the_requests_that_wait(
    commands, monkeypatch
):
    looks = [0]

    def held_by(request):
        looks[0] += 1
        return "", len(request.prompt)

    monkeypatch.setattr(pipes, "_held_by", held_by)
    commands.send(*NAMES)
    for name in NAMES:
        commands.sender.send(Cancel(name))
    assert not commands.sender._commands
    assert looks[0] <= 3 * len(NAMES)


async def test_a_single_prompt_of_any_length_is_sent(commands):
    commands.send("long", prompt=range(1 << 23))
    with pytest.raises(CapacityError):
        commands.send("second")
    commands.send("another", tenant="another")


@pytest.mark.parametrize("command", [Cancel("running"), None], ids=["cancel", "stop"])
async def test_a_cancel_and_the_stop_wait_for_none_of_the_requests_of_a_flood(commands, command):
    commands.send(*NAMES, prompt=(1,) * 2000)
    commands.sender.send(command)
    assert (await commands.receive()).request_id == "first"  # it was begun
    assert await commands.receive() == command
    assert (await commands.receive()).request_id == NAMES[0]


async def test_commands_for_an_engine_that_is_gone_are_dropped(commands):
    commands.send(*NAMES)
    commands.theirs.close()
    async with asyncio.timeout(10):
        while commands.sender._commands:
            await asyncio.sleep(0)
    commands.send("later")
    assert not commands.sender._commands


def test_health_answers_while_the_engine_is_stopped_and_a_hundred_prompts_come(server):
    pid = server.engine_pid()
    body = {"prompt": "abc " * 300, "max_tokens": 1}
    os.kill(pid, signal.SIGSTOP)
    try:
        with server.client() as client, ThreadPoolExecutor(100) as pool:
            answers = [
                pool.submit(httpx2.post, f"{server.url}/completion", json=body, timeout=60)
                for _ in range(100)
            ]
            for _ in range(40):
                assert client.get("/health", timeout=10).status_code == 200
            os.kill(pid, signal.SIGCONT)
            assert {answer.result().status_code for answer in answers} == {200}
    finally:
        os.kill(pid, signal.SIGCONT)


# Restarts


class FakeTransport:
    """Fails to start as often as it is told; what happens to the engine is the test's to say."""

    made: list[FakeTransport]
    errors: list[Exception]

    def __init__(self) -> None:
        self.hear = None

    def start(self, hear) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.hear = hear
        self.made.append(self)

    def send(self, command) -> None: ...

    def close(self) -> None: ...

    def kill(self) -> None: ...


@pytest.fixture
def transports(monkeypatch):
    monkeypatch.setattr(client_module, "_delay", lambda number: 0.02 * (number > 0))
    FakeTransport.made, FakeTransport.errors = [], []
    return FakeTransport


async def ready(transports, number: int) -> FakeTransport:
    """The transport of this number, its engine just loaded."""
    for _ in range(200):
        if len(transports.made) >= number:
            transports.made[-1].hear(INFO)
            await asyncio.sleep(0.01)
            return transports.made[-1]
        await asyncio.sleep(0.01)
    raise AssertionError("no new engine was made")


async def started_client(transports) -> WorkerClient:
    client = WorkerClient(transports)
    starting = asyncio.create_task(client.start())
    await ready(transports, 1)
    await starting
    return client


async def test_an_engine_that_cannot_be_made_is_tried_again_and_health_says_why(transports):
    client = await started_client(transports)
    transports.errors = [OSError(24, "Too many open files"), OSError(12, "Cannot allocate memory")]
    transports.made[0].hear(WorkerDeadError("killed"))
    while "no new engine process" not in client.failure:
        await asyncio.sleep(0)
    assert client.status == "restarting"
    assert "Too many open files" in client.failure
    with pytest.raises(CapacityError, match="Too many open files"):
        client.submit(REQUEST, lambda event: None)
    await ready(transports, 2)
    assert (client.status, client.failure) == ("ready", "")
    await client.close()


async def test_engines_that_answer_nothing_are_counted_however_long_they_load(transports):
    client = await started_client(transports)
    for number in range(2, 5):
        transports.made[-1].hear(WorkerDeadError("killed"))
        await ready(transports, number)
        client._ready_since -= 20  # as if loading had taken so long; no answer in between
        assert client.status == "ready"
    transports.made[-1].hear(WorkerDeadError("killed"))
    await asyncio.sleep(0.02)
    assert client.status == "failed"
    assert "stays down" in client.failure
    await client.close()


async def test_an_answer_in_between_makes_deaths_no_row(transports):
    client = await started_client(transports)
    for number in range(2, 12):
        answered = FinishEvent("r", "eos", RequestStats(num_emitted=1))
        transports.made[-1].hear([answered])
        await asyncio.sleep(0.01)
        transports.made[-1].hear(WorkerDeadError("killed"))
        await ready(transports, number)
    assert client.status == "ready"
    await client.close()


async def test_a_remote_worker_that_is_away_is_waited_for_without_end(transports):
    client = await started_client(transports)
    transports.made[-1].hear(WorkerDeadError("signal SIGABRT"))
    for number in range(2, 10):  # more often than engines may die in a row
        while len(transports.made) < number:
            await asyncio.sleep(0.005)
        transports.made[-1].hear(RpcWorkerError("RPC worker a:1 cannot be reached"))
        await asyncio.sleep(0.005)
        assert client.status == "restarting"
        assert "a:1 cannot be reached" in client.failure
    await ready(transports, 10)
    assert (client.status, client.failure) == ("ready", "")
    await client.close()


def test_a_process_that_cannot_be_made_leaves_nothing_open(monkeypatch):
    def no_room(self) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(multiprocessing.get_context("spawn").Process, "start", no_room)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(OSError, match="Too many"):
            ProcessTransport(print).start(None)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_decode_that_keeps_failing_ends_the_loop_for_a_restart():
    fail_at(engine := Model(), range(10**9))
    requests, sent = make_requests(4), []

    def receive(seconds):
        return [requests.pop()] if requests else []

    with pytest.raises(EngineError, match="3 decodes in a row failed"):
        run_loop(make_scheduler(engine), receive, sent.append)
    failed = [event for one in sent if isinstance(one, list) for event in one]
    assert len(failed) >= 3  # they were told before


def test_a_decode_that_failed_once_does_not():
    fail_at(engine := Model(), [0, 1])
    scheduler = make_scheduler(engine)
    for request in make_requests(3):
        play(scheduler, [request])
    assert scheduler.num_failed_decodes == 0


def test_penalties_read_a_long_prompt_in_pieces_beside_other_requests(monkeypatch):
    engine = Model(order=4, context_size=20_000)
    scheduler = make_scheduler(engine, parallel=2, prefill_chunk=16_000)
    far = SamplingParams(temperature=0.8, repeat_penalty=1.5, repeat_last_n=20_000, ignore_eos=True)
    short = Request(request_id="short", prompt=(1, 2, 3), sampling=far, max_tokens=60)
    long = Request(request_id="long", prompt=[4, 5] * 8_000, sampling=far, max_tokens=8)
    read = noted(monkeypatch, ReadingFilters, "accept")
    submit_all(scheduler, [short], 1)
    scheduler.submit(long)
    num_read = [len(read) for _ in steps(scheduler)]
    assert max(after - before for before, after in pairwise(num_read)) < 5 * PIECE
    assert len(read) > 16_000
    check(engine, [short, long], play(scheduler))


# Answers


def test_a_request_in_flight_hears_503_when_the_server_ends(transports):
    async def ask() -> list:
        client = await started_client(transports)
        heard: list = []
        client.submit(REQUEST, heard.append)
        await client.close()
        return heard

    [error] = asyncio.run(ask())
    assert isinstance(error, CapacityError)


def test_a_stream_that_is_not_read_is_given_up(monkeypatch):
    monkeypatch.setattr(event_stream, "MAX_UNREAD", 5000)
    worker = FakeWorker(lambda request: [*say(request, *[b"x" * 512] * 200)[:-1], HOLD])
    with serving(worker) as client:
        body = {"prompt": "a", "stream": True, "n_probs": 1}
        with client.stream("POST", "/completion", json=body) as response:
            assert response.status_code in (200, 503)
            assert worker.cancelled.get(timeout=20)
