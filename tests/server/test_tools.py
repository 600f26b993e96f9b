"""/tools and /cors-proxy over HTTP: off by default, behind the key, in streams."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from tests.planted import threads_of
from tests.server.fake_worker import HOLD, FakeWorker
from tests.server.serving import error_of, served_model, serving, serving_app

from headstart.config import ServerConfig, ToolsConfig
from headstart.extras import vertex
from headstart.extras.vertex import PATHS
from headstart.server.app import create_app
from headstart.server.extra_routes import Extra, applied, load_extras
from headstart.types.errors import ConfigError

KEY = {"Authorization": "Bearer k"}
FROM_PAGE = {"X-Headstart-Page": "1"}
READ = {"tool": "read_file", "params": {"path": "a"}}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx2.Client]:
    extras = load_extras(ToolsConfig(tools="all", ui_mcp_proxy=True), {})
    with serving(config=ServerConfig(api_key="k"), extras=extras) as client:
        client.headers.update(KEY)
        yield client


class Target:
    """A server behind the proxy; `seen` are the headers that reached it."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: dict[str, str] = {}
        self.may_go_on = threading.Event()

    async def answer(self, request: Request) -> StreamingResponse:
        self.seen = dict(request.headers)
        body = await request.body()

        def pieces() -> Iterator[bytes]:
            yield b"data: 1\n\n"
            self.may_go_on.wait(10)
            yield body

        headers = {
            "Mcp-Session-Id": "1",
            "Set-Cookie": "a=b",
            "Access-Control-Allow-Origin": "http://target",
            "Content-Type": "text/event-stream",
            "Content-Security-Policy": "script-src *",
            "Content-Disposition": "inline",
            "Clear-Site-Data": "*",
        }
        return StreamingResponse(pieces(), 404, headers)


@pytest.fixture
def target() -> Iterator[Target]:
    target = Target()
    everything = Route("/{path:path}", target.answer, methods=["GET", "POST"])
    with serving_app(Starlette(routes=[everything])) as target.url:
        yield target
        target.may_go_on.set()


def test_without_flags_there_are_no_tools_and_no_proxy():
    with serving() as client:
        for response in (
            client.get("/tools"),
            client.post("/tools", json=READ),
            client.get("/cors-proxy?url=http://127.0.0.1:1/"),
            client.post("/cors-proxy?url=http://127.0.0.1:1/", json={}),
        ):
            assert response.status_code == 403
            assert response.json()["error"]["type"] == "feature_disabled"


def test_tools_are_for_those_with_the_key(client):
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer x"}):
        assert client.get("/tools", headers=headers).status_code == 401
        assert client.post("/tools", json=READ, headers=headers).status_code == 401
        assert client.get("/cors-proxy?url=http://a/", headers=headers).status_code == 401
    assert client.get("/tools").json()[0]["tool"] == "read_file"


def test_where_tools_run_pages_of_other_machines_may_not_ask_even_with_a_key(client):
    for origin, is_named in (("http://localhost:8080", True), ("http://evil.example", False)):
        response = client.options("/tools", headers={"Origin": origin})
        assert ("access-control-allow-origin" in response.headers) == is_named


def test_without_a_key_no_other_page_of_this_machine_runs_a_tool():
    with serving(extras=load_extras(ToolsConfig(tools="all", ui_mcp_proxy=True), {})) as client:
        page = {"Origin": "http://localhost:1", "Sec-Fetch-Site": "same-site"}
        assert client.post("/tools", json=READ, headers=page).status_code == 403
        own = {"Origin": str(client.base_url).rstrip("/")}
        assert client.post("/tools", json=READ, headers=own).status_code == 200


def test_a_call_works_where_the_client_says_and_never_where_the_model_does(client, tmp_path):
    (tmp_path / "a").write_text("text")
    here = {"x-tool-cwd": str(tmp_path)}
    elsewhere = READ | {"params": {"path": "a", "cwd": "/", "runtime": "ssh:other"}}
    assert client.post("/tools", json=elsewhere, headers=here).json() == {
        "plain_text_response": "text\n"
    }
    encoded = client.post("/tools", json=READ, headers=here | {"x-resp-type": "base64"}).json()
    assert encoded == {"base64": "dGV4dA==", "size_bytes": 4}
    wrong = client.post("/tools", json=READ, headers={"x-tool-runtime": "moon:1"})
    assert "unknown tool runtime" in error_of(wrong, 500, "server_error")


