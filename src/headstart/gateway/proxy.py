"""Passes a request to a backend and the answer back, without touching the bodies.

Knows HTTP and ASGI; does not know which backend should answer, nor what an answer says. An answer
is opened first, which may fail and be tried elsewhere, and then relayed, which happens once. When a
client disconnects, so does the proxy from the backend, which stops generating.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpcore2
from starlette.types import Receive, Scope, Send

from headstart.server.errors import error_body, log_failure
from headstart.server.sse import event as sse_event
from headstart.server.threads import unless_left
from headstart.types.errors import BackendError

Headers = Sequence[tuple[bytes, bytes]]

# they belong to one connection (RFC 9110, 7.6.1), or are written anew for the next
HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
    b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
})  # fmt: skip
MAX_READ = 2**24  # bytes of an answer that is read here, not passed on


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A server that requests are passed to; `headers` (lower case) are added to each."""

    name: str  # for errors
    url: str  # without a slash at its end
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # with the API key


@dataclass(frozen=True, slots=True)
class ProxiedRequest:
    """A client's request: the whole body, path and query as they came."""

    method: str
    target: str
    headers: Headers = ()
    body: bytes = b""

    @classmethod
    def of(cls, scope: Scope, body: bytes) -> ProxiedRequest:
        """The request of an ASGI scope whose body was read."""
        query = scope.get("query_string", b"").decode("latin-1")
        path = scope.get("raw_path") or scope["path"].encode()
        target = path.decode("latin-1") + (f"?{query}" if query else "")
        return cls(scope["method"], target, scope["headers"], body)


