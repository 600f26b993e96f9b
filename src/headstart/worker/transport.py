"""The engine's loop in a separate process.

A process, because libllama aborts on some faults and because other Python threads take the
interpreter from decode steps (0.3 ms became 1.8 ms with one busy thread).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import multiprocessing
import os
import pickle
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from headstart.structures.progress import loading
from headstart.structures.system import huge_pages, switch_threads_often, widen_pipe
from headstart.types.errors import HeadstartError, WorkerDeadError
from headstart.types.report import WorkerInfo
from headstart.worker.pipes import (
    COMMAND_SECONDS,
    Command,
    Said,
    Sender,
    item_reader,
    read_items,
    write_item,
)

if TYPE_CHECKING:
    from headstart.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

# the engine must finish its step and save its state; a chunk of a prompt may take long
STOP_SECONDS = 30.0
QUIET_SECONDS = 5.0  # after which the log says what is waited for
WRITE_SECONDS = 5.0  # after its loop, for what threads still write
LOOK_SECONDS = 0.01  # between checks whether a process that closed its pipe has ended

Build = Callable[[], "tuple[Scheduler, WorkerInfo]"]
"""Loads the models. Called where the loop runs; picklable for another process."""


class ProcessTransport:
    """Runs the loop in a separate process, so that an abort in libllama does not end the server."""

    def __init__(self, build: Build, prepare: Callable[[], None] = logging.basicConfig) -> None:
        """`prepare` is called first in the process; picklable, like `build`."""
        self._build = build
        self._prepare = prepare
        self._sender: Sender | None = None
        self._process: Any = None
        self._commands: Connection | None = None
        self._messages: Connection | None = None
        self._is_ready = False
        self._error: BaseException | None = None  # why it ends, if it said so

    def launch(self) -> None:
        """Start the process; `start` sets the listener."""
        context = multiprocessing.get_context("spawn")
        # a pipe each way, because the engine's writes block
        taken, self._commands = context.Pipe(duplex=False)
        self._messages, told = context.Pipe(duplex=False)
        for pipe in (self._commands, told):  # holds thousands of steps, or 200,000 tokens
            widen_pipe(pipe.fileno())
        self._process = context.Process(
            target=_process_main,
            args=(self._build, taken, told, self._prepare),
            name="headstart-engine",
            daemon=True,
        )
        try:
            with _ctrl_c_ignored(), huge_pages():
                self._process.start()
        except BaseException:  # undo everything
            self._commands.close()
            self._messages.close()
            self._process = self._commands = self._messages = None
            raise
        finally:
            taken.close()
            told.close()

    def start(self, hear: Callable[[Said], None]) -> None:
        """Start the process if necessary; `hear` gets its messages, in this asyncio loop."""
        if self._process is None:
            self.launch()
        assert self._commands is not None
        assert self._messages is not None
        self._sender = Sender(self._commands)
        self._hear, self._loop = hear, asyncio.get_running_loop()
        try:
            read_items(self._messages.fileno(), self._take, self._on_closed)
        except BaseException:  # it has no listener
            self._sender.close()
            self.kill()
            raise

    def send(self, command: Command) -> None:
        """Send a command; dropped silently if the process is dead; `hear` reports its death.

        Raises:
            CapacityError: the engine takes nothing and the queue is full.
        """
        if self._sender is not None:
            self._sender.send(command)

    def close(self) -> None:
        """Wait until the engine, which was sent None, has ended its step; kill it if that takes too
        long, or while it loads. May run in another thread.
        """
        if self._process is None:
            return
        # waits for what closes as the process ends: its state is read in another thread, too
        ends = partial(wait, [self._process.sentinel])
        if not ends(QUIET_SECONDS) and self._is_ready:
            left = STOP_SECONDS - QUIET_SECONDS
            log.warning(
                "the engine is in a long step, or waits for a disk; it has %g s more to finish and "
                "to save what it learned, prompts and slots",
                left,
            )
            ends(left)
        if not ends(0.0):
            log.warning("the engine did not stop in time and is killed")
            self.kill()
        self._process.join()

    def kill(self) -> None:
        """Kill the engine; a `close` waiting in another thread returns."""
        if self._process is not None:
            self._process.kill()

    def _take(self, item: Said) -> None:
        if isinstance(item, BaseException):
            self._error = item
            self.kill()  # threads could delay its end, and the next one needs its memory
        else:
            self._is_ready |= isinstance(item, WorkerInfo)
            self._hear(item)

    def _on_closed(self) -> None:
        """The pipe was closed; the process may take a while to end, writing its memory.

        Polled, because engines die when the system has no room for a thread.
        """
        if self._process.exitcode is None:
            self._loop.call_later(LOOK_SECONDS, self._on_closed)
            return
        assert self._sender is not None
        assert self._messages is not None
        self._sender.close()
        self._sender = None
        self._messages.close()
        words = _exit_words(self._process.exitcode)
        self._hear(self._error or WorkerDeadError(f"the engine process ended with {words}"))


@contextlib.contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Ignore Ctrl-C, which is sent to the whole group, in processes started in this block."""
    if threading.current_thread() is not threading.main_thread():  # only that may set handlers
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _exit_words(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"


def _process_main(
    build: Build, commands: Connection, messages: Connection, prepare: Callable[[], None]
) -> None:
    """Entry of the engine process: load, report ready, run the loop, report why it ended."""
    # imported here, because the web process starts faster without the loop
    from headstart.worker.loop import run_loop

    # sent to the whole group; the server sends a command instead
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    switch_threads_often()
    prepare()
    send = partial(write_item, messages.fileno())
    try:
        loading.set(_once_per_percent(send))
        scheduler, info = build()
        gc.freeze()  # loaded objects stay; collecting them made a step 24 ms longer
        send(info)
        run_loop(scheduler, _receiver(commands.fileno()), send)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the server is gone
    except BaseException as error:
        if not isinstance(error, HeadstartError):
            log.exception("the engine process stops")
            error = HeadstartError(f"{type(error).__name__}: {error}")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # no listener is left
            send(error)
    limit = threading.Timer(WRITE_SECONDS, _give_up)
    limit.daemon = True
    limit.start()


def _give_up() -> None:
    """End this process though threads are at work: a disk may not answer."""
    names = [one.name for one in threading.enumerate() if not one.daemon]
    log.warning("the engine ends before these threads do: %s", ", ".join(names[1:]))
    os._exit(0)


def _once_per_percent(send: Callable[[float], None]) -> Callable[[float], None]:
    """Reports the loaded share of the models; for a second file, only what exceeds the first."""
    told = 0.0

    def tell(share: float) -> None:
        nonlocal told
        if share >= told + 0.01:
            told = share
            try:
                send(share)
            except (BrokenPipeError, ConnectionResetError):
                os._exit(0)  # the server is gone, and libllama, which calls this, cannot raise

    return tell


def _receiver(fd: int) -> Callable[[float | None], Sequence[Command]]:
    """Reads commands from a pipe; waits the given seconds for one. Reading is limited to
    COMMAND_SECONDS: the rest is read the next time.
    """
    read, items, poll = item_reader(fd), deque[bytes](), select.poll()
    poll.register(fd, select.POLLIN)

    def receive(seconds: float | None) -> Sequence[Command]:
        commands, until = list[Command](), math.inf
        milliseconds = None if seconds is None else 1000.0 * seconds
        while time.monotonic() < until:
            if items:
                commands.append(pickle.loads(items.popleft()))
            elif poll.poll(0 if commands else milliseconds):
                items.extend(read())
            else:
                break
            if commands or seconds == 0.0:  # otherwise idle
                until = min(until, time.monotonic() + COMMAND_SECONDS)
        return commands

    return receive
