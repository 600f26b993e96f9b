"""Threads for what would hold up the event loop: parsing, templates, tokenizing.

They are daemons, so that the end of the server never waits for one. A job whose client left is not
begun; one that runs ends when it next tells its progress. There are few threads and a bounded
queue: what nobody can stop must not be everywhere at once.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.types import Receive

from headstart.server.errors import ApiError
from headstart.structures.interruption import watched
from headstart.types.errors import CapacityError

T = TypeVar("T")


class AbandonedError(Exception):
    """Nobody waits for the result of this thread's job any more."""


class ClientGoneError(Exception):
    """The client closed the connection; there is nobody to answer."""


class _Job:
    def __init__(
        self,
        function: Callable[[], Any],
        future: asyncio.Future[Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.function, self.future, self.loop = function, future, loop
        self.is_abandoned = False

    def run(self) -> None:
        result: Any = None
        error: Exception | None = None
        try:
            with watched(self._check):
                result = self.function()
        except RecursionError:  # only a body makes anything here so deep
            error = ApiError(400, "the body is nested too deep to be read; send less")
        except Exception as caught:
            error = caught
        try:
            self.loop.call_soon_threadsafe(self._settle, result, error)
        except RuntimeError:  # the loop is closed: the server ended
            return

    def _check(self, amount: int) -> None:
        if self.is_abandoned:
            raise AbandonedError

    def _settle(self, result: Any, error: Exception | None) -> None:
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Threads:
    """Some threads and the jobs that wait for them. `run` belongs to the event loop."""

    def __init__(self, name: str, num_threads: int, max_waiting: int) -> None:
        self._name = name
        self._num_threads = num_threads
        self._max_waiting = max_waiting
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._pending: set[_Job] = set()
        self._num_started = 0
        self._is_closed = False

    async def run(self, function: Callable[[], T]) -> T:
        """The function's result, from a thread. Cancelling abandons the job.

        Raises:
            CapacityError: too many wait.
        """
        if len(self._pending) >= self._max_waiting + self._num_threads or self._is_closed:
            raise CapacityError(f"{len(self._pending)} requests wait to be read; try again later")
        loop = asyncio.get_running_loop()
        job = _Job(function, loop.create_future(), loop)
        self._pending.add(job)
        self._jobs.put(job)
        if self._num_started < min(self._num_threads, len(self._pending)):
            self._num_started += 1
            name = f"headstart-{self._name}-{self._num_started}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        try:
            result: T = await job.future
            return result
        finally:
            job.is_abandoned = True

    def close(self) -> None:
        """Begin nothing more; what runs is told to stop and not waited for."""
        self._is_closed = True
        for job in list(self._pending):
            job.is_abandoned = True
        for _ in range(self._num_started):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not job.is_abandoned:
                job.run()
            self._pending.discard(job)


async def unless_left(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, cancelled when the client leaves, whose body must have been read.

    Raises:
        ClientGoneError: it left.
    """
    job = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((job, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            raise ClientGoneError
        return job.result()
    finally:
        job.cancel()
        watcher.cancel()
        await asyncio.gather(job, watcher, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
