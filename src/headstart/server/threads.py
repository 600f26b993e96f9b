"""Threads for work that would block the event loop: parsing, templates, tokenizing.

They are daemon threads, so shutdown never waits for one. A queued job whose client disconnected is
not started; a running one ends the next time it reports progress. The threads are few and the queue
is bounded, because a running job cannot be killed.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.types import Receive

from headstart.structures.interruption import watched
from headstart.types.errors import CapacityError, RequestError

T = TypeVar("T")


class AbandonedError(Exception):
    """Nothing waits for the result of this thread's job any more."""


class ClientGoneError(Exception):
    """The client closed the connection."""


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
        except RecursionError:  # caused by the nesting of a body
            error = RequestError("the body is nested too deep to be read; send less")
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
    """A fixed number of threads with a bounded queue. Call `run` on the event loop."""

    def __init__(self, name: str, num_threads: int, max_waiting: int) -> None:
        self._name = name
        self._num_threads = num_threads
        self._max_waiting = max_waiting
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._pending: set[_Job] = set()
        self._num_started = 0
        self._is_closed = False

    async def run(self, function: Callable[[], T]) -> T:
        """Run the function in a thread and return its result. Cancelling abandons the job.

        Raises:
            CapacityError: too many jobs wait.
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
        """Start no more jobs; abandon those that run or wait."""
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
    """Await `work`, and cancel it if the client disconnects. Read the request's body before.

    Raises:
        ClientGoneError: the client disconnected.
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
