"""The engine's loop in a thread of the test's process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable

from headstart.types.errors import HeadstartError
from headstart.worker.loop import run_loop
from headstart.worker.pipes import Command, Said
from headstart.worker.transport import Build, ProcessTransport

log = logging.getLogger(__name__)


class ThreadTransport(ProcessTransport):
    """The loop in a thread of this process."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, hear: Callable[[Said], None]) -> None:
        loop = asyncio.get_running_loop()

        def tell(said: Said) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(hear, said)

        self._thread = threading.Thread(target=self._run, args=(tell,), daemon=True)
        self._thread.start()

    def send(self, command: Command) -> None:
        self._commands.put(command)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def kill(self) -> None:
        """A thread cannot be ended: it stops after its step, as for `close`."""

    def _run(self, tell: Callable[[Said], None]) -> None:
        try:
            scheduler, info = self._build()
            tell(info)
            run_loop(scheduler, self._receive, tell)
        except BaseException as error:
            if not isinstance(error, HeadstartError):
                log.exception("the engine thread stopped")
            tell(error)

    def _receive(self, seconds: float | None) -> list[Command]:
        commands: list[Command] = []
        if seconds != 0.0:
            with contextlib.suppress(queue.Empty):
                commands.append(self._commands.get(timeout=seconds))
        while not self._commands.empty():
            commands.append(self._commands.get())
        return commands
