"""The engine as a process: its end is told whatever the system lacks, and nothing of it stays."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from headstart.types.errors import ConfigError
from headstart.types.report import WorkerInfo
from headstart.worker.messages import Message
from headstart.worker.transport import ProcessTransport, _process_main


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still here")


def refuse() -> NoReturn:
    raise ConfigError("no")


class End:
    """Remembers how it ended."""

    def __init__(self) -> None:
        self.error: asyncio.Future[BaseException | None] = (
            asyncio.get_running_loop().create_future()
        )

    def on_ready(self, info: WorkerInfo) -> None:
        raise AssertionError("it cannot get ready")

    def on_message(self, message: Message) -> None:
        raise AssertionError("it has nothing to tell")

    def on_end(self, error: BaseException | None) -> None:
        self.error.set_result(error)


def num_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def without_collector() -> Iterator[None]:
    """So that what only the collector of cycles would close stays open."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def run(build: object) -> str:
    transport = ProcessTransport(build)  # type: ignore[arg-type]
    end = End()
    transport.start(end)
    error = await asyncio.wait_for(end.error, 30)
    transport.close()  # not in a thread, which would hold it a moment longer
    for thread in threading.enumerate():
        if thread.name == "headstart-commands":  # closes its pipe as it ends
            thread.join(10)
    return str(error)


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize(
    ("build", "error"), [(die, "with signal SIGKILL"), (refuse, "no")], ids=["dies", "refuses"]
)
async def test_an_engine_that_ended_leaves_no_descriptors(build: object, error: str) -> None:
    assert error in await run(build)  # the first starts a helper of multiprocessing's
    before = num_open()
    for _ in range(2):
        await run(build)
    assert num_open() == before


async def test_an_end_is_told_where_no_thread_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = ProcessTransport(die)
    end = End()
    transport.start(end)

    def start(thread: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        error = await asyncio.wait_for(end.error, 10)
    assert "SIGKILL" in str(error)
    transport.close()


@pytest.mark.skipif(not hasattr(fcntl, "F_GETPIPE_SZ"), reason="only Linux tells")
def test_an_engine_that_fails_after_its_server_ended_says_nothing_more() -> None:
    context = multiprocessing.get_context("spawn")
    commands, orders = context.Pipe(duplex=False)
    listener, messages = context.Pipe(duplex=False)
    listener.close()
    arguments = (refuse, commands, messages, logging.basicConfig)
    process = context.Process(target=_process_main, args=arguments)
    process.start()
    for end in (commands, orders, messages):
        end.close()
    process.join(20)
    assert process.exitcode == 0


def test_the_messages_of_thousands_of_steps_have_room_until_the_server_reads_them() -> None:
    transport = ProcessTransport(die)
    transport.launch()
    assert transport._messages is not None
    assert fcntl.fcntl(transport._messages.fileno(), fcntl.F_GETPIPE_SZ) >= 2000 * 300
    transport.close()
