"""The ASGI app: all routes around one worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from headstart.config import ServerConfig
from headstart.server import (
    adapters,
    anthropic,
    chat,
    completions,
    corpus,
    cors_proxy,
    embeddings,
    errors,
    events,
    infill,
    metrics,
    native,
    ollama,
    rerank,
    responses,
    slots,
    status,
    text,
    tools,
    vertex,
)
from headstart.server.extras import Extras
from headstart.server.guard import Guard
from headstart.server.model import ServedModel, Service
from headstart.server.openapi import describe, page
from headstart.server.page import POLICY, Page, page_files
from headstart.server.routing import Endpoint, Prefixed
from headstart.server.sleeping import IdleTimer, Waking
from headstart.types.worker import Worker

logger = logging.getLogger(__name__)

FAMILIES = (
    status, events, chat, responses, anthropic, completions, native, infill, embeddings, rerank,
    ollama, text, metrics, slots, adapters, corpus, tools, cors_proxy,
)  # fmt: skip


def create_app(
    config: ServerConfig,
    worker: Worker,
    load_model: Callable[[], ServedModel],
    on_loaded: Callable[[Exception | None], None] | None = None,
    extras: Extras | None = None,
) -> Starlette:
    """Build the app. It starts the worker when it starts, answers 503 until that is done, and
    closes it at the end.

    Args:
        config: as `Extras.applied` gives it.
        load_model: gives what the routes need of the model; runs in a thread once the worker is
            ready.
        on_loaded: told when requests can be answered, or why worker or model could not be loaded;
            after a failure
            the app goes on saying it in /health.

    Raises:
        ConfigError: the API key file, or what `extras` name, cannot be used.
    """
    extras = extras or Extras()
    service = Service(config, worker)
    timer = None
    if config.sleep_idle_seconds > 0:
        timer = IdleTimer(worker, config.sleep_idle_seconds)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        loading = asyncio.create_task(_load(service, load_model, on_loaded, timer))
        try:
            async with hosted.running(config):
                yield
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            for threads in (service.prompt_threads, service.text_threads):
                threads.close()
            await worker.close()

    routes = [route for family in FAMILIES for route in family.routes.all()]
    app = Starlette(routes=[*routes, *_api_pages()], lifespan=lifespan)
    app.router.redirect_slashes = False
    app.state.service = service
    hosted = tools.install(app, extras.tools)
    if timer is not None:
        app.add_middleware(Waking, timer=timer)
    app.add_middleware(Guard, config=config, why_not_ready=service.why_not_ready)
    # another page brings its own rules along
    policy = POLICY if config.path is None else None
    app.add_middleware(Page, files=page_files(config), policy=policy)
    if extras.vertex is not None:
        vertex.install(app, extras.vertex)
    if config.api_prefix:
        app.add_middleware(Prefixed, prefix=config.api_prefix.rstrip("/"))
    errors.install(app)
    return app


def endpoints() -> list[Endpoint]:
    """Everything that is served, family by family."""
    return [endpoint for family in FAMILIES for endpoint in family.routes.endpoints]


def _api_pages() -> list[Route]:
    """/openapi.json and /docs, made when somebody asks: they need every body's schema."""

    @cache
    def document() -> dict[str, Any]:
        return describe(endpoints())

    async def openapi(http: HttpRequest) -> Response:
        return JSONResponse(await asyncio.to_thread(document))

    async def docs(http: HttpRequest) -> Response:
        return HTMLResponse(page(await asyncio.to_thread(document)))

    return [Route("/openapi.json", openapi), Route("/docs", docs)]


async def _load(
    service: Service,
    load_model: Callable[[], ServedModel],
    on_loaded: Callable[[Exception | None], None] | None,
    timer: IdleTimer | None,
) -> None:
    """Load the worker, then this side; a failure is kept for /health.

    In this order, because libllama aborts on some damaged files: then only the engine process ends.
    """
    failure: Exception | None = None
    try:
        await service.worker.start()
        service.model = await service.text_threads.run(load_model)
        if timer is not None:
            timer.restart()
    except Exception as error:  # the server's own start: everything that goes wrong is told
        failure, service.load_failure = error, str(error)
    if on_loaded:
        # who starts the server says why it ends; said here as well it would be read twice
        on_loaded(failure)
    elif failure:
        logger.error("the model could not be loaded: %s", failure)
