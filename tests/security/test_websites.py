"""A server without a key is its owner's, not that of the pages that the owner visits."""

from __future__ import annotations

import httpx2
import pytest
from tests.server.fake_worker import FakeWorker
from tests.server.serving import serving

from headstart.config import ServerConfig

PAGE = "http://page.example"
BODY = {"prompt": "a"}
TEXT = {"Content-Type": "text/plain"}


@pytest.fixture(scope="module")
def worker():
    return FakeWorker()


@pytest.fixture(scope="module")
def client(worker):
    with serving(worker) as client:
        yield client


def own_host(client: httpx2.Client) -> str:
    return client.base_url.netloc.decode()


def test_a_page_of_another_origin_neither_reads_nor_generates(client, worker):
    worker.requests.clear()
    headers = {"Origin": PAGE}
    for response in (
        client.post("/completion", json=BODY, headers=headers),
        client.post(
            "/completion",
            content=b'{"prompt": "a"}',
            headers=headers | {"Content-Type": "text/plain"},
        ),
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
    worker.requests.clear()
    for host in ("rebound.example", "rebound.example:8080", "localhost.page.example", "[x"):
        response = client.post("/completion", json=BODY, headers={"Host": host})
        assert response.status_code in (400, 403), host
    assert "--allowed-hosts" in client.get("/props", headers={"Host": "x.example"}).text
    assert worker.requests == []


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8080",
        "a.localhost",
        "127.0.0.1:1",
        "[::1]:80",
        "192.168.1.7",
        "localhost.",
    ],
)
def test_our_own_names_and_addresses_are(client, host):
    assert client.get("/props", headers={"Host": host}).status_code == 200


def test_health_is_for_every_name(client):
    assert client.get("/health", headers={"Host": "probe.example"}).status_code == 200


def test_our_own_page_and_programs_are_served(client):
    own = f"http://{own_host(client)}"
    assert client.post("/completion", json=BODY, headers={"Origin": own}).status_code == 200
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


def test_a_browser_opens_an_address_that_the_user_types(client):
    typed = {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/metrics", headers=typed).status_code == 200
    assert client.get("/slots", headers=typed).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin"])
def test_a_link_or_a_script_opens_the_page_and_nothing_else(client, worker, site):
    worker.requests.clear()
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
        assert (response.status_code, response.headers["access-control-allow-origin"]) == (
            200,
            PAGE,
        )


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
