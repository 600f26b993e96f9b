"""The events of one call's requests, in order of arrival.

The worker appends events to one list, and a task waits for the client to disconnect; `take` returns
events, or raises the first failure or the disconnect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import NDArray
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from headstart.server.threads import left
from headstart.types.errors import CapacityError, HeadstartError
from headstart.types.request import (
    EmbeddingEvent,
    Event,
    FinishEvent,
    PromptEvent,
    ReplyEvent,
    Request,
    RequestStats,
    TokenEvent,
    Work,
)
from headstart.types.worker import Worker

MAX_UNREAD = 1 << 21  # alternatives queued for a slow client, 12 bytes each
MOST_AT_ONCE = 64  # maximum number of events returned by `take`


class EventStream:
    """Async context manager: entering submits the requests, leaving cancels the running ones.

    Call `take` until `is_over`.
    """

    def __init__(
        self,
        worker: Worker,
        requests: Sequence[Request],
        receive: Receive,
        max_silence: float | None = None,
    ) -> None:
        """`max_silence`: seconds after which `take` returns an empty list; None: never."""
        self._worker = worker
        self._requests = requests
        self._receive = receive
        self._max_silence = max_silence
        # may handle an event directly while `take` waits; returns whether it did
        self.handle_directly: Callable[[int, Event], bool] = lambda index, event: False
        self._unread: deque[tuple[int, Event]] = deque()
        self._failure: Exception | None = None
        self._num_unread = 0  # alternatives in `_unread`; a token counts as 32 of them
        self._num_running = len(requests)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()  # not set while `take` waits
        self._heard_at = self._loop.time()
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EventStream:
        try:
            for index, request in enumerate(self._requests):
                if request.prompt:
                    self._worker.submit(request, partial(self._deliver, index))
                else:  # as in llama-server, if the vocabulary has no start token
                    self._deliver(index, FinishEvent(request.request_id, "length", RequestStats()))
        except BaseException:
            self._cancel()
            raise
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._cancel()
        self.handle_directly = lambda index, event: False  # may reference the request's body
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)

    @property
    def is_over(self) -> bool:
        """Whether every request has finished."""
        return self._num_running == 0

    async def take(self) -> list[tuple[int, Event]]:
        """Wait for events and return them, each with the index of its request.

        Returns an empty list after `max_silence`.

        Raises:
            ClientDisconnect: the client disconnected.
            HeadstartError: a request failed.
        """
        if not self._unread and self._failure is None:
            await self._wait()
        if self._failure is not None and not self._unread:
            raise self._failure
        taken = [self._unread.popleft() for _ in range(min(len(self._unread), MOST_AT_ONCE))]
        for _, event in taken:
            self._num_unread -= _weight(event)
            self._num_running -= isinstance(event, FinishEvent)
        return taken

    async def _wait(self) -> None:
        """Wait for an event that `handle_directly` does not handle, or for `max_silence`."""
        self._changed.clear()
        self._heard_at, silence = self._loop.time(), self._max_silence
        while not self._changed.is_set():
            heard_at = self._heard_at
            try:
                async with asyncio.timeout_at(None if silence is None else heard_at + silence):
                    await self._changed.wait()
            except TimeoutError:
                if self._heard_at == heard_at:  # nothing was handled at once since
                    self._changed.set()

    def _deliver(self, index: int, event: Event | HeadstartError) -> None:
        if self._failure is not None:  # nothing is delivered after a failure
            return
        if isinstance(event, HeadstartError):
            self._fail(event)
            return
        if not (self._changed.is_set() or isinstance(event, FinishEvent)):
            try:
                if self.handle_directly(index, event):
                    self._heard_at = self._loop.time()
                    return
            except Exception as error:
                self._cancel()  # later events would be delivered without it
                self._fail(error)
                return
        self._num_unread += _weight(event)
        if self._num_unread > MAX_UNREAD and not isinstance(event, FinishEvent):
            self._drop_reader()
            return
        self._unread.append((index, event))
        self._changed.set()

    def _drop_reader(self) -> None:
        """End the call of a client that does not read."""
        self._cancel()
        self._unread.clear()
        self._num_unread = 0
        self._fail(
            CapacityError(
                "the answer was not read for too long and is given up; read it as it comes"
            )
        )

    def _fail(self, error: Exception) -> None:
        """Keep the first failure, which `take` raises after earlier events."""
        self._failure = self._failure or error
        self._changed.set()

    def _cancel(self) -> None:
        """Cancel the requests; the worker ignores finished ones."""
        for request in self._requests:
            self._worker.cancel(request.request_id)

    async def _watch(self) -> None:
        await left(self._receive)
        self._cancel()
        self._fail(ClientDisconnect())


def num_alternatives(event: Event) -> int:
    """Number of alternatives over all tokens of the event."""
    if not isinstance(event, TokenEvent | PromptEvent) or not event.logprobs:
        return 0
    return sum(one.num_alternatives for one in event.logprobs)


def _weight(event: Event) -> int:
    num_tokens = 1
    if isinstance(event, TokenEvent):
        num_tokens += len(event.tokens)
    elif isinstance(event, PromptEvent):
        num_tokens += len(event.logprobs)
    return 32 * num_tokens + num_alternatives(event)


async def single_event(worker: Worker, command: Work) -> Any:
    """Submit a command and return its reply, or its embedding event with all vectors; cancelling
    this cancels the command.

    Raises:
        HeadstartError: the command failed.
    """
    done: asyncio.Future[Event | HeadstartError] = asyncio.get_running_loop().create_future()
    vectors: list[NDArray[Any]] = []

    def deliver(event: Event | HeadstartError) -> None:
        if isinstance(event, EmbeddingEvent):
            vectors.extend(event.vectors)
            if not event.is_last:
                return
            event = replace(event, vectors=tuple(vectors))
        if not done.done():
            done.set_result(event)

    worker.submit(command, deliver)
    try:
        event = await done
    except asyncio.CancelledError:
        worker.cancel(command.request_id)
        raise
    if isinstance(event, HeadstartError):
        raise event
    return event.value if isinstance(event, ReplyEvent) else event
