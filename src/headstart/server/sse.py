"""Server-sent events: framing of streams, and limits on listeners of endless ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterable
from typing import Any

import orjson
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from headstart.server.errors import ApiError
from headstart.structures.tenants import caller_of, counted, may_take
from headstart.types.errors import QuotaError

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"  # a comment: keeps proxies from closing a silent stream
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
MAX_LISTENERS = 100  # 4 kB per event each
RETRY_SECONDS = 5


def event(data: Any, name: str = "") -> bytes:
    """Frame one JSON value, with the event's name if it has one."""
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + orjson.dumps(data) + b"\n\n"


class Listening(StreamingResponse):
    """A stream without an end; counts as a listener until the client leaves."""

    def __init__(self, events: AsyncIterable[bytes], listeners: Counter[str], scope: Scope) -> None:
        """`listeners`: number of listeners by tenant.

        Raises:
            ApiError: there are too many.
            QuotaError: the tenant has used its share.
        """
        caller = caller_of(scope)
        self._listeners, self._tenant = listeners, caller.tenant
        num, path = listeners[caller.tenant], scope["path"]
        if caller.has_tenants and not may_take(listeners, caller.tenant, MAX_LISTENERS):
            raise QuotaError(
                "listeners",
                f"you have {num} of {MAX_LISTENERS} places for clients of {path}, and as many must "
                "stay free for other tenants; try again when one has left",
                RETRY_SECONDS,
            )
        if listeners.total() >= MAX_LISTENERS:
            raise ApiError(
                503,
                f"{MAX_LISTENERS} clients listen to {path}, and no more can; try again when one "
                "has left",
                retry_after=RETRY_SECONDS,
            )
        super().__init__(events, media_type="text/event-stream", headers=HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with counted(self._listeners, self._tenant):
            await super().__call__(scope, receive, send)
