from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import httpx2
import pytest
from starlette.requests import ClientDisconnect, Request
from tests.unit.gateway.backends import cut_lines, running, writing

from headstart.gateway import proxy as proxy_module
from headstart.gateway.proxy import Backend, Proxy
from headstart.server.errors import error_response
from headstart.server.threads import unless_left
from headstart.types.errors import BackendError

GET = {"method": "GET", "path": "/"}
JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream")]
CUT_OFF = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"


async def start(send, status=200, headers=JSON):
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def read_body(receive):
    return await Request({"type": "http"}, receive).body()


async def body(send, piece, more=False):
    await send({"type": "http.response.body", "body": piece, "more_body": more})


def noting(note):
    """A server that tells of each request and answers it."""

    async def backend(scope, receive, send):
        note(scope)
        await start(send)
        await body(send, b"{}")

    return backend


@asynccontextmanager
async def in_front_of(url, *, silence=3600.0, tap=None):
    """The URL of a server that passes everything on, as the router does."""
    proxy = Proxy(silence)
    backend = Backend(name="the model", url=url, headers={"authorization": "Bearer inner"})

    async def app(scope, receive, send):
        content = await read_body(receive)
        try:
            answer = await unless_left(receive, proxy.open(backend, scope, content))
        except BackendError as error:
            await error_response(error)(scope, receive, send)
            return
        except ClientDisconnect:
            return
        await proxy.relay(answer, receive, send, tap)

    async with running(app) as own:
        yield own
    proxy.close()


async def ask(server, method="POST", path="/v1/x?a=%20b", content=b"{}", **more):
    async with server as url, httpx2.AsyncClient(trust_env=False, timeout=60) as client:
        return await client.request(method, url + path, content=content, **more)


async def test_a_request_and_its_answer_pass_unchanged() -> None:
    seen = {}
    content = json.dumps({"text": "ä" * 200_000}).encode()

    async def backend(scope, receive, send):
        seen.update(scope, body=await read_body(receive))
        await start(send, 418, [*JSON, (b"x-own", b"1")])
        await body(send, content[:100_000], more=True)
        await body(send, content[100_000:])

    async with running(backend) as url:
        answer = await ask(in_front_of(url), content=content)
    assert (answer.status_code, answer.content) == (418, content)
    assert (answer.headers["x-own"], answer.headers["content-type"]) == ("1", "application/json")
    assert seen["body"] == content
    assert seen["raw_path"] == b"/v1/x"
    assert seen["query_string"] == b"a=%20b"


async def test_the_key_of_the_other_server_replaces_the_clients() -> None:
    seen = []
    async with running(noting(lambda scope: seen.extend(scope["headers"]))) as url:
        sent = {"authorization": "Bearer outer", "x-api-key": "outer", "origin": "http://evil"}
        await ask(in_front_of(url), headers=sent | {"sec-fetch-site": "same-origin"})
    headers = dict(seen)
    assert [value for name, value in seen if name == b"authorization"] == [b"Bearer inner"]
    assert {b"x-api-key", b"origin", b"sec-fetch-site"}.isdisjoint(headers)
    assert headers[b"host"].startswith(b"127.0.0.1:")
    assert "inner" not in repr(Backend(name="a", url=url, headers={"authorization": "inner"}))


async def test_headers_of_one_connection_are_not_passed_on() -> None:
    async def backend(scope, receive, send):
        seen.extend(scope["headers"])
        own = [(b"keep-alive", b"timeout=1"), (b"server", b"other"), (b"x-hop", b"1")]
        await start(send, 200, [*JSON, *own, (b"connection", b"X-Hop, close")])
        await body(send, b"{}")

    seen: list[tuple[bytes, bytes]] = []
    async with running(backend) as url:
        sent = {"connection": "keep-alive, X-Secret", "x-secret": "1", "x-kept": "1"}
        answer = await ask(in_front_of(url), headers=sent)
    names = {name for name, _ in seen}
    assert b"x-kept" in names
    assert {b"x-secret", b"connection"}.isdisjoint(names)
    assert {"keep-alive", "x-hop"}.isdisjoint(answer.headers)
    assert answer.headers.get_list("server") == ["uvicorn"]
    assert len(answer.headers.get_list("date")) == 1


async def test_an_address_may_have_a_path_and_a_user() -> None:
    seen = {}
    async with running(noting(seen.update)) as url:
        await ask(in_front_of(url.replace("//", "//user@") + "/llm"))
    assert seen["raw_path"] == b"/llm/v1/x"
    assert dict(seen["headers"])[b"host"] == url.removeprefix("http://").encode()


