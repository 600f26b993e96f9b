"""Servers to pass requests to: a small ASGI app over real HTTP, in the test's own loop."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import ModuleType

import pytest
import uvicorn
from starlette.types import ASGIApp
from tests.planted import noted
from tests.quick_server import QuickServer

from headstart.gateway.proxy import Backend

# bodies that the server refuses to read, with what it says
NESTED = b'{"model": "a", "messages": ' + b'[{"a": ' * 150 + b"1" + b"}]" * 150 + b"}"
MANY = b'{"model": "a", "messages": [' + b"{}," * 400_000 + b"{}]}"
REFUSED = (
    (NESTED, "nested deeper than 250"),
    (MANY, "lists and objects"),
    (b"{", "not valid JSON"),
)


def cut_lines(sent: bytes) -> bytes:
    """What a server writes that ends within an answer of lines, as Ollama's streams are."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n"
    return head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(sent), sent)


def note_threads(patch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[bool]:
    """For each call of this function, whether it was in the event loop's thread."""
    loop = threading.get_ident()
    return noted(patch, module, name, note=lambda *_: threading.get_ident() == loop)


@asynccontextmanager
async def writing(
    answer: bytes, *, step: int = 10**6, closes: bool = False
) -> AsyncIterator[Backend]:
    """A server that writes these bytes, so many at once, to whoever asks."""
    writers: dict[asyncio.StreamWriter, asyncio.Task] = {}

    async def serve(reader, writer) -> None:
        writers[writer] = asyncio.current_task()
        while await reader.readuntil(b"\r\n\r\n"):
            for at in range(0, len(answer), step):
                writer.write(answer[at : at + step])
                await writer.drain()
                await asyncio.sleep(0)
            if closes:
                writer.close()
                return

    async def quietly(reader, writer) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(reader, writer)

    server = await asyncio.start_server(quietly, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield Backend(name="the model", url=f"http://127.0.0.1:{port}")
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*writers.values())


@asynccontextmanager
async def running(app: ASGIApp, lifespan: str = "off") -> AsyncIterator[str]:
    """The URL of a server of this app."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    config = uvicorn.Config(
        app, lifespan=lifespan, log_level="critical", ws="none", timeout_graceful_shutdown=1
    )
    server = QuickServer(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.001)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()
