"""Threads for work that would block the event loop: parsing, templates, tokenizing.

They are daemon threads, so shutdown never waits for one. A queued job whose client disconnected is
dropped; a running one ends the next time it reports progress. There are few threads and the queue
is bounded, because a running job cannot be killed. Tenants take turns, and no tenant gets all
threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.types import Receive

from headstart.structures.interruption import watched
from headstart.structures.tenants import TenantQueue, caller_of, counted, may_take
from headstart.types.errors import CapacityError, RequestError

T = TypeVar("T")


class _Job:
    def __init__(self, function: Callable[[], Any], tenant: str) -> None:
        self.function, self.tenant = function, tenant
        self.future: Future[Any] = Future()
        self.given_up: Exception | None = None  # the reason, if abandoned

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            with watched(self._check):
                result = self.function()
        except RecursionError:  # due to a deeply nested body
            words = "the body is nested too deep to be read; send less"
            self.future.set_exception(RequestError(words))
        except Exception as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def _check(self, amount: int) -> None:
        if self.given_up:
            raise self.given_up


class Threads:
    """`num_threads` threads per tenant, at most one more in total, and a bounded queue.

    Call `run` on the event loop.
    """

    def __init__(self, name: str, num_threads: int, max_waiting: int) -> None:
        self._name = name
        self._num_threads = num_threads
        self._max_waiting = max_waiting
        self._pending = Counter[str]()  # jobs whose result is awaited, by tenant
        self._waiting: TenantQueue[_Job] = TenantQueue()
        self._running: set[_Job] = set()
        self._num_started = 0
        self._is_closed = False
        self._changed = threading.Condition()

    async def run(self, function: Callable[[], T], tenant: str = "") -> T:
        """Run the function in a thread and return its result. Cancelling abandons the job.

        Raises:
            CapacityError: too many jobs are queued.
        """
        job = _Job(function, tenant)
        with self._changed:
            self._queue(job)
        try:
            with counted(self._pending, tenant):
                result: T = await asyncio.wrap_future(job.future)
            return result
        finally:
            job.given_up = ClientDisconnect()  # the result is no longer needed
            with self._changed:
                self._waiting.remove(tenant, job)  # because it holds a body

    async def run_for(self, http: HttpRequest, function: Callable[[], T]) -> T:
        """Run the function for a client whose body was read; see `run` and `unless_left`."""
        return await unless_left(http.receive, self.run(function, caller_of(http.scope).tenant))

    def _queue(self, job: _Job) -> None:
        num_pending = len(self._waiting) + len(self._running)
        places = 2 * (self._max_waiting + self._num_threads)
        if self._is_closed or not may_take(self._pending, job.tenant, places):
            raise CapacityError(f"{num_pending} requests wait to be read; try again later")
        if self._num_started < min(self._num_threads + 1, num_pending + 1):
            self._start_thread()
        self._waiting.put(job.tenant, job)
        self._changed.notify()

    def _start_thread(self) -> None:
        name = f"headstart-{self._name}-{self._num_started + 1}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError as error:  # the system has no room for one
            if not self._num_started:
                raise CapacityError(f"{error}; try again later") from error
        else:
            self._num_started += 1

    def close(self) -> None:
        """Start no more jobs; running and queued ones fail with the shutdown error."""
        error = CapacityError("the server is shutting down")
        with self._changed:
            self._is_closed = True
            for job in self._running:
                job.given_up = job.given_up or error
            while (waiting := self._waiting.take()) is not None:
                if not waiting.future.done():
                    waiting.future.set_exception(error)
            self._changed.notify_all()

    def _work(self) -> None:
        while (job := self._take()) is not None:
            if job.given_up is None:
                job.run()
            with self._changed:
                self._running.discard(job)
                self._changed.notify()

    def _take(self) -> _Job | None:
        """Wait for the next job, and count it as running; None after `close`."""
        with self._changed:
            while not self._is_closed:
                running = Counter(one.tenant for one in self._running)
                busy = [one for one, number in running.items() if number >= self._num_threads]
                if (job := self._waiting.take(busy)) is not None:
                    self._running.add(job)
                    return job
                self._changed.wait()
        return None


async def unless_left(receive: Receive, work: Awaitable[T]) -> T:
    """Await `work`, and cancel it if the client disconnects. The body must have been read.

    Raises:
        ClientDisconnect: the client disconnected.
    """
    job = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(left(receive))
    try:
        await asyncio.wait((job, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            raise ClientDisconnect
        return job.result()
    finally:
        job.cancel()
        watcher.cancel()
        await asyncio.gather(job, watcher, return_exceptions=True)


async def left(receive: Receive) -> None:
    """Return when the client has disconnected; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
