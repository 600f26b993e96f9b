"""Connections to servers that answer in every way HTTP/1.1 allows, byte by byte if need be."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.gateway.backends import writing

from headstart.gateway.proxy import Backend, Proxy
from headstart.gateway.upstream import MAX_BUFFERED, Connection, head_of
from headstart.server.connections import MAX_HEAD_BYTES
from headstart.types.errors import BackendError

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\nhello"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE


async def connect(backend: Backend) -> Connection:
    return await Proxy()._connect(backend)


async def ask(connection: Connection, method: str = "GET") -> bytes:
    connection.send(head_of(method, "/", [(b"host", b"x")]), b"", is_head_only=method == "HEAD")
    async with asyncio.timeout(5):
        await connection.wait_for_head()
        body = b""
        while piece := await connection.read():
            body += piece
    return body


@pytest.mark.parametrize("step", [1, 7, 10**6])
@pytest.mark.parametrize(
    ("answer", "closes"),
    [(WHOLE, False), (CHUNKED, False), (UNTIL_CLOSED, True), (CONTINUED, False)],
    ids=["length", "chunked", "until closed", "after 100"],
)
async def test_every_kind_of_body_is_read_to_its_end(answer, closes, step) -> None:
    async with writing(answer, step=step, closes=closes) as backend:
        connection = await connect(backend)
        assert await ask(connection) == b"hello"
        assert connection.status == 200
        assert connection.can_be_reused == (not closes)
        connection.close()


async def test_a_connection_is_used_again_only_after_a_whole_answer() -> None:
    async with writing(WHOLE) as backend:
        proxy = Proxy()
        first = await proxy._connect(backend)
        await ask(first)
        proxy.give_back(first)
        second = await proxy._connect(backend)
        assert second is first
        second.send(head_of("GET", "/", []), b"", is_head_only=False)
        proxy.give_back(second)  # the answer has not come
        third = await proxy._connect(backend)
        assert third is not first
        await ask(third)
        proxy.give_back(third)
        async with writing(WHOLE) as elsewhere:  # under the same name
            assert (await proxy._connect(elsewhere)) is not third


async def test_an_answer_to_head_has_no_body() -> None:
    async with writing(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n") as backend:
        connection = await connect(backend)
        assert await ask(connection, "HEAD") == b""
        assert not connection.can_be_reused


@pytest.mark.parametrize(
    "answer",
    [b"", WHOLE[:20], WHOLE[:-1], CHUNKED[:-5], b"not HTTP at all\r\n\r\n"],
    ids=["nothing", "half a head", "short", "unfinished", "nonsense"],
)
async def test_what_is_cut_off_is_not_taken_for_an_end(answer) -> None:
    async with writing(answer, closes=True) as backend:
        with pytest.raises(BackendError):
            await ask(await connect(backend))


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"X-A: " + bytes([97]) * 2**21,
        HEAD + b"X-A: b\r\n" * 2**18,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 2**16,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2;x=" + bytes([97]) * 2**21,
    ],
    ids=["one header", "many headers", "many heads", "a chunk's extension"],
)
async def test_an_endless_head_is_not_read_into_memory(answer) -> None:
    """Issue 28, point 10."""
    async with writing(answer, step=65536) as backend:
        connection = await connect(backend)
        with pytest.raises(BackendError):
            await ask(connection)
        assert connection._num_unused <= 2**19, "what came in one read beyond the limit"
        assert MAX_HEAD_BYTES < 2**19


async def test_a_body_until_the_end_of_a_connection_that_we_end_is_not_whole() -> None:
    async with writing(UNTIL_CLOSED) as backend:
        connection = await connect(backend)
        connection.send(head_of("GET", "/", []), b"", is_head_only=False)
        await connection.wait_for_head()
        await connection.read()
        connection.close()
        with pytest.raises(BackendError):
            await connection.read()


async def test_a_server_waits_for_a_reader_that_is_slow() -> None:
    size = 40 * MAX_BUFFERED
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
    async with writing(head + bytes(size), step=65536) as backend:
        connection = await connect(backend)
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
    with pytest.raises(ValueError, match="line break"):
        head_of("GET", "/", [(b"x", b"a\r\nHost: other")])
