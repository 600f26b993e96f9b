"""The router's routes over real HTTP, in front of children that are apps in this process."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import httpx2
import pytest
from tests.unit.gateway.backends import REFUSED, note_threads, running
from tests.unit.gateway.router.fakes import FakeChildren, FakeStore, loaded, pool_of, preset, use

from headstart.config import Config, RouterConfig, ServerConfig
from headstart.gateway import proxy
from headstart.gateway.router import listing
from headstart.gateway.router.app import create_app
from headstart.server import sse

PROMPT, NAMED = {"prompt": "a"}, {"X-Conversation-Id": "c"}
STREAM = {"model": "a", "stream": True}


class Echo:
    """Says what it was asked; keeps a stream open until it is told to go on."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.tenants: list[str] = []
        self.conversations: list[bytes | None] = []

    async def __call__(self, scope, receive, send):
        message = await receive()
        headers = dict(scope["headers"])
        if scope["method"] == "POST":
            self.tenants.append(headers.get(b"x-headstart-tenant", b"?").decode())
            self.conversations.append(headers.get(b"x-conversation-id"))
        is_stream = scope["path"] in ("/v1/events", "/v1/wait")
        kind = b"text/event-stream" if is_stream else b"application/json"
        start = {"status": 200, "headers": [(b"content-type", kind)]}
        await send({"type": "http.response.start", **start})
        if is_stream:
            await send({"type": "http.response.body", "body": b": hello\n\n", "more_body": True})
            await self.go_on.wait()
        said = {
            "path": scope["path"],
            "query": scope["query_string"].decode(),
            "key": headers.get(b"authorization", b"").decode(),
            "body": message.get("body", b"").decode(),
        }
        await send({"type": "http.response.body", "body": json.dumps(said).encode()})


class Routed:
    """A router that runs, and what is behind it."""

    def __init__(self, children, echo, client, pool) -> None:
        self.children, self.echo, self.client, self.pool = children, echo, client, pool


@asynccontextmanager
async def router(*models, max_models=0, presets=None, server=None, store=None, **flags):
    echo = Echo()
    async with running(echo) as url:
        children = FakeChildren(url)
        pool = pool_of(children, *models, max_models=max_models)
        config = Config(router=RouterConfig(**flags), server=server or ServerConfig())
        own = listing.OwnRoutes(config, pool, lambda: presets or [], store or FakeStore())
        app = create_app(own, ())
        async with (
            running(app, lifespan="on") as address,
            httpx2.AsyncClient(base_url=address, trust_env=False, timeout=60) as client,
        ):
            yield Routed(children, echo, client, pool)
            echo.go_on.set()


async def status_of(client, name):
    listed = (await client.get("/models")).json()["data"]
    return next(one["status"] for one in listed if one["id"] == name)


async def test_the_stream_of_a_conversation_is_kept_from_before_its_model_is_loaded() -> None:
    name, ask = {"X-Conversation-Id": "c::a"}, STREAM | PROMPT
    stream, names = "/v1/stream?conv_id=c::a", {"conversation_ids": ["c"]}
    async with router("a", "b") as routed:
        client = routed.client
        assert (await client.get(stream)).status_code == 404
        assert (await client.get("/v1/stream")).status_code == 400
        routed.children.gate.clear()
        waiting = asyncio.create_task(client.post("/v1/wait", json=ask, headers=name))
        while not routed.children.log:
            await asyncio.sleep(0.01)
        assert (await client.delete(stream)).status_code == 204
        assert "cancelled before it began" in (await waiting).json()["error"]["message"]
        assert (await client.get(stream)).status_code == 404
        with pytest.raises(httpx2.TimeoutException):  # a client that leaves while it loads
            await client.post("/v1/wait", json=ask, headers=name, timeout=0.2)
        following = asyncio.create_task(client.get(stream))
        routed.children.gate.set()
        routed.echo.go_on.set()
        resumed = (await following).content
        said = json.loads(resumed.removeprefix(b": hello\n\n"))
        assert (said["path"], json.loads(said["body"])) == ("/v1/wait", ask)
        assert routed.echo.conversations == [None]
        (found,) = (await client.post("/v1/streams/lookup", json=names)).json()
        assert (found["is_done"], found["total_bytes"]) == (True, len(resumed))


async def test_an_answer_that_is_no_stream_is_passed_on_and_not_kept() -> None:
    async with router("a") as routed:
        said = await routed.client.post("/x", json=STREAM, headers=NAMED)
        assert said.json()["path"] == "/x"
        assert (await routed.client.get("/v1/stream?conv_id=c")).status_code == 404


