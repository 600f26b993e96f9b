"""Connections to servers that answer in every way HTTP/1.1 allows, byte by byte if need be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from headstart.gateway.router.upstream import (
    MAX_BUFFERED,
    BrokenConnectionError,
    Connections,
    Origin,
    head_of,
)

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\nhello"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE


@asynccontextmanager
async def serving(
    answer: bytes, *, step: int = 10**6, closes: bool = False
) -> AsyncIterator[Origin]:
    """A server that writes these bytes, so many at once, to whoever asks."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader, writer) -> None:
        writers.append(writer)
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
        yield Origin.of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()
        for writer in writers:
            writer.close()


async def ask(connections: Connections, origin: Origin, method: str = "GET"):
    connection = await connections.get(origin)
    head = head_of(method, "/", [(b"host", b"x")])
    connection.send(head, b"", is_head_only=method == "HEAD")
    async with asyncio.timeout(5):
        await connection.wait_for_head()
        body = b""
        while piece := await connection.read():
            body += piece
    return connection, body


@pytest.mark.parametrize("step", [1, 7, 10**6])
@pytest.mark.parametrize(
    ("answer", "closes"),
    [(WHOLE, False), (CHUNKED, False), (UNTIL_CLOSED, True), (CONTINUED, False)],
    ids=["length", "chunked", "until closed", "after 100"],
)
async def test_every_kind_of_body_is_read_to_its_end(answer, closes, step) -> None:
    async with serving(answer, step=step, closes=closes) as origin:
        connections = Connections(keep_alive_seconds=20)
        connection, body = await ask(connections, origin)
        assert (connection.status, body) == (200, b"hello")
        connections.give_back(origin, connection)
        assert connection.is_open == (not closes)
        connections.close()


async def test_a_connection_is_used_again_only_after_a_whole_answer() -> None:
    async with serving(WHOLE) as origin:
        connections = Connections(keep_alive_seconds=20)
        first, _ = await ask(connections, origin)
        connections.give_back(origin, first)
        second = await connections.get(origin)
        assert second is first
        second.send(head_of("GET", "/", []), b"", is_head_only=False)
        connections.give_back(origin, second)  # the answer has not come
        assert await connections.get(origin) is not first
        connections.close()


async def test_an_answer_to_head_has_no_body() -> None:
    async with serving(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n") as origin:
        connections = Connections(keep_alive_seconds=20)
        connection, body = await ask(connections, origin, "HEAD")
        assert (connection.status, body) == (200, b"")
        connections.give_back(origin, connection)
        assert not connection.can_be_used_again


@pytest.mark.parametrize(
    "answer",
    [b"", WHOLE[:20], WHOLE[:-1], CHUNKED[:-5], b"not HTTP at all\r\n\r\n"],
    ids=["nothing", "half a head", "short", "unfinished", "nonsense"],
)
async def test_what_is_cut_off_is_not_taken_for_an_end(answer) -> None:
    async with serving(answer, closes=True) as origin:
        with pytest.raises(BrokenConnectionError):
            await ask(Connections(keep_alive_seconds=20), origin)


async def test_a_server_waits_for_a_reader_that_is_slow() -> None:
    size = 40 * MAX_BUFFERED
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
    async with serving(head + bytes(size), step=65536) as origin:
        connection = await Connections(keep_alive_seconds=20).get(origin)
        connection.send(head_of("GET", "/", []), b"", is_head_only=False)
        await connection.wait_for_head()
        await asyncio.sleep(0.1)
        assert connection._num_buffered <= 2 * MAX_BUFFERED
        num_read = 0
        while piece := await connection.read():
            num_read += len(piece)
        assert num_read == size
        connection.close()


def test_a_head_cannot_hold_another_request() -> None:
    with pytest.raises(ValueError, match="end inside"):
        head_of("GET", "/", [(b"x", b"a\r\nHost: other")])


def test_an_address_is_taken_apart() -> None:
    origin = Origin.of("https://user@example.org/llm/")
    assert (origin.host, origin.port, origin.is_tls) == ("example.org", 443, True)
    assert (origin.netloc, origin.prefix) == ("example.org", "/llm")
