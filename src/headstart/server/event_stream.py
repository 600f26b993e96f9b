"""The events of one call's requests in order of arrival; what still runs is cancelled at the end.

The worker puts events straight into one queue. A task waits for the client to disconnect; whoever
reads the queue sees events, the first failure, or the disconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from types import TracebackType

from starlette.types import Receive

from headstart.errors import CapacityError, HeadstartError
from headstart.scheduler.request import Event, FinishEvent, PromptEvent, Request, TokenEvent
from headstart.scheduler.worker import Worker
from headstart.server.threads import ClientGoneError

# Tokens and alternatives that wait for a client that does not read; some 40 MB.
MAX_UNREAD = 1 << 18


class EventStream:
    """Async context manager: entering submits the requests, leaving cancels what still runs.

    Call `next` until `is_over`.
    """

    def __init__(self, worker: Worker, requests: Sequence[Request], receive: Receive) -> None:
        self._worker = worker
        self._requests = requests
        self._receive = receive
        self._queue: asyncio.Queue[tuple[int, Event] | Exception] = asyncio.Queue()
        self._watcher: asyncio.Task[None] | None = None
        self._num_running = len(requests)
        self._num_unread = 0  # tokens and alternatives that lie in the queue

    async def __aenter__(self) -> EventStream:
        try:
            for index, request in enumerate(self._requests):
                self._worker.submit(request, partial(self._deliver, index))
        except BaseException:
            self._cancel()
            raise
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cancel()
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)

    @property
    def is_over(self) -> bool:
        """Whether every request has finished."""
        return self._num_running == 0

    async def next(self) -> tuple[int, Event]:
        """Return the next event and the index of its request.

        Raises:
            ClientGoneError: the client left.
            HeadstartError: a request failed.
        """
        item = await self._queue.get()
        if isinstance(item, Exception):
            raise item
        self._num_unread -= _weight(item[1])
        if isinstance(item[1], FinishEvent):
            self._num_running -= 1
        return item

    def _deliver(self, index: int, event: Event | HeadstartError) -> None:
        if isinstance(event, HeadstartError):
            self._queue.put_nowait(event)
            return
        self._num_unread += _weight(event)
        if self._num_unread > MAX_UNREAD and not isinstance(event, FinishEvent):
            self._drop_reader()
            return
        self._queue.put_nowait((index, event))

    def _drop_reader(self) -> None:
        """Nobody reads: give up what lies here and what would still come."""
        self._cancel()
        while not self._queue.empty():
            self._queue.get_nowait()
        self._num_unread = 0
        self._queue.put_nowait(
            CapacityError(
                "the answer was not read for too long and is given up; read it as it comes"
            )
        )

    def _cancel(self) -> None:
        """Cancel the requests; the worker ignores those that are over."""
        for request in self._requests:
            self._worker.cancel(request.request_id)

    async def _watch(self) -> None:
        """Wait for the disconnect (the body was read, nothing else can come), then cancel."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._cancel()
        self._queue.put_nowait(ClientGoneError())


def _weight(event: Event) -> int:
    if isinstance(event, PromptEvent):
        return 1 + sum(1 + len(one.top) for one in event.logprobs)
    if not isinstance(event, TokenEvent):
        return 1
    return 1 + len(event.tokens) + sum(len(one.top) for one in event.logprobs)