@pytest.mark.parametrize("path", ["/v1/completions", "/props", "/metrics"])
async def test_a_post_goes_to_the_model_that_its_body_names(path) -> None:
    named, below = preset("b", aliases=("bee",)), ServerConfig(api_prefix="/llm")
    async with router("a", named, server=below) as routed:
        answer = await routed.client.post(f"/%6Clm{path}?x=1", json=PROMPT | {"model": "bee"})
        said = answer.json()
        assert loaded(routed.pool) == {"b"}
    assert (said["path"], said["query"], said["key"]) == (path, "x=1", "Bearer inner")
    assert json.loads(said["body"]) == PROMPT | {"model": "bee"}


async def test_a_get_goes_to_the_model_that_its_query_names() -> None:
    async with router("org/a:Q4") as routed:
        said = (await routed.client.get("/props", params={"model": "org/a:Q4"})).json()
        own = (await routed.client.get("/props")).json()
    assert said["path"] == "/props"
    assert (own["role"], own["max_instances"], own["models_autoload"]) == ("router", 4, True)
    assert own["build_info"].startswith("b")
    assert own["cors_proxy_enabled"] is False


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (PROMPT, "model name is missing"),
        (PROMPT | {"model": "c"}, "model 'c' not found"),
        (PROMPT | {"model": 5}, "model name is missing"),
    ],
)
async def test_a_request_without_a_known_model_is_refused(body, says) -> None:
    async with router("a") as routed:
        answer = await routed.client.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert says in answer.json()["error"]["message"]


async def test_clients_of_ollama_see_the_models_before_they_name_one() -> None:
    async with router("a", preset("b", is_hidden=True)) as routed:
        client = routed.client
        assert (await client.get("/api/version")).json()["version"]
        assert (await client.get("/api/ps")).json() == {"models": []}
        listed = (await client.get("/api/tags")).json()["models"]
        assert [one["name"] for one in listed] == ["a"]
        await client.post("/api/chat", json={"model": "a"})
        routed.pool.models["a"].info = {
            "meta": {"size": 7, "n_ctx": 2048, "n_params": 5_000_000_000}
        }
        (loaded_one,) = (await client.get("/api/ps")).json()["models"]
    assert (loaded_one["size"], loaded_one["context_length"]) == (7, 2048)
    assert loaded_one["details"]["parameter_size"] == "5.0B"


@pytest.mark.parametrize("path", ["/v1/completions", "/models/load", "/models/unload", "/models"])
async def test_a_body_is_refused_by_the_limits_of_the_server(path) -> None:
    """Issue 28, point 8."""
    async with router("a") as routed:
        for content, says in REFUSED:
            answer = await routed.client.post(path, content=content)
            assert (answer.status_code, says in answer.json()["error"]["message"]) == (400, True)
        assert routed.children.log == []


async def test_long_bodies_are_parsed_beside_the_event_loop(monkeypatch) -> None:
    """Issue 28, point 8."""
    in_loop = note_threads(monkeypatch, listing, "read_object")
    async with router("a") as routed:
        for size in (10, 100_000):
            body = {"model": "a", "prompt": "x" * size}
            assert (await routed.client.post("/v1/completions", json=body)).status_code == 200
    assert in_loop == [True, False]


@pytest.mark.parametrize(
    ("autoloads", "query", "status"),
    [(False, "", 400), (False, "?autoload=true", 200), (True, "?autoload=0", 400), (True, "", 200)],
)
async def test_a_model_is_loaded_by_a_request_only_where_that_is_wanted(autoloads, query, status):
    async with router("a", models_autoload=autoloads) as routed:
        answer = await routed.client.post(f"/v1/completions{query}", json={"model": "a"})
        assert answer.status_code == status
        assert loaded(routed.pool) == ({"a"} if status == 200 else set())


async def test_models_are_loaded_and_unloaded_by_hand() -> None:
    async with router("a") as routed:
        client = routed.client
        assert (await client.post("/models/unload", json={"model": "a"})).status_code == 400
        assert (await client.post("/models/load", json={"model": "x"})).status_code == 404
        assert (await client.post("/models/load", json={"model": "a"})).json() == {"success": True}
        while (await status_of(client, "a"))["value"] != "loaded":
            pass
        assert (await client.post("/models/load", json={"model": "a"})).status_code == 400
        assert (await client.post("/models/unload", json={"model": "a"})).status_code == 200
        while (await status_of(client, "a"))["value"] != "unloaded":
            pass


