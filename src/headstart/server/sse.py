"""Server-sent events: how a stream is framed."""

from __future__ import annotations

from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"  # a comment: keeps proxies from closing a silent stream
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def event(data: Any, name: str = "") -> bytes:
    """Frame one JSON value, with the event's name if it has one."""
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + orjson.dumps(data) + b"\n\n"
