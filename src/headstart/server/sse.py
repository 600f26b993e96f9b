"""Server-sent events: how a stream is framed."""

from __future__ import annotations

from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"  # a comment: keeps proxies from closing a silent stream
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def event(data: Any) -> bytes:
    """Frame one JSON value."""
    return b"data: " + orjson.dumps(data) + b"\n\n"
