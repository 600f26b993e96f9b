"""One server with the default script for all tests that do not need their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.models import tiny_bert
from tests.server.fake_worker import FakeWorker
from tests.server.serving import openai_of, serving, serving_models

from headstart.config import Config, EmbeddingConfig, EngineConfig, ModelConfig


@pytest.fixture(scope="package")
def shared_worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture(scope="package")
def client(shared_worker: FakeWorker) -> Iterator[httpx2.Client]:
    with serving(shared_worker) as client:
        yield client


@pytest.fixture
def worker(shared_worker: FakeWorker) -> FakeWorker:
    shared_worker.requests.clear()
    return shared_worker


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
