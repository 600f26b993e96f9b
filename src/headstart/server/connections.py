"""Limits on connections, which apply before any key is checked.

Adds the usual limits of web servers to uvicorn's protocol: size of a head, a time limit for a head,
for the next piece of a body and for a client that does not read, and number of connections. A
client over a limit gets an error if HTTP still allows one, and is disconnected.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headstart.config import ServerConfig
from headstart.server.errors import ApiError, error_response
from headstart.structures.system import allow_files
from headstart.types.errors import CapacityError, HeadstartError

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 << 10
MAX_PIPELINED = 16  # requests of one connection queued behind earlier answers
# for a whole head, between two pieces of a body, and without reading once the buffers are full
PAUSE_SECONDS = 60.0
_LONG_HEAD = f"the head of the request is larger than {MAX_HEAD_BYTES >> 10} KiB; shorten it"


class LimitedProtocol(HttpToolsProtocol):
    """A connection with limits; `timeout` shortens the time limit."""

    def __init__(self, *, max_connections: int, timeout: float, **rest: Any) -> None:
        super().__init__(**rest)
        self._max_connections = max_connections
        self._pause_seconds = min(PAUSE_SECONDS, timeout)
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        # the request being answered; `cycle` is the last one read
        self._running: RequestResponseCycle | None = None
        self._is_refused = False
        self._is_reading_body = False
        self._num_unused = 0  # bytes received that are not yet part of a body
        self._num_head_bytes = 0
        self.idle_since: float | None = None  # None while a request is being answered
        self.has_answered = False

    # narrower than asyncio's protocol, as uvicorn's own is
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._max_connections and not self._close_another():
            words = f"{self._max_connections} connections are open; try again later"
            self._refuse(CapacityError(words))
            return
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._stall):
            if timer is not None:
                timer.cancel()
        for cycle, _ in self.pipeline:
            cycle.disconnected = True
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def _close_another(self) -> bool:
        """Close the connection that has been idle longest, preferably one that never sent a
        request; returns whether there was one.
        """
        idle = [
            one
            for one in self.connections
            if isinstance(one, LimitedProtocol) and one.idle_since is not None and one is not self
        ]
        if not idle:
            return False
        oldest = min(idle, key=lambda one: (one.has_answered, one.idle_since or 0.0))
        oldest.idle_since = None
        oldest.transport.abort()
        return True

    def data_received(self, data: bytes) -> None:
        if self._is_refused or self.parser is None:
            return
        self._num_unused += len(data)
        super().data_received(data)
        if self._is_refused or self.transport.is_closing():
            return
        if self._num_unused > MAX_HEAD_BYTES:
            self._refuse(ApiError(431, _LONG_HEAD))
        elif self._is_reading_body:
            self._set_timer(self._body_is_late)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope, flow, transport = cast("dict[str, Any]", self.scope), self.flow, self.transport
        scope["headstart.is_paused"] = lambda: flow.write_paused or transport.is_closing()
        scope["headstart.write"] = transport.write
        self._num_head_bytes = 0
        if self._timer is None:  # the next request on this connection
            self._wait_for_head()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._num_head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_reading_body:  # after it: proxies check and remove what comes first
            return
        super().on_header(name, value)
        self._num_head_bytes += len(name) + len(value)

    def on_headers_complete(self) -> None:
        self._clear_timer()
        if self._is_refused:
            return
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._refuse(ApiError(431, _LONG_HEAD))
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            words = f"more than {MAX_PIPELINED} requests wait on one connection; open another"
            self._refuse(ApiError(400, words))
            return
        self._num_unused, self._is_reading_body, self.idle_since = 0, True, None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_unused = 0
        if self.cycle is not None and not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_unused, self._is_reading_body = 0, False
        self._clear_timer()
        if self.cycle is not None and not self._is_refused:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self._running, self.has_answered = None, True
        super().on_response_complete()
        if self._running is None and not self._is_reading_body:
            self.idle_since = self.loop.time()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(self._pause_seconds, self._reader_is_late)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, "this is not HTTP; send an HTTP/1.1 request"))

    def _wait_for_head(self) -> None:
        if self._running is None:
            self.idle_since = self.loop.time()
        self._set_timer(self._head_is_late)

    def _set_timer(self, late: Any) -> None:
        self._clear_timer()
        self._timer = self.loop.call_later(self._pause_seconds, late)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_is_late(self) -> None:
        self._timer = None
        if not self._num_unused:  # no request has begun
            self.transport.close()
            return
        self._refuse(
            ApiError(408, f"no whole request head came within {self._pause_seconds:g} seconds")
        )

    def _body_is_late(self) -> None:
        self._timer = None
        if self.flow.read_paused:  # the server has paused reading
            self._set_timer(self._body_is_late)
            return
        self._refuse(ApiError(408, f"nothing of the body came for {self._pause_seconds:g} seconds"))

    def _reader_is_late(self) -> None:
        """The buffers are full, so no error can be sent."""
        self._stall = None
        log.info("a client did not read its answer for %g s", self._pause_seconds)
        self.transport.abort()

    def _refuse(self, error: HeadstartError) -> None:
        """Send an error unless an answer has begun, and close."""
        self._is_refused = True
        self._clear_timer()
        running = self._running
        if running is None or running.response_complete or not running.response_started:
            self._write_error(error)
        if running is not None:  # ends reading its body
            running.disconnected = True
            running.message_event.set()
        self.transport.close()

    def _write_error(self, error: HeadstartError) -> None:
        response = error_response(error)
        response.headers["connection"] = "close"
        lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in response.headers.items()]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + bytes(response.body))


def affordable(config: ServerConfig, num_files: int) -> ServerConfig:
    """The settings with no more connections, of so many files each, than the limit on open files
    allows, after raising it as far as permitted.
    """
    wanted = config.max_connections
    others = 64  # other open files: models, pipes, the log
    needed = num_files * wanted + others
    files = allow_files(needed)
    if files is None or files >= needed:
        return config
    left = max(16, (files - others) // num_files)
    log.warning(
        "this process may open %d files, so it accepts %d connections instead of %d; allow %d "
        "(ulimit -n)",
        files,
        left,
        wanted,
        needed,
    )
    return replace(config, max_connections=left)
