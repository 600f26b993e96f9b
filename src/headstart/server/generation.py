"""Runs the requests of one call: their events in order of arrival, cancelled when the client
leaves.

Every request has a task that moves its events into one queue; another task waits for the client to
disconnect. Whoever reads the queue sees events, the first failure, or the disconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import cast

from starlette.types import Receive

from headstart.errors import WorkerDeadError
from headstart.scheduler.request import Event, FinishEvent, Request
from headstart.scheduler.worker import Worker


class ClientGoneError(Exception):
    """The client closed the connection; there is nobody to answer."""


class Generation:
    """Async context manager; leaving it cancels what still runs.

    Call `next` until `is_over`.
    """

    def __init__(self, worker: Worker, requests: Sequence[Request], receive: Receive) -> None:
        self._worker = worker
        self._requests = requests
        self._receive = receive
        self._queue: asyncio.Queue[tuple[int, Event] | Exception] = asyncio.Queue()
        self._pumps: list[asyncio.Task[None]] = []
        self._watcher: asyncio.Task[None] | None = None
        self._num_running = len(requests)

    async def __aenter__(self) -> Generation:
        self._pumps = [
            asyncio.create_task(self._pump(i, request)) for i, request in enumerate(self._requests)
        ]
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tasks = [*self._pumps, self._watcher] if self._watcher else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_over(self) -> bool:
        """Whether every request has finished."""
        return self._num_running == 0

    async def next(self) -> tuple[int, Event]:
        """Return the next event and the index of its request.

        Raises:
            ClientGoneError: the client left.
            Exception: whatever a request ended with.
        """
        item = await self._queue.get()
        if isinstance(item, Exception):
            raise item
        if isinstance(item[1], FinishEvent):
            self._num_running -= 1
        return item

    async def _pump(self, index: int, request: Request) -> None:
        try:
            events = cast("AsyncGenerator[Event, None]", self._worker.submit(request))
            event: Event | None = None
            async with aclosing(events):
                async for event in events:
                    self._queue.put_nowait((index, event))
            if not isinstance(event, FinishEvent):
                raise WorkerDeadError("the engine ended the request without a result")
        except Exception as error:  # handed to the reader, who answers with it
            self._queue.put_nowait(error)

    async def _watch(self) -> None:
        """Wait for the disconnect (the body was read, nothing else can come), then cancel the
        requests.
        """
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._queue.put_nowait(ClientGoneError())
        for task in self._pumps:
            task.cancel()
