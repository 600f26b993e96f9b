"""One server with the default script for all tests that do not need their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.images import picture, projector
from tests.models import tiny_bert
from tests.server.fake_worker import FakeWorker, hello
from tests.server.server_process import Server
from tests.server.serving import openai_of, serving, serving_models

from headstart.app import demo
from headstart.config import Config, EmbeddingConfig, EngineConfig, ModelConfig


@pytest.fixture(scope="package")
def shared_worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture(scope="package")
def client(shared_worker: FakeWorker) -> Iterator[httpx2.Client]:
    with serving(shared_worker) as client:
        yield client


@pytest.fixture
def worker(shared_worker: FakeWorker) -> Iterator[FakeWorker]:
    """That of the shared server; what it says is each test's to change."""
    shared_worker.requests.clear()
    yield shared_worker
    shared_worker.script = hello


@pytest.fixture(scope="package")
def sdk(client: httpx2.Client) -> Iterator[Any]:
    with openai_of(client) as sdk:
        yield sdk


def embedding_config(path: Path, wanted: EmbeddingConfig) -> Config:
    return Config(
        model=ModelConfig(model=str(path)),
        engine=EngineConfig(gpu_layers=0, threads=1),
        embedding=wanted,
    )


@pytest.fixture(scope="package")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    path = tiny_bert(tmp_path_factory.mktemp("model") / "bert.gguf")
    with serving_models(embedding_config(path, EmbeddingConfig(embeddings=True))) as client:
        yield client


@pytest.fixture(scope="package")
def seeing_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A process whose model reads images and sounds, and images in a folder by their names."""
    folder = tmp_path_factory.mktemp("images")
    (folder / "media").mkdir()
    (folder / "media/a.png").write_bytes(picture(1))
    (folder / "secret.png").write_bytes(picture(1))
    mmproj = projector(folder / "mmproj.gguf", "janus_pro", 256, hears=True)
    arguments = ("--mmproj", str(mmproj), "-m", str(demo.path(demo.TARGET)), "-t", "1")
    media = ("--media-path", str(folder / "media"), "-c", "2048", "--spec-draft-n-max", "4")
    with Server([*arguments, *media], folder / "cache") as running:
        yield running


@pytest.fixture(scope="package")
def seeing(seeing_server: Server) -> Iterator[httpx2.Client]:
    with seeing_server.client() as found:
        yield found
