"""Serves an app over real HTTP, in a thread, on a free port."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import uvicorn
from tests.server.fake_worker import FakeWorker

from headstart.config import ServerConfig
from headstart.server.app import create_app
from headstart.server.listen import address_of, take_port, uvicorn_config
from headstart.server.model import ServedModel
from headstart.testing import ByteVocab
from headstart.text.chat_template import ChatTemplate


def served_model(template: str | None = None) -> ServedModel:
    return ServedModel(
        alias="tiny", vocab=ByteVocab(), template=ChatTemplate(template, eos_token="<eos>")
    )


@contextmanager
def serving(
    worker: FakeWorker | None = None,
    config: ServerConfig | None = None,
    model: ServedModel | None = None,
    wait: bool = True,
) -> Iterator[httpx2.Client]:
    """A client of a running server; with `wait` only once it is ready."""
    served = model or served_model()
    app = create_app(config or ServerConfig(), worker or FakeWorker(), lambda: served)
    listener = take_port(ServerConfig(port=0))
    settings = uvicorn_config(app, config or ServerConfig())
    settings.log_level = "critical"
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    address = address_of(listener)
    try:
        with httpx2.Client(base_url=address, timeout=20, trust_env=False, verify=False) as client:
            while wait and client.get("/health").status_code != 200:
                pass
            yield client
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()
