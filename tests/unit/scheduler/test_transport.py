"""Messages between the server and the engine process: in order, whole, and to the end."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import logging
import multiprocessing
import os
import pickle
import pickletools
import signal
import sys
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import NoReturn

import pytest
from tests.harness import Model, make_scheduler, run

from headstart.structures.progress import loading
from headstart.structures.system import widen_pipe
from headstart.types.errors import ConfigError
from headstart.types.media import MediaQuestion
from headstart.types.report import WorkerReport
from headstart.types.request import (
    EmbeddingRequest,
    FinishEvent,
    Request,
    RequestStats,
    TokenEvent,
    TokenLogprob,
    VerifiedDraft,
    Work,
)
from headstart.worker import transport
from headstart.worker.pipes import Cancel, Sender, item_reader, read_items, write_item
from headstart.worker.transport import ProcessTransport, _once_per_percent, _process_main


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still here")


def refuse() -> NoReturn:
    raise ConfigError("no")


def tell_interval() -> NoReturn:
    raise ConfigError(f"{sys.getswitchinterval()}")


def tell_tunables() -> NoReturn:
    raise ConfigError(os.environ.get("GLIBC_TUNABLES", "none"))


def load() -> NoReturn:
    with suppress(OSError):  # libllama cannot raise
        loading.get()(0.5)
    os._exit(7)


def hang(seconds: float = 0.1) -> NoReturn:
    transport.WRITE_SECONDS = seconds
    ThreadPoolExecutor(1).submit(threading.Event().wait)
    raise ConfigError("no")


def num_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def without_collector() -> Iterator[None]:
    """So that what only the collector of cycles would close stays open."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def end_of(build: object) -> str:
    transport = ProcessTransport(build)  # type: ignore[arg-type]
    end = asyncio.get_running_loop().create_future()
    transport.start(end.set_result)
    error = await asyncio.wait_for(end, 30)
    transport.close()  # not in a thread, which would hold it a moment longer
    return str(error)


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize(
    ("build", "error"), [(die, "with signal SIGKILL"), (refuse, "no")], ids=["dies", "refuses"]
)
async def test_an_engine_that_ended_leaves_no_descriptors(build: object, error: str) -> None:
    assert error in await end_of(build)  # the first starts a helper of multiprocessing's
    before = num_open()
    await end_of(build)
    assert num_open() == before


async def test_a_thread_that_computes_gives_the_loop_the_interpreter_within_a_millisecond() -> None:
    assert float(await end_of(tell_interval)) < 0.001


