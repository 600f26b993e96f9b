"""Server-sent events: framing of streams, and limits on listeners of endless ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any
from weakref import WeakKeyDictionary

import orjson
from starlette.responses import StreamingResponse
from starlette.types import Scope

from headstart.structures.tenants import caller_of, may_take
from headstart.types.errors import CapacityError, QuotaError

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"  # a comment: keeps proxies from closing a silent stream
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
MAX_LISTENERS = 100  # 4 kB per event each


def event(data: Any, name: str = "") -> bytes:
    """Frame one JSON value, with the event's name if it has one."""
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + orjson.dumps(data) + b"\n\n"


class Broadcast:
    """Endless streams of the same events, to a limited number of listeners. Belongs to one asyncio
    loop.
    """

    def __init__(self, most_unread: int = 0) -> None:
        """`most_unread`: events kept for a listener that is slow, the newest ones; 0: all."""
        self._most_unread = most_unread
        # of each listener while its stream is referenced, and its tenant
        self._queues = WeakKeyDictionary[asyncio.Queue[Any], str]()
        self._is_over = False

    @property
    def has_listeners(self) -> bool:
        return bool(self._queues)

    def listen(self, tenant: str = "") -> asyncio.Queue[Any]:
        """Events from now on; None is the last."""
        queue = asyncio.Queue[Any](self._most_unread)
        if self._is_over:
            queue.put_nowait(None)
        self._queues[queue] = tenant
        return queue

    def tell(self, data: Any) -> None:
        """Send an event to all listeners; none after the last, which it could replace."""
        if self._is_over:
            return
        for queue in self._queues:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(data)

    def close(self) -> None:
        """End all streams, which would keep the server from ending."""
        self.tell(None)
        self._is_over = True

    def response(
        self, scope: Scope, first: Callable[[], bytes] = lambda: PING
    ) -> StreamingResponse:
        """All events from now on, after `first`.

        Raises:
            CapacityError: there are too many listeners.
            QuotaError: the tenant has used its share.
        """
        caller, path, held = caller_of(scope), scope["path"], Counter(self._queues.values())
        if caller.has_tenants and not may_take(held, caller.tenant, MAX_LISTENERS):
            raise QuotaError(
                "listeners",
                f"you have {held[caller.tenant]} of {MAX_LISTENERS} places for clients of {path}, "
                "and as many must stay free for other tenants; try again when one has left",
            )
        if held.total() >= MAX_LISTENERS:
            raise CapacityError(
                f"{MAX_LISTENERS} clients listen to {path}, and no more can; try again when one "
                "has left"
            )
        chunks = _chunks(self.listen(caller.tenant), first)
        return StreamingResponse(chunks, media_type="text/event-stream", headers=HEADERS)


async def _chunks(queue: asyncio.Queue[Any], first: Callable[[], bytes]) -> AsyncIterator[bytes]:
    yield first()
    while True:
        try:
            data = await asyncio.wait_for(queue.get(), 30)
        except TimeoutError:
            yield PING
            continue
        if data is None:
            return
        yield event(data)