def test_a_tool_that_is_not_there_is_404_and_one_that_has_no_stream_400(client):
    assert client.post("/tools", json={"tool": "x"}).status_code == 404
    assert client.post("/tools", json=READ | {"stream": True}).status_code == 400
    assert client.post("/tools", json={"params": {}}).status_code == 400


def test_a_stream_shows_output_as_it_comes(client, tmp_path):
    seen = tmp_path / "seen"
    wait = f"until [ -e {seen} ]; do sleep 0.02; done"
    body = {
        "tool": "exec_shell_command",
        "params": {"command": f"printf 'a\\303'; {wait}; printf '\\244b'; exit 2"},
        "stream": True,
    }
    events = []
    with client.stream("POST", "/tools", json=body) as response:
        for line in response.iter_lines():
            if line:
                events.append(json.loads(line[6:]))
                seen.touch()  # the command goes on once its first output is here
    assert events == [
        {"chunk": "a"},
        {"chunk": "äb"},
        {"chunk": "\n[exit code: 2]"},
        {"done": True},
    ]


def test_the_proxy_passes_on_only_what_was_marked_and_streams(client, target):
    headers = KEY | {
        "Cookie": "c=1",
        "X-Llama-Server-Proxy-Header-Authorization": "Bearer other",
        "X-Llama-Server-Proxy-Header-Accept": "text/event-stream",
    }
    url = f"/cors-proxy?url={target.url}/mcp?a=1"
    with client.stream("POST", url, content=b"question", headers=headers) as response:
        pieces = response.iter_raw()
        assert next(pieces) == b"data: 1\n\n"  # before the rest is there
        target.may_go_on.set()
        assert b"".join(pieces) == b"question"
    assert response.status_code == 404
    assert response.headers["mcp-session-id"] == "1"
    assert "set-cookie" not in response.headers
    assert response.headers.get("access-control-allow-origin") is None
    assert response.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["content-disposition"] == "attachment"
    assert "clear-site-data" not in response.headers
    assert target.seen["authorization"] == "Bearer other"
    assert target.seen["accept"] == "text/event-stream"
    assert not {"cookie", "x-api-key", "user-agent"} & target.seen.keys()


def test_the_proxy_answers_no_link_of_another_site(client, target):
    """A browser that sends no Sec-Fetch-Site follows a link, an image or a form like this."""
    target.may_go_on.set()
    url = f"/cors-proxy?url={target.url}/"
    with serving(extras=load_extras(ToolsConfig(ui_mcp_proxy=True), {})) as open_to_all:
        browser = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0"}
        for response in (
            open_to_all.get(url, headers=browser),
            open_to_all.post(url, content=b"a=b", headers=browser),
        ):
            assert response.status_code == 403
            assert "x-headstart-page" in response.json()["error"]["message"]
        assert not target.seen
        answer = open_to_all.get(url, headers=browser | FROM_PAGE)
        assert answer.status_code == 404  # the target's


@pytest.mark.parametrize("name", ["Sec-Fetch-Mode", "Origin", "Referer", "Cookie"])
def test_a_browser_may_call_itself_anything(target, name):
    target.may_go_on.set()
    url, browser = f"/cors-proxy?url={target.url}/", {"User-Agent": "Browser/1.0"}
    with serving(extras=load_extras(ToolsConfig(ui_mcp_proxy=True), {})) as open_to_all:
        own = str(open_to_all.base_url).rstrip("/")
        browser[name] = own if name in ("Origin", "Referer") else "cors"
        answer = open_to_all.get(url, headers=browser)
        assert "x-headstart-page" in error_of(answer, 403, "permission_error")
        assert open_to_all.get(url, headers=browser | FROM_PAGE).status_code == 404


def test_a_program_needs_no_header_to_use_the_proxy(target):
    target.may_go_on.set()
    url = f"/cors-proxy?url={target.url}/"
    with serving(extras=load_extras(ToolsConfig(ui_mcp_proxy=True), {})) as open_to_all:
        assert open_to_all.get(url).status_code == 404  # the target's
        assert open_to_all.post(url, content=b"a").content.endswith(b"a")


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("", 400),
        ("file:///etc/passwd", 400),
        ("http://", 400),
        ("http://user:secret@127.0.0.1/", 400),
        ("http://[", 400),
        ("http://127.0.0.1:1/\r\nX: 1", 400),
        ("http://" + "a" * 300 + ".\u00ad/", 400),
        ("http://127.0.0.1:99999/", 502),
        ("http://127.0.0.1:1/", 502),
    ],
)
def test_what_cannot_be_asked_is_told(client, url, status):
    answer = client.get("/cors-proxy", params={"url": url}, headers=FROM_PAGE)
    assert answer.status_code == status


