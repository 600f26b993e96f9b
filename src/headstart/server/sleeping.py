"""Unloads the model when nobody has asked for anything for a while; the next request loads it.

Only what is posted counts and wakes: /health, /props, /metrics and the lists answer from what is
known, so that whoever watches a server does not keep it awake.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from headstart.server.errors import error_response
from headstart.types.errors import HeadstartError
from headstart.types.worker import Worker


class IdleTimer:
    """Puts the worker to sleep. Belongs to the loop of the app."""

    def __init__(self, worker: Worker, seconds: int) -> None:
        self._worker = worker
        self._seconds = seconds
        self._num_running = 0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """A request came: the model is loaded when this returns.

        Raises:
            UnavailableError: it cannot be loaded.
        """
        self._num_running += 1
        self._cancel()
        await self._worker.wake()

    def end(self) -> None:
        """A request that began is over."""
        self._num_running -= 1
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
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
        if self._num_running:  # it came after the time was over, and has found the model loaded
            return
        await self._worker.sleep()
        if self._worker.status != "sleeping":  # something runs, or the engine is being restarted
            self.restart()


class Waking:
    """ASGI middleware behind the guard: what is posted wakes the model and keeps it awake."""

    def __init__(self, app: ASGIApp, *, timer: IdleTimer) -> None:
        self._app = app
        self._timer = timer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            try:
                await self._timer.begin()
            except HeadstartError as error:
                await error_response(error)(scope, receive, send)
                return
            await self._app(scope, receive, send)
        finally:
            self._timer.end()