@pytest.mark.parametrize("given", [None, "", "glibc.malloc.perturb=0"])
async def test_only_the_engine_has_huge_pages_and_only_if_the_user_set_no_tunables(
    monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if given is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", given)
    assert await end_of(tell_tunables) == ("glibc.malloc.hugetlb=1" if given is None else given)
    assert os.environ.get("GLIBC_TUNABLES") == given


async def test_an_end_is_told_where_no_thread_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = ProcessTransport(die)
    end = asyncio.get_running_loop().create_future()
    transport.start(end.set_result)

    def start(thread: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        error = await asyncio.wait_for(end, 60)
    assert "SIGKILL" in str(error)
    transport.close()


@pytest.mark.skipif(not hasattr(fcntl, "F_GETPIPE_SZ"), reason="only Linux tells")
@pytest.mark.parametrize("build", [refuse, load])
def test_an_engine_that_fails_or_loads_after_its_server_ended_says_nothing_more(build) -> None:
    context = multiprocessing.get_context("spawn")
    commands, orders = context.Pipe(duplex=False)
    listener, messages = context.Pipe(duplex=False)
    listener.close()
    arguments = (build, commands, messages, logging.basicConfig)
    process = context.Process(target=_process_main, args=arguments)
    process.start()
    for end in (commands, orders, messages):
        end.close()
    process.join(20)
    assert process.exitcode == 0


def test_an_engine_ends_though_a_thread_waits_for_a_disk_that_does_not_answer() -> None:
    context = multiprocessing.get_context("spawn")
    commands, _orders = context.Pipe(duplex=False)
    _listener, messages = context.Pipe(duplex=False)
    arguments = (hang, commands, messages, logging.basicConfig)
    process = context.Process(target=_process_main, args=arguments)
    process.start()
    process.join(30)
    exitcode = process.exitcode
    process.kill()
    process.join()
    assert exitcode == 0


def test_commands_that_take_long_to_read_are_read_bit_by_bit(monkeypatch) -> None:
    taken, given = multiprocessing.Pipe(duplex=False)
    commands = [Cancel(f"r{number}") for number in range(50)]
    for command in commands:
        write_item(given.fileno(), command)
    times = count()
    monkeypatch.setattr(time, "monotonic", lambda: next(times) / 1000)
    receive = transport._receiver(taken.fileno())
    read = [list(receive(0.0)) for _ in range(60)]
    assert [command for part in read for command in part] == commands
    assert max(map(len, read)) <= 3


def written(*items: object) -> bytes:
    """What is sent of these, which fit into a pipe."""
    source, sink = os.pipe()
    for item in items:
        write_item(sink, item)
    os.close(sink)
    with open(source, "rb") as sent:
        return sent.read()


def test_a_command_of_which_some_has_come_holds_up_no_step() -> None:
    taken, given = multiprocessing.Pipe(duplex=False)
    data, receive = written(Cancel("first"), Cancel("second")), transport._receiver(taken.fileno())
    os.write(given.fileno(), data[:-1])
    assert receive(0.0) == [Cancel("first")]
    assert receive(0.0) == []
    os.write(given.fileno(), data[-1:])
    assert receive(None) == [Cancel("second")]
    given.close()
    with pytest.raises(EOFError):
        receive(0.0)


def test_who_has_nothing_else_to_do_waits_for_the_rest_of_a_command() -> None:
    taken, given = multiprocessing.Pipe(duplex=False)
    data, receive = written(Cancel("first")), transport._receiver(taken.fileno())
    os.write(given.fileno(), data[:-1])
    late = threading.Timer(0.1, os.write, (given.fileno(), data[-1:]))
    late.start()
    assert receive(60.0) == [Cancel("first")]
    late.join()


PROMPT = array("i", range(100_000))
COMMANDS = [
    Request(request_id="a", prompt=PROMPT.tolist()),
    EmbeddingRequest("b", tuple([[number] * 100 for number in range(1000)])),
    MediaQuestion("c", (b"x" * 100_000,), ""),
]


class Watched(array):
    """Tokens that know how often someone looked at them one by one."""

    num_looks = 0

    def __iter__(self) -> Iterator[int]:
        self.num_looks += 1
        return super().__iter__()


@pytest.mark.parametrize("command", COMMANDS, ids=["prompt", "texts", "image"])
async def test_tokens_are_sent_as_bytes(command: Work) -> None:
    taken, given = multiprocessing.Pipe(duplex=False)
    widen_pipe(given.fileno())
    sender = Sender(given)
    sender.send(command)
    read = item_reader(taken.fileno())
    while not (found := read()):
        await asyncio.sleep(0)
    (item,) = found
    assert sum(1 for _ in pickletools.genops(item)) < 12_000  # a few for each text
    came = pickle.loads(item)
    if isinstance(command, Request):
        assert came == replace(command, prompt=PROMPT)
    sender.close()


def test_the_loop_looks_once_at_each_token_of_a_request_that_comes() -> None:
    prompt, scheduler = Watched("i", [1, 2, 3] * 5), make_scheduler(Model())
    scheduler.submit(Request(request_id="r", prompt=prompt, max_tokens=1))
    assert prompt.num_looks == 1
    assert run(scheduler)["r"].finish


@pytest.mark.parametrize("command", COMMANDS, ids=["prompt", "texts", "image"])
async def test_a_cancel_takes_back_all_that_was_not_sent(command: Work) -> None:
    _taken, given = multiprocessing.Pipe(duplex=False)
    sender = Sender(given)
    sender.send(Request(request_id="first", prompt=PROMPT))  # fills the pipe
    sender.send(command)
    assert sender._commands
    sender.send(Cancel(command.request_id))
    assert not sender._commands
    sender.close()


def test_the_messages_of_thousands_of_steps_have_room_until_the_server_reads_them() -> None:
    transport = ProcessTransport(die)
    transport.launch()
    assert transport._messages is not None
    assert fcntl.fcntl(transport._messages.fileno(), fcntl.F_GETPIPE_SZ) >= 2000 * 300
    transport.close()


async def read_all(writes: Sequence[object], *, cut: int | None = None) -> list[object]:
    """What a reader takes of these items, then "end"; `cut`: bytes that are written at a time."""
    source, sink = os.pipe()
    taken: list[object] = []
    is_over = asyncio.Event()

    def on_end() -> None:
        taken.append("end")
        is_over.set()

    def write() -> None:
        if cut is None:
            for item in writes:
                write_item(sink, item)
        else:
            data = written(*writes)
            for start in range(0, len(data), cut):
                os.write(sink, data[start : start + cut])
                threading.Event().wait(0.001)
        os.close(sink)

    read_items(source, taken.append, on_end)
    writer = threading.Thread(target=write)
    writer.start()
    await asyncio.wait_for(is_over.wait(), 10)
    await asyncio.sleep(0.02)  # an end that is told twice would come now
    writer.join()
    os.close(source)
    return taken


@pytest.mark.parametrize("cut", [None, 1, 7, 9])
async def test_items_arrive_whole_and_in_order_however_they_were_cut(cut: int | None) -> None:
    items: list[object] = ["a", (1, None, b"\0" * 20), None, {"key": [1.5]}]
    assert await read_all(items, cut=cut) == [*items, "end"]


async def test_messages_arrive_with_all_their_fields() -> None:
    draft = VerifiedDraft((5, 6), ("suffix", "suffix"), (0.5, None), 1.5, 0.25)
    logprobs = (TokenLogprob(5, -0.5, TokenLogprob.pack([5, 7], [-0.5, -1.0])),)
    tokens = [
        TokenEvent("b", (), b"z", ()),
        TokenEvent("a", (5, 6), b"xy", ("suffix", ""), logprobs, draft, 3),
    ]
    end = FinishEvent("a", "word", RequestStats(num_emitted=2), "stop", truncated=True)
    items = [WorkerReport(num_waiting=2), [*tokens, end], tokens]
    assert await read_all(items) == [*items, "end"]


async def test_an_item_may_be_larger_than_a_pipe() -> None:
    items = [os.urandom(3_000_000), "next"]
    assert await read_all(items) == [*items, "end"]


async def test_the_loop_runs_on_while_nothing_comes() -> None:
    source, sink = os.pipe()
    taken: list[object] = []
    read_items(source, taken.append, lambda: None)
    os.write(sink, b"\5\0")  # a part of an item's size
    await asyncio.sleep(0.01)
    assert taken == []
    os.close(sink)
    await asyncio.sleep(0.01)
    os.close(source)


async def test_an_item_that_cannot_be_taken_does_not_hold_up_those_behind_it() -> None:
    source, sink = os.pipe()
    taken: list[object] = []

    def take(item: object) -> None:
        taken.append(item)
        if item == "bad":
            raise ValueError(item)

    write_item(sink, "bad")
    write_item(sink, "good")
    read_items(source, take, lambda: None)
    await asyncio.sleep(0.02)
    os.close(sink)
    await asyncio.sleep(0.01)
    os.close(source)
    assert taken == ["bad", "good"]


def test_how_much_is_loaded_is_told_once_a_percent_and_never_less() -> None:
    told: list[float] = []
    tell = _once_per_percent(told.append)
    for share in (0.001, 0.01, 0.015, 0.5, 0.504, 1.0, 0.0, 0.7):  # a second file begins anew
        tell(share)
    assert told == [0.01, 0.5, 1.0]