class ProxiedAnswer:
    """An answer whose head has arrived."""

    def __init__(self, backend: Backend, response: httpcore2.Response, proxy: Proxy) -> None:
        self.status = response.status
        headers = [(name.lower(), value) for name, value in response.headers]
        # our server writes its own date and server
        self.headers = _end_to_end(headers, HOP_BY_HOP | {b"date", b"server"})
        self._backend, self._response, self._proxy = backend, response, proxy
        self._body = response.aiter_stream()
        self._piece: bytes | None = None  # that has arrived

    def has_content_type(self, kind: bytes) -> bool:
        """Whether the content type contains this."""
        return any(name == b"content-type" and kind in value for name, value in self.headers)

    @property
    def is_event_stream(self) -> bool:
        return self.has_content_type(b"text/event-stream")

    async def wait(self) -> None:
        """Return when a piece of the body, or its end, has arrived; errors as of `pieces`."""
        if self._piece is None:
            async with self._proxy.patience(self._backend, "broke off its answer"):
                self._piece = await anext(self._body, b"")

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives.

        Raises:
            BackendError: the backend broke off, or was silent for too long.
        """
        await self.wait()
        while piece := self._piece:
            yield piece
            self._piece = None
            await self.wait()

    async def read(self) -> bytes:
        """The whole body, for answers to our own requests; closes the answer.

        Raises:
            BackendError: as `pieces`, or the body is longer than MAX_READ.
        """
        body = bytearray()
        try:
            async for piece in self.pieces():
                body += piece
                if len(body) > MAX_READ:
                    raise BackendError(f"{self._backend.name} sends more than {MAX_READ} bytes")
        finally:
            await self.close()
        return bytes(body)

    async def close(self) -> None:
        """Stop reading; an incomplete answer is cancelled at the backend too."""
        await self._response.aclose()


class Proxy:
    """Connections to backends, kept open between requests. Belongs to one asyncio loop.

    Args:
        silence_seconds: how long to wait for an answer, and for each further piece of it.
    """

    def __init__(self, silence_seconds: float = 3600.0) -> None:
        self._silence_seconds = silence_seconds
        self._waits: defaultdict[str, set[asyncio.Timeout]] = defaultdict(set)  # by backend
        self._connections = httpcore2.AsyncConnectionPool(
            ssl.create_default_context(),
            max_connections=None,
            max_keepalive_connections=64,
            keepalive_expiry=20,  # servers close idle connections later than that
        )

    async def open(
        self, backend: Backend, request: ProxiedRequest, *, wants_first_piece: bool = True
    ) -> ProxiedAnswer:
        """Send a request; return when the answer has begun, whatever its status is.

        Args:
            wants_first_piece: wait for the beginning of the body too, so that a failure before the
                first token is one before the answer. Not for streams that may stay silent.

        Raises:
            BackendError: no answer began; `was_sent` says whether the request may have been read.
        """
        parts = urlsplit(backend.url)
        sent = httpcore2.Request(
            request.method,
            httpcore2.URL(
                scheme=parts.scheme,
                host=parts.hostname or "",
                port=parts.port,
                target=parts.path + request.target,
            ),
            headers=_forwarded(backend, request, parts.netloc.rpartition("@")[2]),
            content=request.body,
            extensions={"timeout": {"connect": 5}},
        )
        try:
            async with self.patience(backend, "ended before it answered"):
                response = await self._connections.handle_async_request(sent)
        # a name may be none
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout, UnicodeError):
            raise BackendError(f"{backend.name} cannot be reached", was_sent=False) from None
        answer = ProxiedAnswer(backend, response, self)
        if wants_first_piece:
            try:
                await answer.wait()
            except BaseException:
                await answer.close()
                raise
        return answer

    @asynccontextmanager
    async def patience(self, backend: Backend, if_lost: str) -> AsyncIterator[None]:
        """Limit the wait for a part of an answer, and say what became of it.

        Raises:
            BackendError: it did not come in time, or will not come.
        """
        try:
            async with asyncio.timeout(self._silence_seconds) as limit:
                self._waits[backend.name].add(limit)
                try:
                    yield
                finally:
                    self._waits[backend.name].discard(limit)
        except TimeoutError:
            raise BackendError(f"{backend.name} did not answer in time") from None
        except (httpcore2.ReadError, httpcore2.ProtocolError):
            raise BackendError(f"{backend.name} {if_lost}") from None

    def close_silent(self, name: str, seconds: float) -> None:
        """Break off the requests to a backend that have waited for so long without an answer."""
        now = asyncio.get_running_loop().time()
        for limit in self._waits[name]:
            if (end := limit.when()) is not None and end - self._silence_seconds <= now - seconds:
                limit.reschedule(now)

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.aclose()


async def relay(
    answer: ProxiedAnswer,
    receive: Receive,
    send: Send,
    tap: Callable[[bytes], None] | None = None,
) -> None:
    """Pass the answer on, piece by piece; `tap` sees each piece after it was sent.

    If the backend breaks off, a stream of events ends with an event that says so; any other body
    stays incomplete, which clients notice.

    Raises:
        ClientDisconnect: the client disconnected; the backend is disconnected too.
    """
    try:
        await unless_left(receive, _relay(answer, send, tap))
    finally:
        await answer.close()


async def _relay(answer: ProxiedAnswer, send: Send, tap: Callable[[bytes], None] | None) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    try:
        async for piece in answer.pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            if tap is not None:
                tap(piece)
    except BackendError as error:
        log_failure(error)
        if not answer.is_event_stream:
            return
        # the blank line ends an event that was cut, or this one would become part of it
        end = b"\n\n" + sse_event(error_body(error))
        await send({"type": "http.response.body", "body": end, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _forwarded(backend: Backend, request: ProxiedRequest, host: str) -> Headers:
    own = {name.encode(): value.encode() for name, value in backend.headers.items()}
    # client and web page were checked here, and the backend has a key of its own
    checked = {
        b"authorization", b"content-length", b"expect", b"host", b"origin", b"referer",
        b"x-api-key",
    }  # fmt: skip
    headers = list(_end_to_end(request.headers, HOP_BY_HOP.union(checked, own)))
    headers += [(b"host", host.encode("latin-1")), *own.items()]
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        headers.append((b"content-length", b"%d" % len(request.body)))
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
