"""The router before servers that do as they are told: retries, refusals, what is passed on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import httpx2
import orjson
import pytest
from starlette.requests import Request
from tests.unit.gateway.backends import REFUSED, note_threads, running

from headstart.config import ServerConfig
from headstart.gateway.balancer import fleet as fleet_module
from headstart.gateway.balancer import health, routing
from headstart.gateway.balancer.app import create_app
from headstart.gateway.balancer.fleet import Fleet, Replica
from headstart.gateway.balancer.options import BalancerOptions, RoutingOptions
from headstart.gateway.balancer.policy import Load, Prices
from headstart.gateway.proxy import Backend
from headstart.types.errors import ConfigError

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}
EVENTS = [
    b'data: {"choices": [{"index": 0, "delta": {"content": "one "}}]}\n\n',
    b": ping\n\n",
    b'data: {"choices": [{"index": 0, "delta": {"content": "two"}}],"timings": {"cache_n": 0, '
    b'"prompt_n": 40, "prompt_ms": 4, "predicted_n": 2, "predicted_ms": 1}}\n\n',
    b"data: [DONE]\n\n",
]


class Scripted:
    """A backend: what it answers to a chat, and what it was asked."""

    def __init__(self, status: int = 200, name: str = "") -> None:
        self.status = status
        self.name = name
        self.dies_after: int | None = None  # pieces
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.stored = "none"
        self.refusal = ""  # of what it does not know
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.chats: list[dict] = []
        self.keys: list[str | None] = []

    async def __call__(self, scope, receive, send) -> None:
        headers = dict(scope["headers"])
        await self.may_answer.wait()
        if scope["path"] != CHAT:
            known = scope["path"] in ("/health", "/metrics", "/who")
            known |= self.stored in scope["path"]
            is_busy = self.stored in scope["path"] and self.status == 503
            unknown = 400 if self.refusal else 404
            said = [(self.refusal or "{}").encode()]
            await self._send(send, 503 if is_busy else 200 if known else unknown, said)
            return
        self.chats.append(await Request(scope, receive).json())
        self.keys.append(headers.get(b"authorization", b"").decode() or None)
        if self.status != 200:
            await self._send(send, self.status, [b'{"error": {"message": "no", "code": 1}}'])
            return
        await self._send(send, 200, EVENTS, b"text/event-stream")

    async def _send(self, send, status, pieces, kind=b"application/json") -> None:
        start = {"type": "http.response.start", "status": status}
        await send(start | {"headers": [(b"content-type", kind), (b"x-by", self.name.encode())]})
        for i, piece in enumerate(pieces):
            if i == self.dies_after and kind != b"application/json":
                raise RuntimeError("the backend crashes")
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            if i == 0 and kind != b"application/json":
                await self.may_go_on.wait()
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def routed(
    *backends: Scripted,
    key: str | None = None,
    watch: Callable[[], Coroutine[None, None, None]] | None = None,
    **options: float,
) -> AsyncIterator[tuple[httpx2.AsyncClient, Fleet]]:
    """A client of a router before these backends, which rank in this order."""
    fleet = Fleet()
    async with AsyncExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(fleet_module, "ranking", lambda costs, conversation, last: list(costs))
        for i, backend in enumerate(backends):
            backend.name = f"b{i}"
            url = await stack.enter_async_context(running(backend))
            own = Backend(name=backend.name, url=url, headers={"authorization": "Bearer own"})
            fleet.replicas[backend.name] = Replica(own)
        told = {one.name: one.reported for one in fleet.replicas.values()}
        options = {"health_seconds": 30, **options}
        app = create_app(ServerConfig(api_key=key), fleet, RoutingOptions(**options), watch)
        url = await stack.enter_async_context(running(app, lifespan="on"))
        while any(one.reported is told[one.name] for one in fleet.replicas.values()):
            await asyncio.sleep(0.002)  # until all were asked how they are, which is not repeated
        client = httpx2.AsyncClient(base_url=url, trust_env=False, timeout=20)
        yield await stack.enter_async_context(client), fleet


async def settled(fleet: Fleet) -> None:
    """The answers have been read to their end by the router as well."""
    while any(one.flights for one in fleet.replicas.values()):
        await asyncio.sleep(0.002)


async def chat(client: httpx2.AsyncClient, **more) -> httpx2.Response:
    return await client.post(CHAT, json=BODY | more)


async def test_a_stream_passes_byte_by_byte_and_its_timings_are_learned() -> None:
    async with routed(Scripted()) as (client, fleet):
        response = await chat(client)
        assert response.content == b"".join(EVENTS)
        await settled(fleet)
        (replica,) = fleet.replicas.values()
        assert (replica.flights, replica.num_sent, replica.num_failed) == (set(), 1, 0)
        assert replica.prices.request < Prices().request


@pytest.mark.parametrize("status", [503, None])
async def test_another_backend_answers_if_the_first_has_not_begun(status) -> None:
    first, second = Scripted(status or 200), Scripted()
    if status is None:
        first.dies_after = 0
    async with routed(first, second) as (client, fleet):
        response = await chat(client)
        assert (response.status_code, response.headers["x-by"]) == (200, "b1")
        assert response.content == b"".join(EVENTS)
        assert len(first.chats) == len(second.chats) == 1
        assert [one.num_failed for one in fleet.replicas.values()] == [1, 0]


async def test_a_backend_that_is_gone_is_not_asked_again_until_it_is_back() -> None:
    async with routed(Scripted(), Scripted()) as (client, fleet):
        gone = fleet.replicas["b0"]
        gone.backend = replace(gone.backend, url="http://127.0.0.1:9")
        assert (await chat(client)).headers["x-by"] == "b1"
        assert not gone.is_healthy
        assert (await chat(client)).headers["x-by"] == "b1"
        assert gone.num_failed <= 1


async def test_requests_to_a_backend_that_falls_silent_are_answered_elsewhere(monkeypatch) -> None:
    """Issue 28, point 10: they waited for an hour."""
    first, second = Scripted(), Scripted()
    async with routed(first, second, health_seconds=0.01) as (client, fleet):
        monkeypatch.setattr(health, "ANSWER_SECONDS", 0.3)
        monkeypatch.setattr(health, "PATIENCE", 1)
        first.may_answer.clear()
        assert (await chat(client)).headers["x-by"] == "b1"
        assert not fleet.replicas["b0"].is_healthy
        first.may_answer.set()
        while not fleet.replicas["b0"].is_healthy:
            await asyncio.sleep(0.005)
        assert (await chat(client)).headers["x-by"] == "b0"


@pytest.mark.parametrize(("content", "says"), REFUSED, ids=["nested", "many", "damaged"])
async def test_a_body_is_refused_by_the_limits_of_the_server(content, says) -> None:
    """Issue 28, points 8 and 10."""
    backend = Scripted()
    async with routed(backend) as (client, _):
        response = await client.post(CHAT, content=content)
        assert (response.status_code, says in response.json()["error"]["message"]) == (400, True)
        assert not backend.chats
        assert (await client.post("/who", content=b"no JSON " * 10)).status_code == 200


async def test_long_bodies_are_parsed_beside_the_event_loop(monkeypatch) -> None:
    """Issue 28, point 8."""
    in_loop = note_threads(monkeypatch, routing, "read")
    async with routed(Scripted()) as (client, _):
        for size in (10, 100_000):
            assert (await chat(client, user="x" * size)).status_code == 200
    assert in_loop == [True, False]


async def test_a_stream_that_began_is_never_begun_again() -> None:
    first, second = Scripted(), Scripted()
    first.dies_after = 1
    async with routed(first, second) as (client, _):
        response = await chat(client)
        assert response.content.startswith(EVENTS[0])
        error = orjson.loads(response.content.rpartition(b"data: ")[2])
        assert error["error"]["code"] == 502
        assert "b0" in error["error"]["message"]
        assert second.chats == []


async def test_a_request_that_crashes_backends_crashes_two_at_most() -> None:
    backends = [Scripted() for _ in range(4)]
    for one in backends:
        one.dies_after = 0
    async with routed(*backends, retries=3) as (client, _):
        assert (await chat(client)).status_code == 502
        assert [len(one.chats) for one in backends] == [1, 1, 0, 0]


@pytest.mark.parametrize("status", [400, 500])
async def test_an_error_of_the_request_is_the_answer(status) -> None:
    first, second = Scripted(status), Scripted()
    async with routed(first, second) as (client, _):
        response = await chat(client)
        assert (response.status_code, response.json()["error"]["message"]) == (status, "no")
        assert second.chats == []


async def test_overload_is_429_and_says_when_to_come_back() -> None:
    async with routed(Scripted(503), Scripted(503)) as (client, _):
        response = await chat(client)
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["type"] == "rate_limit_error"


async def test_more_than_may_wait_are_refused_before_they_are_sent() -> None:
    backend = Scripted()
    backend.may_go_on.clear()
    async with routed(backend, max_waiting=1) as (client, fleet):
        waiting = [asyncio.create_task(chat(client)) for _ in range(5)]
        while len(fleet.replicas["b0"].flights) < 5:  # four slots are assumed, one may wait
            await asyncio.sleep(0.005)
        assert (await chat(client)).status_code == 429
        assert len(backend.chats) <= 5
        assert (await client.get("/who")).status_code == 200, "what generates nothing may pass"
        backend.may_go_on.set()
        assert [one.status_code for one in await asyncio.gather(*waiting)] == [200] * 5
        assert (await chat(client)).status_code == 200


async def test_a_drained_backend_ends_what_it_has_and_gets_no_more() -> None:
    first, second = Scripted(), Scripted()
    first.may_go_on.clear()
    async with routed(first, second) as (client, _):
        running_chat = asyncio.create_task(chat(client))
        while not first.chats:
            await asyncio.sleep(0.005)
        drained = (await client.post("/router/drain", json={"backend": "b0"})).json()
        assert (drained["state"], drained["num_in_flight"]) == ("draining", 1)
        assert (await chat(client)).headers["x-by"] == "b1"
        first.may_go_on.set()
        assert (await running_chat).content == b"".join(EVENTS)
        states = (await client.get("/router/backends")).json()["backends"]
        found = [(one["state"], one["num_in_flight"]) for one in states]
        assert found == [("draining", 0), ("healthy", 0)]
        await client.post("/router/resume", json={"backend": "b0"})
        assert (await chat(client)).headers["x-by"] == "b0"


async def test_a_client_that_leaves_frees_its_place() -> None:
    backend = Scripted()
    backend.may_go_on.clear()
    async with routed(backend) as (client, fleet):
        async with client.stream("POST", CHAT, json=BODY) as response:
            assert response.status_code == 200
            assert len(fleet.replicas["b0"].flights) == 1
        while fleet.replicas["b0"].flights:
            await asyncio.sleep(0.005)
        backend.may_go_on.set()


@pytest.mark.parametrize("has_own", [False, True])
async def test_a_clients_key_is_passed_on_unless_backends_have_one_of_their_own(has_own) -> None:
    backend, watch = Scripted(), asyncio.Event().wait if has_own else None
    async with routed(backend, key="secret", watch=watch) as (client, _):
        assert (await chat(client)).status_code == 401
        client.headers["Authorization"] = "Bearer secret"
        assert (await chat(client)).status_code == 200
        assert backend.keys == ["Bearer own" if has_own else "Bearer secret"]


async def test_the_stream_of_a_conversation_is_stopped_and_repeated_for_who_has_its_key() -> None:
    one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
    stream, named, first = "/v1/stream?conv_id=c", one | {"x-conversation-id": "c"}, Scripted()
    async with routed(first, Scripted()) as (client, fleet):
        ollama = BODY | {"stream": None}
        for ends, path, body in ((True, "/api/chat", ollama), (False, CHAT, BODY)):
            first.may_go_on.clear()
            async with client.stream("POST", path, json=body, headers=named):
                pass
            if not ends:
                assert (await client.delete(stream, headers=two)).status_code == 204
                assert (await client.get(stream, headers=two)).status_code == 404
                await client.post("/who", json={"prompt": "x"}, headers=named)
                following = asyncio.create_task(client.get(stream, headers=one))
                first.may_go_on.set()
                assert (await following).content == b"".join(EVENTS)
            assert (await client.delete(stream, headers=one)).status_code == 204
            await settled(fleet)
            first.may_go_on.set()


async def test_a_running_answer_is_controlled_wherever_it_is() -> None:
    first, second = Scripted(), Scripted()
    first.stored = second.stored = "control"
    first.refusal = '{"success":false,"message":"no active completion for this id"}'
    async with routed(first, second) as (client, _):
        assert (await client.post(f"{CHAT}/control", json={"id": "x"})).headers["x-by"] == "b1"


async def test_a_stored_response_is_found_wherever_it_is() -> None:
    first, second = Scripted(), Scripted()
    second.stored = "resp-1"
    async with routed(first, second) as (client, fleet):
        assert (await client.get("/v1/responses/resp-1")).headers["x-by"] == "b1"
        assert fleet.replicas["b0"].num_failed == 0, "it answered what it knows"
        assert (await client.get("/v1/responses/resp-2")).status_code == 404


async def test_a_stored_response_of_a_draining_replica_is_found() -> None:
    first, second = Scripted(), Scripted()
    first.stored = "resp-1"
    async with routed(first, second) as (client, fleet):
        fleet.replicas["b0"].is_draining = True
        assert (await client.get("/v1/responses/resp-1")).headers["x-by"] == "b0"


@pytest.mark.parametrize("owner", [0, 1])
async def test_a_stored_response_of_a_busy_replica_is_not_called_unknown(owner: int) -> None:
    both = Scripted(), Scripted()
    both[owner].stored, both[owner].status = "resp-1", 503
    async with routed(*both) as (client, _):
        assert (await client.get("/v1/responses/resp-1")).status_code == 429


async def test_a_stored_response_of_an_unhealthy_replica_is_not_called_unknown() -> None:
    async with routed(Scripted(), Scripted()) as (client, fleet):
        fleet.replicas["b0"].lose("it restarts")
        answer = await client.get("/v1/responses/resp-1")
        assert answer.status_code == 503
        assert "no backend that has this response is healthy" in answer.text
        fleet.replicas["b0"].hear(Load())
        assert (await client.get("/v1/responses/resp-1")).status_code == 404


@pytest.mark.parametrize(
    ("path", "more", "said", "status"),
    [
        (
            "responses",
            {"previous_response_id": "r"},
            "Previous response with id 'r' not found",
            503,
        ),
        ("responses", {"previous_response_id": "r"}, "temperature is 'hot'", 400),
        ("responses/input_tokens", {}, "", 404),
    ],
)
async def test_what_is_wrong_with_a_body_is_passed_on_though_a_replica_is_unhealthy(
    path, more, said, status
):
    both = Scripted(), Scripted()
    both[1].refusal = said
    async with routed(*both) as (client, fleet):
        fleet.replicas["b0"].lose("it restarts")
        answer = await client.post(f"/v1/{path}", json={"input": "hi", **more})
        assert answer.status_code == status  # 503: the unhealthy one may have the response


async def test_without_a_backend_health_says_so_and_requests_get_503() -> None:
    async with routed(Scripted()) as (client, fleet):
        fleet.replicas["b0"].lose("loading")
        for response in (await client.get("/health"), await chat(client)):
            assert response.status_code == 503
            assert response.headers["retry-after"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [("drain", {"backend": "x"}, 404), ("drain", {}, 400), ("drain", [], 400), ("x", {}, 404)],
)
async def test_wrong_orders_are_refused(path, body, status) -> None:
    async with routed(Scripted()) as (client, _):
        response = await client.post(f"/router/{path}", json=body)
        assert response.status_code == status
        assert response.json()["error"]["message"]


@pytest.mark.parametrize(
    "url", ["10.0.0.2:8080", "http://", "http://h:99999", "http://h:x", "http://h:0", "http://[::1"]
)
def test_a_backend_that_is_no_address_is_refused_at_the_start(url) -> None:
    with pytest.raises(ConfigError, match="must be an address"):
        BalancerOptions(backend=f"http://10.0.0.2,{url}")


def test_two_backends_of_one_name_are_refused_at_the_start() -> None:
    """The second replaced the first."""
    with pytest.raises(ConfigError, match=r"10\.0\.0\.2/llm was given twice"):
        BalancerOptions(backend="http://10.0.0.2/llm,https://user:key@10.0.0.2/llm/")
