"""Passes a request to another server and its answer back; bodies are not touched.

Knows HTTP and ASGI; does not know which server should answer, nor what an answer says. An answer
is opened first, which may fail and be tried elsewhere, and relayed then, which happens once. Who
disconnects from us is disconnected from the other server, which so stops generating.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.types import Receive, Scope, Send

from headstart.gateway.router.upstream import (
    BrokenConnectionError,
    Connection,
    Connections,
    Origin,
    head_of,
)
from headstart.server.body import read_object
from headstart.server.errors import error_body, log_failure
from headstart.server.sse import event as sse_event
from headstart.server.threads import ClientGoneError
from headstart.types.errors import BackendError

T = TypeVar("T")
Headers = Sequence[tuple[bytes, bytes]]
Tap = Callable[[bytes], None]

# they belong to one connection (RFC 9110, 7.6.1), or are written anew for the next
HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
    b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
})  # fmt: skip
# of a request: who asks and from which page was judged here, and the other server has its own key
NOT_FORWARDED = HOP_BY_HOP | {
    b"authorization", b"content-length", b"expect", b"host", b"origin", b"referer", b"x-api-key",
}  # fmt: skip
# of an answer: our server writes its own
NOT_RETURNED = HOP_BY_HOP | {b"date", b"server"}
OWN_PREFIXES = (b"sec-fetch-", b"access-control-", b"cookie", b"set-cookie")
# below the seconds after which a server closes an idle connection, or a request could meet its end
KEEP_ALIVE_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    """How long to wait for another server, in seconds."""

    connect: float = 5.0
    silence: float = 3600.0  # between two pieces of an answer, and before the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A server that requests are passed to; `headers` (small letters) are added to each."""

    name: str  # for errors
    url: str  # without a slash at its end
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # its key is among them


@dataclass(frozen=True, slots=True)
class ProxiedRequest:
    """What a client asks: the whole body, and path and query as they came."""

    method: str
    target: str
    headers: Headers
    body: bytes = b""

    @classmethod
    def of(cls, scope: Scope, body: bytes) -> ProxiedRequest:
        """The request of an ASGI scope whose body was read."""
        query = scope.get("query_string", b"").decode("latin-1")
        path = scope.get("raw_path") or scope["path"].encode()
        target = path.decode("latin-1") + (f"?{query}" if query else "")
        return cls(scope["method"], target, scope["headers"], body)


class ProxiedAnswer:
    """An answer whose head is here, and the first piece of its body where that was waited for."""

    def __init__(self, backend: Backend, connection: Connection, owner: Proxy) -> None:
        self.backend = backend
        self.status = connection.status
        self.headers: Headers = [
            (name, value) for name, value in connection.headers if _passes(name, NOT_RETURNED)
        ]
        self._connection: Connection | None = connection
        self._owner = owner
        self._first: bytes | None = None

    @property
    def is_event_stream(self) -> bool:
        kinds = [value for name, value in self.headers if name == b"content-type"]
        return bool(kinds) and kinds[0].startswith(b"text/event-stream")

    async def read_first(self) -> None:
        """Wait for the first piece of the body.

        Raises:
            BackendError: the other server broke off before it.
        """
        self._first = await self._next()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes.

        Raises:
            BackendError: the other server broke off, or was silent for too long.
        """
        piece: bytes | None = self._first
        if piece is None:
            piece = await self._next()
        while piece:
            yield piece
            piece = await self._next()

    async def read(self) -> bytes:
        """The whole body, for those who use the answer themselves."""
        return b"".join([piece async for piece in self.pieces()])

    async def close(self) -> None:
        """Take no more of it: an answer that is not over ends at the other server as well."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._owner.connections.give_back(Origin.of(self.backend.url), connection)

    async def _next(self) -> bytes:
        if self._connection is None:
            return b""
        try:
            async with asyncio.timeout(self._owner.limits.silence):
                return await self._connection.read()
        except TimeoutError:
            raise BackendError(f"{self.backend.name} was silent for too long") from None
        except BrokenConnectionError:
            raise BackendError(f"{self.backend.name} broke off its answer") from None