async def test_a_model_that_waits_for_room_is_loading_is_loaded_once_and_can_be_unloaded() -> None:
    async with router("a", "b", max_models=1) as routed:
        held, client, b = routed.pool.models["a"], routed.client, {"model": "b"}
        await routed.pool.acquire(held)
        routed.pool.models["b"].exit_code = 1  # of an earlier try
        asked = asyncio.create_task(client.post("/v1/completions", json=b))
        while not routed.pool.num_waiting:
            await asyncio.sleep(0)
        status = await status_of(client, "b")
        assert (status["value"], "failed" in status) == ("loading", False)
        assert (await client.post("/models/load", json=b)).status_code == 400
        assert routed.pool.num_waiting == 1
        assert (await client.post("/models/unload", json=b)).json() == {"success": True}
        answer = await asked
        assert (answer.status_code, "it was unloaded" in answer.text) == (502, True)
        assert (await status_of(client, "b"))["value"] == "unloaded"
        assert (await client.post("/models/unload", json=b)).status_code == 400
        routed.pool.release(held)
        assert loaded(routed.pool) == {"a"}


async def test_a_model_that_failed_says_so_and_why() -> None:
    async with router("a") as routed:
        routed.children.failures["a"] = [{"message": "no tensors"}]
        answer = await routed.client.post("/v1/completions", json={"model": "a"})
        status = await status_of(routed.client, "a")
    assert (answer.status_code, "no tensors" in answer.json()["error"]["message"]) == (502, True)
    assert {"failed": True, "exit_code": 2, "reason": "no tensors"}.items() <= status.items()


async def test_a_reload_lists_what_there_is_now() -> None:
    presets = [preset("b"), preset("c", is_hidden=True)]
    async with router("a", presets=presets) as routed:
        before = (await routed.client.get("/v1/models")).json()["data"]
        after = (await routed.client.get("/models?reload=1")).json()["data"]
        hidden = await routed.client.post("/tokenize", json={"model": "c"})
    assert [[one["id"] for one in listed] for listed in (before, after)] == [["a"], ["b"]]
    assert hidden.status_code == 200, "hidden is not gone"


async def test_events_are_streamed_as_they_happen() -> None:
    async with router("a") as routed, routed.client.stream("GET", "/models/sse") as stream:
        lines = stream.aiter_lines()
        assert await anext(lines) == ": ping"
        await use(routed.pool, "a")
        events = []
        while len(events) < 2:
            if (line := await anext(lines)).startswith("data: "):
                events.append(json.loads(line[6:]))
        await routed.pool.close()
    assert [one["data"]["status"] for one in events] == ["loading", "loaded"]
    assert ({one["model"] for one in events}, events[1]["data"]["info"]) == ({"a"}, {})


async def test_listeners_of_one_key_leave_room_for_those_of_others(monkeypatch) -> None:
    monkeypatch.setattr(sse, "MAX_LISTENERS", 2)
    one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
    async with (
        router("a", server=ServerConfig(api_key="one,two")) as routed,
        routed.client.stream("GET", "/models/sse", headers=one) as stream,
    ):
        assert stream.status_code == 200
        refused = await routed.client.get("/models/sse", headers=one)
        assert refused.status_code == 429
        assert "places for clients of /models/sse" in refused.json()["error"]["message"]
        async with routed.client.stream("GET", "/models/sse", headers=two) as other:
            assert other.status_code == 200
        await routed.pool.close()


async def test_a_model_that_streams_an_answer_is_busy() -> None:
    async with (
        router("a", "b", max_models=1) as routed,
        routed.client.stream("POST", "/v1/wait", json={"model": "a"}) as answer,
    ):
        other = asyncio.create_task(routed.client.post("/v1/completions", json={"model": "b"}))
        await asyncio.sleep(0.05)
        assert loaded(routed.pool) == {"a"}
        routed.echo.go_on.set()
        assert json.loads((await answer.aread()).split(b"\n\n")[1])["path"] == "/v1/wait"
        assert (await other).status_code == 200
        assert loaded(routed.pool) == {"b"}


