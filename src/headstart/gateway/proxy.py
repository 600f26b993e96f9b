"""Passes a request to a backend and the answer back, without touching the bodies.

Knows HTTP and ASGI, but neither which backend should answer nor the contents of answers. An answer
is opened first, which may fail and be retried elsewhere, and then relayed, which happens once. When
a client disconnects, the proxy disconnects from the backend, which stops generating.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

import orjson
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.types import Receive, Scope, Send

from headstart.config import ServerConfig
from headstart.gateway.upstream import Connection, head_of
from headstart.server.body import HEADER
from headstart.server.connections import affordable
from headstart.server.errors import error_body, log_failure
from headstart.server.kept_streams import KeptStream, KeptStreams
from headstart.server.sse import event as sse_event
from headstart.server.threads import unless_left
from headstart.structures.tenants import caller_of, counted, may_take
from headstart.types.errors import BackendError, CapacityError

Headers = Sequence[tuple[bytes, bytes]]
Tap = Callable[[bytes], None]
Open = Callable[[Receive, ExitStack], Awaitable[Connection]]
"""Returns an answer that has begun, unless `Receive` reports a disconnect; the stack's content is
released when it ends.
"""

# they belong to one connection (RFC 9110, 7.6.1), or are rewritten
HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
    b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
})  # fmt: skip
# of a request: client and web page were checked here, and the backend has its own key
NOT_FORWARDED = HOP_BY_HOP | {
    b"authorization", b"content-length", b"expect", b"host", b"origin", b"referer", b"x-api-key",
}  # fmt: skip
MAX_READ = 2**24  # bytes of an answer that is read here, not passed on
STREAMED_PATHS = ("/api/chat", "/api/generate")  # Ollama's: streams unless the body says otherwise
MAX_WAITING = 512  # requests that wait though their clients may be gone; half of it per tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A server that requests are passed to; `headers` (lower case) are added to each."""

    name: str  # for errors
    url: str  # without a slash at its end
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # with the API key


class Proxy:
    """Connections to backends, kept open between requests. Belongs to one asyncio loop.

    Args:
        silence_seconds: how long to wait for an answer, and for each further piece of it.
    """

    def __init__(self, silence_seconds: float = 3600.0) -> None:
        self._silence_seconds = silence_seconds
        self._idle: defaultdict[str, list[Connection]] = defaultdict(list)  # by name, as `_busy`
        self._busy: defaultdict[str, set[Connection]] = defaultdict(set)
        self._tls: ssl.SSLContext | None = None
        self._num_waiting = Counter[str]()  # requests that continue without a client, by tenant

    async def open(self, backend: Backend, scope: Scope, body: bytes = b"") -> Connection:
        """Send the request of an ASGI scope; return when the answer has begun, whatever its status
        is. Its connection is to be given back, by `relay` or `give_back`.

        An answer has begun with the start of its body, so that a failure before the first token
        precedes it; that of GET and HEAD, which may be a stream that stays silent, with its head.

        Raises:
            BackendError: no answer began; `was_sent` says whether the request may have been read.
        """
        connection = await self._connect(backend)
        self._busy[backend.name].add(connection)
        try:
            parts = urlsplit(backend.url)
            path = scope.get("raw_path") or scope["path"].encode()
            query = scope.get("query_string", b"")
            target = (path + b"?" + query if query else path).decode("latin-1")
            headers = _forwarded(backend, scope, len(body), parts.netloc.rpartition("@")[2])
            head = head_of(scope["method"], parts.path + target, headers)
            connection.send(head, body, is_head_only=scope["method"] == "HEAD")
            await connection.wait_for_head()
            if scope["method"] not in ("GET", "HEAD"):
                await connection.wait_for_body()
        except BaseException:
            self.give_back(connection)  # closes it: the answer is not complete
            raise
        return connection

    async def get(self, backend: Backend, path: str) -> tuple[int, bytes, dict[bytes, bytes]]:
        """Ask for a path: status, body and headers.

        Raises:
            BackendError: as in `open`, or the backend broke off, was silent for too long, or sends
                more than MAX_READ.
        """
        answer, body = await self.open(backend, {"method": "GET", "path": path}), bytearray()
        try:
            while piece := await answer.read():
                body += piece
                if len(body) > MAX_READ:
                    raise BackendError(f"{answer.name} sends more than {MAX_READ} bytes")
        finally:
            self.give_back(answer)
        return answer.status, bytes(body), dict(answer.headers)

    async def answer(
        self, http: HttpRequest, send: Send, open: Open, tap: Tap | None = None, *, stream: object
    ) -> None:
        """Open an answer and relay it. A stream of a conversation continues without its client, and
        is kept in the app's `streams`.

        stream: the field of the request's body; None: it has none.

        Raises:
            RequestError: the stream was stopped before it began.
            CapacityError: too many wait, perhaps without a client.
        """
        with ExitStack() as lease:
            conversation = http.headers.get(HEADER)
            is_stream = http.scope["path"] in STREAMED_PATHS if stream is None else bool(stream)
            if not (is_stream and conversation):
                answer = await open(http.receive, lease)
                await self.relay(answer, http.receive, send, tap)
                return
            tenant, waiting = caller_of(http.scope).tenant, self._num_waiting
            if not may_take(waiting, tenant, MAX_WAITING):
                raise CapacityError(
                    f"{waiting.total()} requests with {HEADER} wait for their answers; try again "
                    "later"
                )
            # the backend must not keep what is kept here
            named, headers = HEADER.encode(), http.scope["headers"]
            http.scope["headers"] = [one for one in headers if one[0] != named]
            streams: KeptStreams = http.app.state.streams
            with streams.beginning(tenant, conversation) as kept:
                with counted(waiting, tenant):
                    answer = await open(kept.receive, lease)
                if answer.status == 200 and "application/json" not in answer.media_type:
                    kept.begin(self._keep(answer, kept, tap, lease.pop_all()), answer.media_type)
            if kept.has_begun:
                await kept.response()(http.scope, http.receive, send)
            else:
                await self.relay(answer, http.receive, send, tap)

    async def _keep(
        self, answer: Connection, kept: KeptStream, tap: Tap | None, lease: ExitStack
    ) -> None:
        with lease:
            await self.relay(answer, kept.receive, kept.send, tap)

    async def relay(
        self, answer: Connection, receive: Receive, send: Send, tap: Tap | None = None
    ) -> None:
        """Relay the answer piece by piece; `tap` sees each piece after it was sent.

        If the backend fails, a stream of events ends with an error event, one of lines with an
        error line; any other body stays incomplete, which clients notice. When the client
        disconnects, so does the backend.
        """
        try:
            with suppress(ClientDisconnect):
                await unless_left(receive, _relay(answer, send, tap))
        finally:
            self.give_back(answer)

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next request if it can be reused, else close it: an incomplete
        answer is cancelled at the backend too.
        """
        self._busy[connection.name].discard(connection)
        idle = self._idle[connection.name]
        if connection.can_be_reused and len(idle) < 256:
            connection.used_at = time.monotonic()
            idle.append(connection)
        else:
            connection.close()

    def close_silent(self, name: str, seconds: float) -> None:
        """Abort requests to a backend that have waited `seconds` without an answer."""
        for connection in self._busy[name]:
            if connection.is_silent(seconds):
                connection.close()

    def close(self) -> None:
        """Close all idle connections."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def _connect(self, backend: Backend) -> Connection:
        """An idle connection, or a new one."""
        idle = self._idle[backend.name]
        while idle:
            connection = idle.pop()
            # servers close idle connections later than that
            is_fresh = time.monotonic() - connection.used_at < 20
            if connection.can_be_reused and is_fresh and connection.url == backend.url:
                return connection
            connection.close()
        parts = urlsplit(backend.url)
        if parts.scheme == "https" and self._tls is None:
            self._tls = ssl.create_default_context()
        tls = self._tls if parts.scheme == "https" else None
        port = parts.port or (443 if tls else 80)
        make = partial(Connection, backend.name, backend.url, self._silence_seconds)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(5):
                _, connection = await loop.create_connection(
                    make, parts.hostname or "", port, ssl=tls
                )
        except (OSError, UnicodeError):  # a time-out is one; a name may be none
            raise BackendError(f"{backend.name} cannot be reached", was_sent=False) from None
        return connection


