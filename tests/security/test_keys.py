"""API keys: who has none learns nothing; who has one is known however it is written, and leaves
room for the others.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
from tests.server.fake_worker import HOLD, INFO, FakeWorker, say
from tests.server.serving import serving

from headstart.config import ServerConfig
from headstart.server import events
from headstart.types.errors import QuotaError

SECRET = "/home/owner/models/secret.gguf"


def test_health_names_files_only_to_those_with_a_key():
    worker = FakeWorker()
    with serving(worker, ServerConfig(api_key="k")) as client:
        worker.status, worker.failure = "failed", f"{SECRET} is damaged"
        stranger = client.get("/health")
        assert stranger.status_code == 503
        assert SECRET not in stranger.text
        assert "engine failed" in stranger.text
        assert SECRET not in client.get("/health", headers={"X-Api-Key": "wrong"}).text
        assert SECRET in client.get("/health", headers={"X-Api-Key": "k"}).text


def test_the_other_paths_ask_for_the_key_before_they_say_why_they_cannot():
    worker = FakeWorker()
    with serving(worker, ServerConfig(api_key="k")) as client:
        worker.status, worker.failure = "failed", f"{SECRET} is damaged"
        response = client.post("/completion", json={"prompt": "a"})
        assert response.status_code == 401
        assert SECRET not in response.text


def test_without_keys_health_says_why():
    worker = FakeWorker()
    with serving(worker) as client:
        worker.status, worker.failure = "restarting", "signal SIGKILL"
        assert "SIGKILL" in client.get("/health").text


@pytest.mark.parametrize("written", ["utf-8", "latin-1"])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_key_beyond_ascii_is_known_in_both_encodings_and_any_bearer(written, scheme):
    key = "schlüssel"
    with serving(config=ServerConfig(api_key=key)) as client:
        for name, value in (
            (b"Authorization", f"{scheme} {key}"),
            (b"X-Api-Key", key),
        ):
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
    monkeypatch.setattr(events, "MAX_LISTENERS", 4)
    with serving(config=ServerConfig(api_key="a,b")) as client, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(client.stream("GET", "/events", headers=A))
        refused = client.get("/events", headers=A)
        assert refused.status_code == 429
        assert "you have 2 of 4 places" in refused.json()["error"]["message"]
        with client.stream("GET", "/events", headers=B) as response:
            assert response.status_code == 200


def test_an_engine_that_refuses_for_another_tenant_is_429_and_says_when_to_come_back():
    worker = FakeWorker(lambda request: [QuotaError("queue", "9 of 9 are yours", 7)])
    with serving(worker) as client:
        refused = client.post("/completion", json={"prompt": "x"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert 'headstart_quota_refusals_total{quota="queue"} 1\n' in client.get("/metrics").text


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
