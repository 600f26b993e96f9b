"""Readiness, keys, cross-origin headers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.server.fake_worker import FakeWorker
from tests.server.serving import error_of, served_model, serving

from headstart.config import ServerConfig
from headstart.server.app import create_app
from headstart.server.guard import load_keys
from headstart.types.errors import ConfigError, ModelError

BODY = {"prompt": "a"}


def test_everything_but_the_page_is_503_until_the_model_is_loaded():
    worker = FakeWorker()
    may_load = threading.Event()

    async def start() -> None:
        await asyncio.to_thread(may_load.wait, 10)
        await FakeWorker.start(worker)

    worker.start = start
    with serving(worker, wait=False) as client:
        assert client.get("/").status_code == 200
        for response in (
            client.get("/health"),
            client.get("/v1/models"),
            client.post("/completion", json=BODY),
        ):
            assert response.status_code == 503
            assert response.json() == {
                "error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}
            }
        may_load.set()
        while client.get("/v1/health").status_code != 200:
            pass
        assert client.get("/health").json() == {"status": "ok"}
    assert worker.is_closed


def test_a_restarting_engine_is_503_with_the_reason():
    worker = FakeWorker()
    with serving(worker) as client:
        worker.status, worker.failure = "restarting", "the engine process was aborted"
        response = client.get("/health")
        assert "the engine process was aborted" in error_of(response, 503, "unavailable_error")
        assert client.post("/completion", json=BODY).status_code == 503
        worker.status, worker.failure = "ready", ""
        assert client.post("/completion", json=BODY).status_code == 200


def test_a_model_that_cannot_be_loaded_is_told_to_the_starter_and_to_health():
    worker, told = FakeWorker(), []
    worker.start_error = ModelError("draft.gguf is truncated")
    app = create_app(ServerConfig(), worker, served_model, told.append)

    async def run() -> str:
        async with app.router.lifespan_context(app):
            while not told:
                await asyncio.sleep(0)
            return app.state.service.why_not_ready()

    assert "draft.gguf is truncated" in asyncio.run(run())
    assert told == [worker.start_error]


def test_keys_are_needed_everywhere_but_for_health_and_the_page(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# production keys\ngamma\n\n delta \n  # old\nbe#ta\n")
    worker = FakeWorker()
    with serving(worker, ServerConfig(api_key="alpha,beta", api_key_file=str(file))) as client:
        assert client.get("/health").status_code == 200
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"X-Api-Key": "alph"},
            {"X-Api-Key": "# old"},
            {"Authorization": "Bearer"},
        ):
            response = client.post("/completion", json=BODY, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["type"] == "authentication_error"
        assert client.get("/").status_code == 200
        for path in ("/nothing", "/props", "/events"):
            assert client.get(path).status_code == 401
        assert worker.requests == []
        for headers in (
            {"Authorization": "Bearer alpha"},
            {"X-Api-Key": "beta"},
            {"X-Api-Key": "delta"},
            {"X-Api-Key": "be#ta"},
        ):
            assert client.post("/completion", json=BODY, headers=headers).status_code == 200
    namespaces = [request.namespace for request in worker.requests]
    assert len(set(namespaces)) == 4
    assert not any(key in name for key in ("alpha", "beta", "delta") for name in namespaces)


def test_a_key_file_that_cannot_be_used_stops_the_start(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_keys(ServerConfig(api_key_file=str(tmp_path / "missing")))
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "comments").write_text("# nothing yet\n")
    for name in ("empty", "comments"):
        with pytest.raises(ConfigError, match="holds no key"):
            load_keys(ServerConfig(api_key_file=str(tmp_path / name)))


def test_keys_may_come_from_a_pipe_though_they_are_looked_at_twice(tmp_path):
    os.mkfifo(tmp_path / "keys")
    config = ServerConfig(api_key_file=str(tmp_path / "keys"))
    with ThreadPoolExecutor(1) as pool:
        pool.submit((tmp_path / "keys").write_text, "alpha\n")
        assert load_keys(config) == (b"alpha",)
    assert load_keys(config) == (b"alpha",)


def test_named_origins_may_read_and_preflight_needs_no_key():
    config = ServerConfig(api_key="k", cors_origins="http://page.example")
    with serving(config=config) as client:
        headers = {
            "Origin": "http://page.example",
            "Access-Control-Request-Headers": "authorization",
        }
        preflight = client.options("/v1/chat/completions", headers=headers)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "http://page.example"
        assert preflight.headers["access-control-allow-headers"] == "authorization"
        assert preflight.headers["access-control-allow-credentials"] == "true"
        refused = client.get("/v1/models", headers=headers)
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (
            401,
            "http://page.example",
        )
        assert "access-control-allow-origin" not in client.get("/health").headers


def test_a_proxy_with_the_key_names_the_tenant():
    worker = FakeWorker()
    config = ServerConfig(api_key="first,second", tenant_header="X-Tenant")
    with serving(worker, config) as client:
        for key, tenant in (("first", "a"), ("second", "a"), ("first", "b"), ("first", None)):
            headers = {"authorization": f"Bearer {key}"} | ({"x-tenant": tenant} if tenant else {})
            assert client.post("/completion", json=BODY, headers=headers).status_code == 200
        assert client.post("/completion", json=BODY, headers={"x-tenant": "a"}).status_code == 401
    a, again, b, nobody = (request.namespace for request in worker.requests)
    assert a == again, "whichever key the proxy has"
    assert len({a, b, nobody}) == 3


def test_methods_and_headers_of_other_origins_can_be_named():
    config = ServerConfig(
        cors_origins="http://page.example", cors_methods="GET, POST", cors_headers="x-mine"
    )
    with serving(config=config) as client:
        headers = {"Origin": "http://page.example", "Access-Control-Request-Headers": "x-other"}
        said = client.options("/v1/models", headers=headers).headers
        assert said["access-control-allow-methods"] == "GET, POST"
        assert said["access-control-allow-headers"] == "x-mine"


DOCKERFILE = (Path(__file__).parents[2] / "Dockerfile").read_text("utf-8")


def is_healthy(port: int) -> bool:
    found = re.search(r"HEALTHCHECK.*?CMD (\[.*?\])\n", DOCKERFILE, re.DOTALL)
    assert found is not None
    program, *arguments = json.loads(found[1])
    assert program == "python3"
    environment = {"LLAMA_ARG_PORT": str(port)}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True)
    return done.returncode == 0


def test_the_health_check_asks_the_server_on_its_port(client):
    assert is_healthy(client.base_url.port)
    assert not is_healthy(1)
