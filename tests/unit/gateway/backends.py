"""Servers to pass requests to: a small ASGI app over real HTTP, in the test's own loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import uvicorn
from starlette.types import ASGIApp


class QuietServer(uvicorn.Server):
    """Leaves the signals of the test's process alone."""

    def capture_signals(self):
        return nullcontext()


@asynccontextmanager
async def running(app: ASGIApp, lifespan: str = "off") -> AsyncIterator[str]:
    """The URL of a server of this app."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    config = uvicorn.Config(
        app, lifespan=lifespan, log_level="critical", ws="none", timeout_graceful_shutdown=1
    )
    server = QuietServer(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.001)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()
