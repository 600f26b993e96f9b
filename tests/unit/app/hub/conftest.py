"""A hub of our own, and a client with an empty cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.app.hub.fake_hub import Client, FakeHub


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub.serving() as server:
        yield server


@pytest.fixture
def client(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return Client(hub, tmp_path / "cache")
