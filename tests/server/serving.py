"""Serves an app over real HTTP, in a thread, on a free port."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx2
import openai
from starlette.types import ASGIApp
from tests.quick_server import QuickServer
from tests.server.fake_worker import FakeWorker
from tests.thread_transport import ThreadTransport

from headstart.app.assemble import Models, build_scheduler, find_models, load_served_model
from headstart.config import Config, ServerConfig
from headstart.server.app import create_app
from headstart.server.extra_routes import Extra, applied
from headstart.server.listen import address_of, take_port, uvicorn_config
from headstart.server.service import ServedModel
from headstart.testing import ByteVocab
from headstart.text.chat_template import ChatTemplate
from headstart.types.worker import Worker
from headstart.worker.client import WorkerClient


def served_model(template: str | None = None, **more: Any) -> ServedModel:
    fields = {"vocab": ByteVocab(), **more}
    return ServedModel(alias="tiny", template=ChatTemplate(template, eos_token="<eos>"), **fields)


@contextmanager
def serving_app(app: ASGIApp, config: ServerConfig | None = None) -> Iterator[str]:
    """The address of a running server of any app."""
    listener = take_port(ServerConfig(port=0))
    settings = uvicorn_config(app, config or ServerConfig())
    settings.log_level = "critical"
    server = QuickServer(settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield address_of(listener)
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()


@contextmanager
def serving(
    worker: Worker | None = None,
    config: ServerConfig | None = None,
    model: ServedModel | None = None,
    wait: bool = True,
    extras: Sequence[Extra] = (),
) -> Iterator[httpx2.Client]:
    """A client of a running server; with `wait` only once it is ready."""
    served = model or served_model()
    config = applied(extras, config or ServerConfig())
    app = create_app(config, worker or FakeWorker(), lambda: served, lambda error: None, extras)
    with (
        serving_app(app, config) as address,
        httpx2.Client(base_url=address, timeout=60, trust_env=False, verify=False) as client,
    ):
        while wait and client.get("/health").status_code != 200:
            pass
        yield client


@contextmanager
def openai_of(client: httpx2.Client, key: str = "-") -> Iterator[Any]:
    """OpenAI's client for the same server."""
    url = str(client.base_url).rstrip("/")
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as sdk:
        yield sdk


def events_of(response: httpx2.Response) -> list[Any]:
    """What a stream of server-sent events holds."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def text_of(response: httpx2.Response) -> str:
    """The content of a streamed chat."""
    deltas = [event["choices"][0]["delta"] for event in events_of(response) if event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def error_of(response: httpx2.Response, status: int, kind: str = "invalid_request_error") -> str:
    """The message of an error, which has OpenAI's shape and llama-server's type."""
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (status, status, kind), error
    message: str = error["message"]
    return message


@contextmanager
def serving_models(config: Config, models: Models | None = None) -> Iterator[httpx2.Client]:
    """The same with real models (by default those of the configuration), the engine in a thread."""
    models = models or find_models(config)
    worker = WorkerClient(lambda: ThreadTransport(lambda: build_scheduler(config, models)))
    with serving(worker, config.server, load_served_model(config, models)) as client:
        yield client