async def test_each_piece_of_a_stream_passes_when_it_comes() -> None:
    go_on = asyncio.Event()
    taps: list[bytes] = []

    async def backend(scope, receive, send):
        await start(send, headers=EVENTS)
        await body(send, b"data: 1\n\n", more=True)
        await go_on.wait()
        await body(send, b"data: 2\n\n")

    async with (
        running(backend) as inner,
        in_front_of(inner, tap=taps.append) as url,
        httpx2.AsyncClient(trust_env=False, timeout=60) as client,
        client.stream("POST", url, content=b"{}") as answer,
    ):
        pieces = answer.aiter_raw()
        assert await anext(pieces) == b"data: 1\n\n"
        go_on.set()
        assert await anext(pieces) == b"data: 2\n\n"
        assert await anext(pieces, None) is None
    assert taps == [b"data: 1\n\n", b"data: 2\n\n"]


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_client_that_disconnects_is_gone_at_the_other_server_too(has_begun) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def backend(scope, receive, send):
        await read_body(receive)
        if has_begun:
            await start(send, headers=EVENTS)
            await body(send, b"data: 1\n\n", more=True)
        asked.set()
        assert (await receive())["type"] == "http.disconnect"
        gone.set()

    async with running(backend) as inner, in_front_of(inner) as url:
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
            request = asyncio.create_task(client.post(url, content=b"{}"))
            await asyncio.wait_for(asked.wait(), 5)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
        await asyncio.wait_for(gone.wait(), 5)


async def test_a_server_that_is_not_there_was_not_sent_the_request() -> None:
    async with running(lambda *_: None) as url:
        pass
    proxy = Proxy()
    with pytest.raises(BackendError, match="the model cannot be reached") as caught:
        await proxy.open(Backend(name="the model", url=url), GET)
    proxy.close()
    assert not caught.value.was_sent
    answer = await ask(in_front_of(url))
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, 502)


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"])
async def test_a_server_that_ends_before_the_first_piece_gives_an_error(says) -> None:
    async with writing(says, closes=True) as backend:
        answer = await ask(in_front_of(backend.url))
    assert answer.status_code == 502
    assert "the model" in answer.json()["error"]["message"]


async def test_a_body_that_breaks_off_is_not_taken_for_a_whole_one() -> None:
    async with writing(CUT_OFF, closes=True) as backend:
        with pytest.raises(httpx2.RemoteProtocolError):
            await ask(in_front_of(backend.url))


@pytest.mark.parametrize(("sent", "added"), [(b'{"a": 1}\n', b""), (b'{"a":', b"\n")])
async def test_a_stream_of_lines_that_breaks_off_ends_with_an_error_line(sent, added) -> None:
    async with writing(cut_lines(sent), closes=True) as backend:
        answer = await ask(in_front_of(backend.url))
    assert answer.content == sent + added + b'{"error":"the model broke off its answer"}\n'


async def test_a_silent_server_is_given_up_after_the_time_limit() -> None:
    async def backend(scope, receive, send):
        await receive()
        await asyncio.wait_for(receive(), 60)

    async with running(backend) as url:
        answer = await ask(in_front_of(url, silence=0.05))
    assert answer.status_code == 502
    assert "in time" in answer.json()["error"]["message"]


async def test_a_connection_is_used_again() -> None:
    ports = set()
    async with (
        running(noting(lambda scope: ports.add(scope["client"][1]))) as inner,
        in_front_of(inner) as url,
        httpx2.AsyncClient(trust_env=False, timeout=60) as client,
    ):
        for _ in range(3):
            assert (await client.post(url, content=b"{}")).status_code == 200
    assert len(ports) == 1


async def test_an_answer_that_is_read_here_has_a_limit(monkeypatch) -> None:
    monkeypatch.setattr(proxy_module, "MAX_READ", 1000)

    async def backend(scope, receive, send):
        await start(send)
        for _ in range(10):
            await body(send, bytes(500), more=True)
        await body(send, b"")

    async with running(backend) as url:
        proxy = Proxy()
        with pytest.raises(BackendError, match="the model sends more than 1000 bytes"):
            await proxy.get(Backend(name="the model", url=url), "/")
        assert not proxy._busy["the model"]
        proxy.close()


async def test_an_answer_that_breaks_off_while_it_is_read_here_leaves_no_connection() -> None:
    async with writing(CUT_OFF, closes=True) as backend:
        proxy = Proxy()
        with pytest.raises(BackendError):
            await proxy.get(backend, "/")
        assert not proxy._busy["the model"]


async def test_a_name_that_is_none_cannot_be_reached() -> None:
    backend = Backend(name="the model", url="http://10.0.0..2:80")
    with pytest.raises(BackendError, match="cannot be reached"):
        await Proxy().open(backend, GET)


async def test_only_requests_that_wait_for_so_long_are_broken_off() -> None:
    async def backend(scope, receive, send):
        await receive()
        assert (await receive())["type"] == "http.disconnect"

    async with running(backend) as url:
        proxy = Proxy()
        backend_there = Backend(name="the model", url=url)
        waiting = asyncio.create_task(proxy.open(backend_there, GET))
        while not any(one.is_silent(0.0) for one in proxy._busy["the model"]):
            await asyncio.sleep(0.001)
        proxy.close_silent("the model", 3600.0)
        proxy.close_silent("another", 0.0)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        proxy.close_silent("the model", 0.0)
        with pytest.raises(BackendError, match="ended before it answered"):
            await waiting
