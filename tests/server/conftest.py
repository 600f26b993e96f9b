"""One server with the default script for all tests that do not need their own."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import openai
import pytest
from tests.server.fake_worker import FakeWorker
from tests.server.serving import serving


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
def sdk(client: httpx2.Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="-", max_retries=0) as sdk:
        yield sdk
