"""Backends that answer in every way HTTP/1.1 allows, byte by byte if need be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from headstart.gateway.proxy import Backend, ProxiedRequest, Proxy
from headstart.types.errors import BackendError

HEAD = b"HTTP/1.1 200 OK\r\n"
WHOLE = HEAD + b"Content-Length: 5\r\nX-A: b\r\n\r\nhello"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
UNTIL_CLOSED = HEAD + b"\r\nhello"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE


class Serving:
    """A server that writes these bytes, so many at once, to whoever asks."""

    def __init__(self, answer: bytes, step: int, closes: bool) -> None:
        self.answer, self.step, self.closes = answer, step, closes
        self.num_written = 0
        self.writers: dict[asyncio.StreamWriter, asyncio.Task] = {}

    async def quietly(self, reader, writer) -> None:
        self.writers[writer] = asyncio.current_task()
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                for at in range(0, len(self.answer), self.step):
                    writer.write(self.answer[at : at + self.step])
                    await writer.drain()
                    self.num_written = at
                    await asyncio.sleep(0)
                if self.closes:
                    writer.close()
                    return


@asynccontextmanager
async def serving(
    answer: bytes, *, step: int = 10**6, closes: bool = False
) -> AsyncIterator[tuple[Backend, Serving]]:
    """The server as a backend, and what it has seen."""
    own = Serving(answer, step, closes)
    server = await asyncio.start_server(own.quietly, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield Backend(name="it", url=f"http://127.0.0.1:{port}"), own
    finally:
        server.close()
        for writer in own.writers:
            writer.transport.abort()
        await asyncio.gather(*own.writers.values())


async def ask(proxy: Proxy, backend: Backend, method: str = "GET") -> tuple[int, bytes]:
    async with asyncio.timeout(5):
        answer = await proxy.open(backend, ProxiedRequest(method, "/"))
        return answer.status, await answer.read()


@pytest.mark.parametrize("step", [1, 7, 10**6])
@pytest.mark.parametrize(
    ("answer", "closes"),
    [(WHOLE, False), (CHUNKED, False), (UNTIL_CLOSED, True), (CONTINUED, False)],
    ids=["length", "chunked", "until closed", "after 100"],
)
async def test_every_kind_of_body_is_read_to_its_end_and_its_connection_used_again(
    answer, closes, step
) -> None:
    async with serving(answer, step=step, closes=closes) as (backend, own):
        proxy = Proxy()
        for _ in range(2):
            assert await ask(proxy, backend) == (200, b"hello")
        assert len(own.writers) == 1 + closes
        await proxy.close()


async def test_a_connection_whose_answer_is_not_whole_is_not_used_again() -> None:
    async with serving(WHOLE) as (backend, own):
        proxy = Proxy()
        answer = await proxy.open(backend, ProxiedRequest("GET", "/"), wants_first_piece=False)
        await answer.close()
        assert await ask(proxy, backend) == (200, b"hello")
        assert len(own.writers) == 2
        async with serving(WHOLE) as (elsewhere, others):  # under the same name
            await ask(proxy, elsewhere)
            assert others.writers
        await proxy.close()


async def test_an_answer_to_head_has_no_body() -> None:
    async with serving(HEAD + b"Content-Length: 5\r\n\r\n") as (backend, _):
        proxy = Proxy()
        assert await ask(proxy, backend, "HEAD") == (200, b"")
        await proxy.close()


@pytest.mark.parametrize(
    "answer",
    [b"", WHOLE[:20], WHOLE[:-1], CHUNKED[:-5], b"not HTTP at all\r\n\r\n"],
    ids=["nothing", "half a head", "short", "unfinished", "nonsense"],
)
async def test_what_is_cut_off_is_not_taken_for_an_end(answer) -> None:
    async with serving(answer, closes=True) as (backend, _):
        with pytest.raises(BackendError):
            await ask(Proxy(), backend)


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"X-A: " + bytes([97]) * 2**25,
        HEAD + b"X-A: b\r\n" * 2**22,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2;x=" + bytes([97]) * 2**25,
    ],
    ids=["one header", "many headers", "a chunk's extension"],
)
async def test_an_endless_head_is_not_read_into_memory(answer) -> None:
    """Issue 28, point 10."""
    async with serving(answer, step=65536) as (backend, own):
        with pytest.raises(BackendError):
            await ask(Proxy(), backend)
        assert own.num_written < 2**24, "what lies in the buffers of the system"


async def test_heads_without_end_are_given_up() -> None:
    async with serving(b"HTTP/1.1 100 Continue\r\n\r\n" * 2**10, step=65536) as (backend, _):
        with pytest.raises(BackendError, match="in time"):
            await ask(Proxy(0.2), backend)


async def test_a_server_waits_for_a_reader_that_is_slow() -> None:
    size = 2**26
    head = HEAD + b"Content-Length: %d\r\n\r\n" % size
    async with serving(head + bytes(size), step=2**18) as (backend, own):
        proxy = Proxy()
        answer = await proxy.open(backend, ProxiedRequest("GET", "/"))
        await asyncio.sleep(0.1)
        assert own.num_written < size / 2
        assert sum([len(piece) async for piece in answer.pieces()]) == size
        await answer.close()
        await proxy.close()


async def test_a_head_cannot_hold_another_request() -> None:
    async with serving(WHOLE) as (backend, own):
        smuggled = ProxiedRequest("GET", "/", [(b"x", b"a\r\nHost: other")])
        with pytest.raises(BackendError):
            await Proxy().open(backend, smuggled)
        assert not own.num_written
