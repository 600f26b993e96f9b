"""API keys: who has none learns nothing; who has one is known however it is written."""

from __future__ import annotations

import pytest
from tests.server.fake_worker import FakeWorker
from tests.server.serving import serving

from headstart.config import ServerConfig

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
