"""Connections to the servers that requests are passed to: HTTP/1.1 over asyncio, and nothing more.

A general client takes two milliseconds of processor time for a request; before a first token that
is a large part of all there is. No redirects, no cookies, no proxies, no compression.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import cast
from urllib.parse import urlsplit

import httptools

MAX_BUFFERED = 2**18  # bytes of a body that nobody has taken yet, before the server has to wait
NO_BODY = (204, 304)


class BrokenConnectionError(Exception):
    """The connection ended before the answer, or what came over it is no HTTP."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a server listens, and what stands before its paths."""

    host: str
    port: int
    is_tls: bool
    netloc: str
    prefix: str

    @classmethod
    def of(cls, url: str) -> Origin:
        """Of a URL without a query."""
        return _origin(url)


@lru_cache(maxsize=1024)
def _origin(url: str) -> Origin:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    netloc = parts.netloc.rpartition("@")[2]
    port = parts.port or (443 if is_tls else 80)
    return Origin(parts.hostname or "", port, is_tls, netloc, parts.path.rstrip("/"))


class Connection(asyncio.Protocol):
    """One connection, for one request after the other; httptools calls the `on_` methods."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._pieces: list[bytes] = []
        self._num_buffered = 0
        self._has_head = self._is_complete = self._is_kept = self._is_lost = False
        self._ends_with_connection = self._is_head_only = False
        self._waiting: asyncio.Future[None] | None = None

    def send(self, head: bytes, body: bytes, *, is_head_only: bool) -> None:
        """Send a request; what was known of the one before is forgotten."""
        assert self._transport is not None
        self.status, self.headers, self._pieces, self._num_buffered = 0, [], [], 0
        self._has_head = self._is_complete = self._is_kept = False
        self._ends_with_connection, self._is_head_only = True, is_head_only
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(head + body if len(body) < MAX_BUFFERED else head)
        if len(body) >= MAX_BUFFERED:
            self._transport.write(body)

    async def wait_for_head(self) -> None:
        """Return when status and headers are here.

        Raises:
            BrokenConnectionError: they will not come.
        """
        while not self._has_head:
            if self._is_lost:
                raise BrokenConnectionError
            await self._wait()

    async def read(self) -> bytes:
        """What came of the body; empty at its end.

        Raises:
            BrokenConnectionError: the end will not come.
        """
        while not self._pieces:
            if self._is_complete:
                return b""
            if self._is_lost:
                raise BrokenConnectionError
            await self._wait()
        pieces, self._pieces = self._pieces, []
        if self._num_buffered > MAX_BUFFERED and self._transport and not self._is_lost:
            self._transport.resume_reading()
        self._num_buffered = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @property
    def can_be_used_again(self) -> bool:
        """The last answer is over, and the server keeps the connection."""
        return self._is_kept and not self._is_lost and not self._pieces

    @property
    def is_open(self) -> bool:
        return not self._is_lost and self._transport is not None

    def close(self) -> None:
        """End it at once, whatever is on its way."""
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._is_complete:  # nobody asked
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._is_lost = True
            self.close()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._has_head and self._ends_with_connection and exc is None:
            self._is_complete = True
        self._is_lost = True
        self._wake()

    # httptools

    def on_message_begin(self) -> None:
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        self._has_head = self.status >= 200
        if self._has_head and (self._is_head_only or self.status in NO_BODY):
            self._is_complete = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._num_buffered += len(body)
        if self._num_buffered > MAX_BUFFERED and self._transport is not None:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self._has_head:
            self._is_complete = True
            self._is_kept = bool(self._parser.should_keep_alive())


class Connections:
    """Connections by server; those that are idle are used again. Belongs to one asyncio loop."""

    def __init__(self, keep_alive_seconds: float, max_idle: int = 256) -> None:
        self._keep_alive_seconds = keep_alive_seconds
        self._max_idle = max_idle
        self._idle: defaultdict[Origin, list[Connection]] = defaultdict(list)
        self._tls: ssl.SSLContext | None = None

    async def get(self, origin: Origin) -> Connection:
        """An idle connection, or a new one.

        Raises:
            OSError: the server cannot be reached.
        """
        now = time.monotonic()
        while self._idle[origin]:
            connection = self._idle[origin].pop()
            if connection.is_open and now - connection.idle_since < self._keep_alive_seconds:
                return connection
            connection.close()
        if origin.is_tls and self._tls is None:
            self._tls = ssl.create_default_context()
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, origin.host, origin.port, ssl=self._tls if origin.is_tls else None
        )
        return connection

    def give_back(self, origin: Origin, connection: Connection) -> None:
        """Keep it for the next request, or end it."""
        idle = self._idle[origin]
        if connection.can_be_used_again and len(idle) < self._max_idle:
            connection.idle_since = time.monotonic()
            idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """End all that are idle."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()


def head_of(method: str, target: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The head of a request.

    Raises:
        ValueError: a part of it would end its line.
    """
    lines = [f"{method} {target} HTTP/1.1".encode("latin-1")]
    lines += [name + b": " + value for name, value in headers]
    if any(b"\r" in line or b"\n" in line for line in lines):
        raise ValueError("a line of the request's head would have an end inside")
    return b"\r\n".join([*lines, b"\r\n"])