def in_front(server: ServerConfig) -> ServerConfig:
    """Settings of a server in front of others, which may take images: each of its connections has
    one to a backend.
    """
    return affordable(server.with_images(), num_files=2)


async def _relay(answer: Connection, send: Send, tap: Tap | None) -> None:
    # our server writes its own date and server
    headers = _end_to_end(answer.headers, HOP_BY_HOP | {b"date", b"server"})
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    piece = b"\n"
    try:
        while piece := await answer.read():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            if tap is not None:
                tap(piece)
    except BackendError as error:
        log_failure(error)
        # line breaks end an event or a line that was cut, or the error would become part of it
        if answer.is_event_stream:
            end = b"\n\n" + sse_event(error_body(error))
        elif "application/x-ndjson" in answer.media_type:  # Ollama's; clients refuse empty lines
            line = orjson.dumps({"error": str(error)}) + b"\n"
            end = line if piece.endswith(b"\n") else b"\n" + line
        else:
            return
        await send({"type": "http.response.body", "body": end, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _forwarded(backend: Backend, scope: Scope, num_bytes: int, host: str) -> Headers:
    own = {name.encode(): value.encode() for name, value in backend.headers.items()}
    headers = [
        (name, value)
        for name, value in _end_to_end(scope.get("headers", ()), NOT_FORWARDED)
        if name not in own
    ]
    headers += [(b"host", host.encode("latin-1")), *own.items()]
    if num_bytes or scope["method"] in ("POST", "PUT", "PATCH"):
        headers.append((b"content-length", b"%d" % num_bytes))
    return headers


def _end_to_end(headers: Headers, excluded: frozenset[bytes]) -> Headers:
    """End-to-end headers: without those excluded, of this program, or named in `Connection`."""
    named = {
        part.strip().lower()
        for name, value in headers
        if name == b"connection"
        for part in value.split(b",")
    }
    excluded |= named
    return [
        (name, value)
        for name, value in headers
        if name not in excluded
        and not name.startswith((b"sec-fetch-", b"access-control-", b"cookie", b"set-cookie"))
    ]