class Proxy:
    """Connections to other servers, kept between requests. Belongs to one asyncio loop."""

    def __init__(self, limits: ProxyLimits | None = None) -> None:
        self.limits = limits or ProxyLimits()
        self.connections = Connections(KEEP_ALIVE_SECONDS)

    async def open(
        self, backend: Backend, request: ProxiedRequest, *, wants_first_piece: bool = True
    ) -> ProxiedAnswer:
        """Send a request; return when the answer has begun, whatever its status is.

        Args:
            wants_first_piece: wait for the begin of the body too, so that a failure before the
                first token is one before the answer. Not for streams that may say nothing.

        Raises:
            BackendError: no answer began; `was_sent` says whether the request may have been read.
        """
        connection = await self._send(backend, request)
        answer = ProxiedAnswer(backend, connection, self)
        if wants_first_piece:
            try:
                await answer.read_first()
            except BaseException:
                await answer.close()
                raise
        return answer

    async def _send(self, backend: Backend, request: ProxiedRequest) -> Connection:
        """Send it and wait for the head of its answer."""
        origin = Origin.of(backend.url)
        try:
            async with asyncio.timeout(self.limits.connect):
                connection = await self.connections.get(origin)
        except OSError:  # a time-out is one
            raise BackendError(f"{backend.name} cannot be reached", was_sent=False) from None
        try:
            head = head_of(
                request.method, origin.prefix + request.target, _forwarded(backend, request, origin)
            )
            connection.send(head, request.body, is_head_only=request.method == "HEAD")
            async with asyncio.timeout(self.limits.silence):
                await connection.wait_for_head()
        except TimeoutError:
            connection.close()
            raise BackendError(f"{backend.name} did not answer in time") from None
        except BrokenConnectionError:
            connection.close()
            raise BackendError(f"{backend.name} ended before it answered") from None
        except BaseException:
            connection.close()
            raise
        return connection

    async def close(self) -> None:
        self.connections.close()


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled if the client disconnects; its body was read.

    Raises:
        ClientGoneError: the client disconnected first.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def relay(
    answer: ProxiedAnswer, receive: Receive, send: Send, tap: Tap | None = None
) -> None:
    """Pass the answer on, piece by piece; `tap` sees each piece after it was sent.

    A stream of events that the other server breaks off ends with an event that says so; any other
    body ends without its end, which clients notice.

    Raises:
        ClientGoneError: the client disconnected; the other server is told.
        BackendError: the other server broke off a body that is no stream of events.
    """
    try:
        await unless_gone(receive, _relay(answer, send, tap))
    finally:
        await answer.close()


async def _relay(answer: ProxiedAnswer, send: Send, tap: Tap | None) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    try:
        async for piece in answer.pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            if tap is not None:
                tap(piece)
    except BackendError as error:
        if not answer.is_event_stream:
            raise
        log_failure(error)
        # a line that was cut is ended first, or the event would be a part of it
        await send({
            "type": "http.response.body",
            "body": b"\n\n" + sse_event(error_body(error)),
            "more_body": True,
        })  # fmt: skip
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request.

    Raises:
        ClientGoneError: the client disconnected before its end.
    """
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def named_model(body: bytes) -> object:
    """The field `model` of a JSON body; None where there is none, or no body.

    Raises:
        ApiError: the body is not a JSON object.
    """
    return read_object(body).get("model") if body else None


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _forwarded(
    backend: Backend, request: ProxiedRequest, origin: Origin
) -> list[tuple[bytes, bytes]]:
    own = {name.encode(): value.encode() for name, value in backend.headers.items()}
    headers = [
        (name, value)
        for name, value in request.headers
        if _passes(name, NOT_FORWARDED) and name not in own
    ]
    headers += [(b"host", origin.netloc.encode("latin-1")), *own.items()]
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        headers.append((b"content-length", b"%d" % len(request.body)))
    return headers


def _passes(name: bytes, excluded: frozenset[bytes]) -> bool:
    return name not in excluded and not name.startswith(OWN_PREFIXES)