async def test_an_answer_that_continues_without_its_client_keeps_its_model_loaded() -> None:
    async with router("a", "b", max_models=1) as routed:
        async with routed.client.stream("POST", "/v1/wait", json=STREAM, headers=NAMED):
            pass
        for path in ("/tokenize", "/api/embed"):  # are no streams
            await routed.client.post(path, json={"model": "a"}, headers=NAMED)
        kept = {"conversation_ids": ["c"]}
        assert (await routed.client.post("/v1/streams/lookup", json=kept)).json()
        other = asyncio.create_task(routed.client.post("/v1/completions", json={"model": "b"}))
        await asyncio.sleep(0.1)
        assert loaded(routed.pool) == {"a"}
        routed.echo.go_on.set()
        assert (await other).status_code == 200
        assert loaded(routed.pool) == {"b"}


async def test_who_only_watches_a_model_does_not_keep_it_loaded() -> None:
    async with (
        router("a", "b", max_models=1) as routed,
        routed.client.stream("GET", "/v1/events?model=a") as answer,
    ):
        assert answer.status_code == 200
        assert (await routed.client.post("/x", json={"model": "b"})).status_code == 200


async def test_tenants_of_the_router_are_tenants_of_its_models() -> None:
    async with router("a", server=ServerConfig(api_key="one,two")) as routed:
        for key in ("one", "two", "one"):
            headers = {"authorization": f"Bearer {key}", "x-headstart-tenant": "forged"}
            answer = await routed.client.post("/x", json={"model": "a"}, headers=headers)
            assert answer.status_code == 200
        assert (await routed.client.post("/x", json={"model": "a"})).status_code == 401
        assert (await routed.client.get("/models")).status_code == 401
        assert (await routed.client.get("/health")).status_code == 200
    first, second, third = routed.echo.tenants
    assert first == third != second
    assert "forged" not in (first, second)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("path", ["/slots?model=a", "/props?model=a", "/models?reload=1"])
async def test_no_other_website_changes_what_is_loaded(path, site) -> None:
    """Issue 28, point 7: a browser requests an image without naming an origin."""
    async with router("a", presets=[preset("b")]) as routed:
        answer = await routed.client.get(path, headers={"sec-fetch-site": site})
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")
        assert (routed.children.log, set(routed.pool.models)) == ([], {"a"})


@pytest.mark.parametrize(
    ("headers", "server"),
    [
        ({"sec-fetch-site": "same-origin"}, ServerConfig()),
        ({"sec-fetch-site": "none"}, ServerConfig()),
        ({}, ServerConfig()),
        ({"sec-fetch-site": "cross-site"}, ServerConfig(cors_origins="*")),
        (
            {"sec-fetch-site": "cross-site", "origin": "http://page.example"},
            ServerConfig(cors_origins="http://page.example"),
        ),
        ({"sec-fetch-site": "cross-site", "x-api-key": "k"}, ServerConfig(api_key="k")),
    ],
)
async def test_the_own_page_and_programs_and_allowed_origins_load_models(headers, server) -> None:
    async with router("a", server=server) as routed:
        answer = await routed.client.get("/slots?model=a", headers=headers)
        assert answer.status_code == 200
        assert loaded(routed.pool) == {"a"}


async def test_the_router_has_metrics_of_its_own() -> None:
    async with router("a", "b") as routed:
        await use(routed.pool, "a")
        text = (await routed.client.get("/metrics")).text
        said = (await routed.client.get("/metrics", params={"model": "b"})).json()
        after = (await routed.client.get("/metrics")).text
    assert 'headstart_router_models{status="loaded"} 1\n' in text
    assert 'headstart_router_requests_running{model="a"} 0\n' in text
    assert "headstart_router_loads_total 1\n" in text
    assert said["path"] == "/metrics"
    assert "headstart_router_loads_total 2\n" in after


async def test_few_requests_whose_clients_may_be_gone_wait_for_a_model(monkeypatch) -> None:
    monkeypatch.setattr(proxy, "MAX_WAITING", 4)
    one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
    async with router("a", server=ServerConfig(api_key="one,two")) as routed:
        routed.children.gate.clear()

        async def ask(number: int, key: dict[str, str]) -> int:
            name = key | {"X-Conversation-Id": str(number)}
            answer = await routed.client.post("/x", json=STREAM, headers=name)
            return answer.status_code

        loud = [asyncio.create_task(ask(number, one)) for number in range(4)]
        while sum(task.done() for task in loud) < 2:
            await asyncio.sleep(0.01)
        quiet = asyncio.create_task(ask(0, two))
        await asyncio.sleep(0.05)
        routed.children.gate.set()
        assert sorted(await asyncio.gather(*loud)) == [200, 200, 503, 503]
        assert await quiet == 200
