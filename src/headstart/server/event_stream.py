"""The events of one call's requests in order of arrival; what still runs is cancelled at the end.

The worker puts events straight into one list. A task waits for the client to disconnect; whoever
reads the list sees events, the first failure, or the disconnect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from types import TracebackType

from starlette.types import Receive

from headstart.server.threads import ClientGoneError
from headstart.types.errors import CapacityError, HeadstartError
from headstart.types.request import Event, FinishEvent, PromptEvent, Request, TokenEvent
from headstart.types.worker import Worker

# Tokens and alternatives that wait for a client that does not read; some 40 MB.
MAX_UNREAD = 1 << 18
MOST_AT_ONCE = 64  # events that are read without a pause


class EventStream:
    """Async context manager: entering submits the requests, leaving cancels what still runs.

    Call `take` until `is_over`.
    """

    def __init__(
        self,
        worker: Worker,
        requests: Sequence[Request],
        receive: Receive,
        max_silence: float | None = None,
    ) -> None:
        """`max_silence`: seconds after which `take` returns nothing; None: it waits."""
        self._worker = worker
        self._requests = requests
        self._receive = receive
        self._max_silence = max_silence
        self._loop = asyncio.get_running_loop()
        self._unread: deque[tuple[int, Event]] = deque()
        self._failure: Exception | None = None
        self._num_unread = 0  # tokens and alternatives that lie there
        self._num_running = len(requests)
        self._waiter: asyncio.Future[None] | None = None  # of who reads and found nothing
        self._waits_since = 0.0
        self._alarm: asyncio.TimerHandle | None = None  # for the silence
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EventStream:
        try:
            for index, request in enumerate(self._requests):
                self._worker.submit(request, partial(self._deliver, index))
        except BaseException:
            self._cancel()
            raise
        self._watcher = asyncio.create_task(self._watch())
        if self._max_silence is not None:
            self._set_alarm(self._max_silence)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cancel()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)

    @property
    def is_over(self) -> bool:
        """Whether every request has finished."""
        return self._num_running == 0

    async def take(self) -> list[tuple[int, Event]]:
        """Wait for events; return those that are there, each with the index of its request.

        Empty where nothing came for `max_silence`.

        Raises:
            ClientGoneError: the client left.
            HeadstartError: a request failed.
        """
        if not self._unread and self._failure is None:
            self._waiter, self._waits_since = self._loop.create_future(), self._loop.time()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._failure is not None and not self._unread:
            raise self._failure
        taken = [self._unread.popleft() for _ in range(min(len(self._unread), MOST_AT_ONCE))]
        for _, event in taken:
            self._num_unread -= _weight(event)
            self._num_running -= isinstance(event, FinishEvent)
        return taken

    def _deliver(self, index: int, event: Event | HeadstartError) -> None:
        if isinstance(event, HeadstartError):
            self._fail(event)
            return
        self._num_unread += _weight(event)
        if self._num_unread > MAX_UNREAD and not isinstance(event, FinishEvent):
            self._drop_reader()
            return
        self._unread.append((index, event))
        self._wake()

    def _drop_reader(self) -> None:
        """Nobody reads: give up what lies here and what would still come."""
        self._cancel()
        self._unread.clear()
        self._num_unread = 0
        self._fail(
            CapacityError(
                "the answer was not read for too long and is given up; read it as it comes"
            )
        )

    def _fail(self, error: Exception) -> None:
        """The first failure is told, after what came before it."""
        self._failure = self._failure or error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _set_alarm(self, seconds: float) -> None:
        self._alarm = self._loop.call_later(seconds, self._on_alarm)

    def _on_alarm(self) -> None:
        """One timer for all events: it looks how long the silence has lasted."""
        assert self._max_silence is not None
        left = self._max_silence
        if self._waiter is not None:
            left -= self._loop.time() - self._waits_since
            if left <= 0.0:
                self._wake()
                left = self._max_silence
        self._set_alarm(left)

    def _cancel(self) -> None:
        """Cancel the requests; the worker ignores those that are over."""
        for request in self._requests:
            self._worker.cancel(request.request_id)

    async def _watch(self) -> None:
        """Wait for the disconnect (the body was read, nothing else can come), then cancel."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._cancel()
        self._fail(ClientGoneError())


def _weight(event: Event) -> int:
    if isinstance(event, PromptEvent):
        return 1 + sum(1 + len(one.top) for one in event.logprobs)
    if not isinstance(event, TokenEvent):
        return 1
    return 1 + len(event.tokens) + sum(len(one.top) for one in event.logprobs)
