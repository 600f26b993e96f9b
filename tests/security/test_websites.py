"""A server without a key is its owner's, not that of the pages that the owner visits."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import httpx2
import pytest
from tests.server.fake_worker import HOLD, INFO, FakeWorker, say
from tests.server.serving import error_of, serving

from headstart.config import ServerConfig
from headstart.server import sse
from headstart.types.errors import QuotaError

PAGE = "http://page.example"
BODY = {"prompt": "a"}
TEXT = {"Content-Type": "text/plain"}


def own_host(client: httpx2.Client) -> str:
    return client.base_url.netloc.decode()


def test_a_page_of_another_origin_neither_reads_nor_generates(client, worker):
    headers = {"Origin": PAGE}
    for response in (
        client.post("/completion", json=BODY, headers=headers),
        client.post("/completion", content=b'{"prompt": "a"}', headers=headers | TEXT),
        client.get("/slots", headers=headers),
    ):
        assert response.status_code == 403
        assert "access-control-allow-origin" not in response.headers
        assert "--cors-origins" in response.json()["error"]["message"]
    asked = headers | {"Access-Control-Request-Headers": "content-type"}
    response = client.options("/completion", headers=asked)
    assert response.status_code == 200  # which lets nobody in without its name in the answer
    assert "access-control-allow-origin" not in response.headers
    assert worker.requests == []


def test_a_name_that_points_here_is_not_ours(client, worker):
    for host in ("rebound.example", "x.example:80", "localhost.page.example", "a.local.x", "[x"):
        response = client.post("/completion", json=BODY, headers={"Host": host})
        assert response.status_code in (400, 403), host
    assert "--allowed-hosts" in client.get("/props", headers={"Host": "x.example"}).text
    assert worker.requests == []


def test_our_own_names_and_addresses_are(client):
    own = "localhost LOCALHOST:8080 a.localhost 127.0.0.1:1 [::1]:80 192.168.1.7 localhost. nas"
    own += " host.docker.internal:8080 llm.default.svc.cluster.local nas.local nas.home.arpa"
    for host in own.split():
        assert client.get("/props", headers={"Host": host}).status_code == 200, host


def test_health_is_for_every_name(client):
    assert client.get("/health", headers={"Host": "probe.example"}).status_code == 200


def test_our_own_page_and_programs_are_served(client):
    own = f"http://{own_host(client)}"
    assert client.post("/completion", json=BODY, headers={"Origin": own}).status_code == 200
    other_name = {"Origin": "http://localhost:8080", "Host": "127.0.0.1:8080"}
    assert client.post("/completion", json=BODY, headers=other_name).status_code == 200
    for other in ({"Host": "127.0.0.1:8081"}, {"Host": "192.168.1.7:8080"}):
        refused = client.post("/completion", json=BODY, headers=other_name | other)
        assert refused.status_code == 403
    # curl -d and many programs name another type or none
    for kind in ("application/x-www-form-urlencoded", "text/plain", ""):
        headers = {"Content-Type": kind}
        response = client.post("/completion", content=b'{"prompt": "a"}', headers=headers)
        assert response.status_code == 200


@pytest.mark.parametrize("mark", ["Origin", "Sec-Fetch-Site"])
def test_a_browser_must_send_json_as_json(client, mark):
    value = f"http://{own_host(client)}" if mark == "Origin" else "same-origin"
    for kind, status in (
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("", 415),
        ("application/json; charset=utf-8", 200),
    ):
        headers = {mark: value, "Content-Type": kind}
        response = client.post("/completion", content=b'{"prompt": "a"}', headers=headers)
        assert response.status_code == status, kind


@pytest.mark.parametrize(
    ("own", "origin", "status"),
    [
        (ServerConfig(), None, 400),
        (ServerConfig(), PAGE, 403),  # a form needs no preflight request
        (ServerConfig(), "null", 403),
        (ServerConfig(cors_origins=PAGE), PAGE, 400),
        (ServerConfig(api_key="secret"), PAGE, 400),
    ],
)
def test_only_pages_that_may_use_the_server_send_it_forms_with_sounds(own, origin, status):
    """400: the form is read, and has no file."""
    with serving(config=own) as client:
        headers = {"Origin": origin or f"http://{own_host(client)}"}
        keyed = headers | ({"Authorization": "Bearer secret"} if own.api_key else {})
        form = {"model": (None, "m")}
        for path in ("/v1/audio/transcriptions", "/audio/transcriptions"):
            answer = client.post(path, files=form, headers=keyed)
            assert answer.status_code == status
            assert status == 403 or "file is required" in answer.json()["error"]["message"]
        assert client.post("/completion", files=form, headers=keyed).status_code in (403, 415)
        if own.api_key:
            assert client.post(path, files=form, headers=headers).status_code == 401


def test_a_browser_opens_an_address_that_the_user_types(client):
    typed = {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/metrics", headers=typed).status_code == 200
    assert client.get("/slots", headers=typed).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin"])
def test_a_link_or_a_script_opens_the_page_and_nothing_else(client, worker, site):
    opened = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
    json = {"Content-Type": "application/json"}
    for path in ("/props", "/slots", "/tools", "/cors-proxy?url=http://page.example", "/nowhere"):
        assert client.get(path, headers=opened).status_code == 403, path
        assert client.post(path, content=b"{}", headers=opened | json).status_code == 403, path
    assert client.post("/completion", json=BODY, headers=opened).status_code == 403
    assert client.get("/", headers=opened).status_code == 200
    assert worker.requests == []


def test_no_answer_but_the_page_runs_in_a_browser(client):
    wrong_body = {"content": b"<script>", "headers": {"Content-Type": "text/html"}}
    for response in (
        client.get("/health"),
        client.get("/props"),
        client.get("/metrics"),
        client.get("/nowhere"),
        client.get("/props", headers={"Origin": PAGE}),
        client.options("/completion", headers={"Origin": PAGE}),
        client.post("/completion", json=BODY),
        client.post("/completion", json=BODY | {"stream": True}),
        client.post("/completion", **wrong_body),
        client.put("/props"),
        client.get("/props", headers={"X": "x" * 70_000}),
    ):
        shown = f"{response.request.method} {response.url} {response.status_code}"
        assert response.headers["x-content-type-options"] == "nosniff", shown
        assert response.headers["content-security-policy"] == "sandbox; default-src 'none'", shown
    assert "sandbox" not in client.get("/").headers["content-security-policy"]


def test_flags_let_names_and_origins_in():
    config = ServerConfig(allowed_hosts="llm.example, other", cors_origins=f"{PAGE}/,localhost")
    with serving(config=config) as client:
        for host in ("llm.example:80", "other"):
            assert client.get("/props", headers={"Host": host}).status_code == 200
        for origin in (PAGE, "http://localhost:5173", "http://127.0.0.1:9"):
            response = client.post("/completion", json=BODY, headers={"Origin": origin})
            assert response.status_code == 200
            assert response.headers["access-control-allow-origin"] == origin
        for origin in ("http://localhost.page.example", "null", "http://[", "https://page.example"):
            assert client.get("/props", headers={"Origin": origin}).status_code == 403


def test_with_stars_everybody_is_let_in():
    with serving(config=ServerConfig(allowed_hosts="*", cors_origins="*")) as client:
        response = client.get("/props", headers={"Host": "x.example", "Origin": PAGE})
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == PAGE


def test_with_a_key_any_name_and_any_page_may_ask_if_it_has_the_key():
    with serving(config=ServerConfig(api_key="k")) as client:
        headers = {"Host": "llm.example", "Origin": PAGE}
        assert client.get("/props", headers=headers).status_code == 401
        response = client.get("/props", headers=headers | {"Authorization": "Bearer k"})
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == PAGE
    with serving(config=ServerConfig(api_key="k", cors_origins="http://other.example")) as client:
        response = client.get("/props", headers=headers | {"Authorization": "Bearer k"})
        assert "access-control-allow-origin" not in response.headers


def test_without_credentials_an_answer_for_all_names_no_origin():
    config = ServerConfig(api_key="k", cors_credentials=False)
    with serving(config=config) as client:
        response = client.options("/completion", headers={"Origin": PAGE})
        assert response.headers["access-control-allow-origin"] == "*"
        assert response.headers["access-control-allow-credentials"] == "false"


SECRET = "/home/owner/models/secret.gguf"


def test_health_names_files_only_to_those_with_a_key_and_the_other_paths_ask_for_it_first():
    worker = FakeWorker()
    with serving(worker, ServerConfig(api_key="k")) as client:
        worker.status, worker.failure = "failed", f"{SECRET} is damaged"
        stranger = client.get("/health")
        assert stranger.status_code == 503
        assert SECRET not in stranger.text
        assert "engine failed" in stranger.text
        assert SECRET not in client.get("/health", headers={"X-Api-Key": "wrong"}).text
        assert SECRET in client.get("/health", headers={"X-Api-Key": "k"}).text
        response = client.post("/completion", json={"prompt": "a"})
        assert response.status_code == 401
        assert SECRET not in response.text


@pytest.mark.parametrize("written", ["utf-8", "latin-1"])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_key_beyond_ascii_is_known_in_both_encodings_and_any_bearer(written, scheme):
    key = "schlüssel"
    with serving(config=ServerConfig(api_key=key)) as client:
        for name, value in ((b"Authorization", f"{scheme} {key}"), (b"X-Api-Key", key)):
            headers = [(name, value.encode(written))]
            assert client.get("/props", headers=headers).status_code == 200
        headers = [(b"Authorization", f"{scheme} schluessel".encode())]
        assert client.get("/props", headers=headers).status_code == 401


A, B = {"X-Api-Key": "a"}, {"X-Api-Key": "b"}
HELD = FakeWorker(lambda request: [*say(request, b"x")[:-1], HOLD])


def test_requests_of_one_key_leave_room_for_those_of_others():
    config = ServerConfig(api_key="a,b", max_connections=8)
    body = {"prompt": "x", "stream": True}
    with serving(HELD, config) as client, ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(client.stream("POST", "/completion", json=body, headers=A))
        refused = client.post("/completion", json=body, headers=A)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert "4 requests of yours are being answered" in refused.json()["error"]["message"]
        answer = client.get("/metrics", headers=B)
        assert answer.status_code == 200
        assert 'headstart_quota_refusals_total{quota="requests"} 1\n' in answer.text


def test_a_single_key_may_use_all_connections():
    config = ServerConfig(api_key="a", max_connections=8)
    body = {"prompt": "x", "stream": True}
    with serving(HELD, config) as client, ExitStack() as stack:
        for _ in range(7):
            stack.enter_context(client.stream("POST", "/completion", json=body, headers=A))
        assert client.get("/props", headers=A).status_code == 200


def test_listeners_of_one_key_leave_room_for_those_of_others(monkeypatch):
    monkeypatch.setattr(sse, "MAX_LISTENERS", 4)
    with serving(config=ServerConfig(api_key="a,b")) as client, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(client.stream("GET", "/events", headers=A))
        refused = client.get("/events", headers=A)
        assert "you have 2 of 4 places" in error_of(refused, 429, "rate_limit_error")
        with client.stream("GET", "/events", headers=B) as response:
            assert response.status_code == 200


def test_an_engine_that_refuses_for_another_tenant_is_429_and_says_when_to_come_back():
    worker = FakeWorker(lambda request: [QuotaError("queue", "9 of 9 are yours", 7)])
    with serving(worker) as client:
        refused = client.post("/completion", json={"prompt": "x"})
        assert error_of(refused, 429, "rate_limit_error") == "9 of 9 are yours"
        of_ollama = client.post("/api/generate", json={"prompt": "x", "raw": True})
        assert of_ollama.json() == {"error": "9 of 9 are yours"}
        for one in (refused, of_ollama):
            assert (one.status_code, one.headers["retry-after"]) == (429, "7")
        assert 'headstart_quota_refusals_total{quota="queue"} 2\n' in client.get("/metrics").text


def test_a_call_of_more_requests_than_fit_is_refused_before_the_engine_sees_it():
    worker = FakeWorker(lambda request: [*say(request, b"x")[:-1], HOLD])
    worker.info_when_ready = replace(INFO, max_requests=6)
    with serving(worker, ServerConfig(api_key="a,b")) as client:
        body = {"prompt": ["x"] * 4, "stream": True}
        with client.stream("POST", "/v1/completions", json=body, headers=A):
            refused = client.post("/v1/completions", json=body, headers=A)
            assert refused.status_code == 503
            assert (
                "4 of your requests wait or run, and 4 more" in refused.json()["error"]["message"]
            )
            with client.stream("POST", "/v1/completions", json=body, headers=B) as other:
                assert other.status_code == 200
            assert len(worker.requests) == 8
