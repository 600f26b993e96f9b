"""Unloads the model after a time without requests; the next request loads it again.

Only POST requests count, so that monitoring by GET does not keep the model loaded.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from headstart.server.errors import error_response
from headstart.types.errors import HeadstartError
from headstart.types.worker import Worker


class IdleTimer:
    """Puts the worker to sleep. Call it on the app's event loop."""

    def __init__(self, worker: Worker, seconds: int) -> None:
        self._worker = worker
        self._seconds = seconds
        self._num_running = 0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Note a request and load the model if it is not loaded.

        Raises:
            UnavailableError: it cannot be loaded.
        """
        self._num_running += 1
        self._cancel()
        await self._worker.wake()

    def end(self) -> None:
        """Note the end of a request."""
        self._num_running -= 1
        self.restart()

    def restart(self) -> None:
        """Start the time again."""
        self._cancel()
        if not self._num_running:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._sleep)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sleep(self) -> None:
        self._task = asyncio.create_task(self._try())

    async def _try(self) -> None:
        if self._num_running:  # a request came meanwhile
            return
        await self._worker.sleep()
        if self._worker.status != "sleeping":  # something runs, or the engine is being restarted
            self.restart()


def waking(app: ASGIApp, *, timer: IdleTimer) -> ASGIApp:
    """ASGI middleware behind the guard: POST requests load the model and keep it loaded."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        try:
            try:
                await timer.begin()
            except HeadstartError as error:
                await error_response(error)(scope, receive, send)
                return
            await app(scope, receive, send)
        finally:
            timer.end()

    return answer
