"""Writes header names as llama-server does: Content-Type, not content-type.

HTTP makes no difference, but a script that copies the headers into a plain dictionary does.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

# uvicorn compares these with lower-case names
_LEFT_ALONE = frozenset({b"content-length", b"transfer-encoding", b"connection"})


class HeaderName(bytes):
    """A name that uvicorn sends as it is: it would make it lower-case by this method."""

    def lower(self) -> bytes:
        return self


class HeaderNames:
    """ASGI middleware around everything."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_titled(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers: list[Any] = [(_title(k), v) for k, v in message.get("headers", ())]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_titled if scope["type"] == "http" else send)


@lru_cache(maxsize=256)
def _title(name: bytes) -> bytes:
    return name if name.lower() in _LEFT_ALONE else HeaderName(name.title())