def test_the_proxy_tells_why_an_address_cannot_be_reached(client):
    url = "/cors-proxy?url=http://127.0.0.1:1/"
    assert "reached: All" in error_of(client.get(url, headers=FROM_PAGE), 502, "server_error")


@pytest.mark.parametrize("path", ["/tools", "/cors-proxy", "/completion"])
async def test_who_leaves_within_the_body_is_no_error(path):
    app = create_app(
        ServerConfig(),
        FakeWorker(),
        served_model,
        print,
        load_extras(ToolsConfig(tools="all", ui_mcp_proxy=True), {}),
    )
    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message.get("status"))

    headers = [(b"host", b"localhost"), (b"x-headstart-page", b"1")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    async with app.router.lifespan_context(app):
        while app.state.service.why_not_ready():
            await asyncio.sleep(0.01)
        await app(scope | {"query_string": b"url=http://127.0.0.1:9"}, receive, send)
    assert sent[0] == 499


def test_strangers_are_warned_of(caplog):
    config = ServerConfig(host="0.0.0.0", port=0)
    with serving(config=config, extras=load_extras(ToolsConfig(tools="get_info"), {})):
        assert "WITHOUT an API key" in caplog.text
    caplog.clear()
    with serving(extras=load_extras(ToolsConfig(tools="get_info"), {})):
        assert "built-in tools" in caplog.text
        assert "WITHOUT" not in caplog.text


ENVIRONMENT = {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "9001", "AIP_HEALTH_ROUTE": "ping"}
CHAT = {"@requestFormat": "chatCompletions", "messages": [{"role": "user", "content": "a"}]}


def extras(**environment: str) -> list[Extra]:
    return load_extras(ToolsConfig(), ENVIRONMENT | environment)


def test_the_environment_says_where():
    assert load_extras(ToolsConfig(), {"AIP_HTTP_PORT": "1"}) == []
    assert applied(extras(), ServerConfig()).port == 9001
    with pytest.raises(ConfigError, match="AIP_HTTP_PORT"):
        extras(AIP_HTTP_PORT="x")


def test_instances_are_answered_by_their_routes_in_order(monkeypatch):
    threads = threads_of(monkeypatch, vertex, "read_json")
    instances = [
        CHAT | {"stream": True},
        {"@requestFormat": "/tokenize", "content": "ab"},
        {"@requestFormat": "detokenize", "tokens": "ab"},
        {"@requestFormat": "predict"},
        {"content": "ab"},
        1,
    ]
    with serving(config=ServerConfig(api_key="k"), extras=extras()) as client:
        assert client.post("/predict", json={"instances": []}).status_code == 401
        client.headers["Authorization"] = "Bearer k"
        response = client.post("/predict", json={"instances": instances, "x": "x" * 70_000})
        for body in ([], {}, {"instances": 1}, {"instances": [1] * 129}):
            assert client.post("/predict", json=body).status_code == 400
        assert client.get("/ping").json() == {"status": "ok"}
    assert threads[0].startswith("headstart-")
    predictions = response.json()["predictions"]
    assert predictions[0]["choices"][0]["message"]["role"] == "assistant"
    assert predictions[1] == {"tokens": [97, 98]}
    assert "tokens" in predictions[2]["error"]["message"]
    for one in predictions[3:]:
        assert one["error"]["code"] == 400


def test_a_client_that_leaves_cancels_all_its_instances():
    worker = FakeWorker(lambda request: [HOLD])
    with serving(worker, extras=extras()) as client:
        with pytest.raises(httpx2.ReadTimeout):
            client.post("/predict", json={"instances": [CHAT, CHAT]}, timeout=1)
        assert len({worker.cancelled.get(timeout=60) for _ in range(2)}) == 2


def test_all_that_an_instance_may_name_is_served_and_the_path_is_nobody_elses():
    app = create_app(ServerConfig(), FakeWorker(), served_model, print)
    served = {route.path for route in app.routes if isinstance(route, Route)}
    assert served.issuperset(PATHS.values())
    taken = extras(AIP_PREDICT_ROUTE="/tokenize")
    with pytest.raises(ConfigError, match="AIP_PREDICT_ROUTE"):
        create_app(ServerConfig(), FakeWorker(), served_model, print, taken)
