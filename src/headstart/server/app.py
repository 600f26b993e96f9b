"""The ASGI app: all routes around one worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headstart.config import ServerConfig
from headstart.server import (
    adapters,
    anthropic,
    chat,
    completions,
    embeddings,
    extra_routes,
    guard,
    kept_streams,
    metrics,
    ollama,
    responses,
    status,
    status_events,
    text,
    transcriptions,
)
from headstart.server.errors import error_response
from headstart.server.extra_routes import Extra
from headstart.server.routing import Endpoint, describe
from headstart.server.service import ServedModel, Service
from headstart.types.errors import HeadstartError
from headstart.types.worker import Worker

FAMILIES = (
    status, status_events, chat, responses, anthropic, completions, embeddings,
    ollama, text, metrics, adapters, kept_streams, transcriptions,
)  # fmt: skip


def create_app(
    config: ServerConfig,
    worker: Worker,
    load_model: Callable[[], ServedModel],
    on_loaded: Callable[[Exception | None], None],
    extras: Sequence[Extra] = (),
) -> Starlette:
    """Build the app, which starts the worker, answers 503 until it is ready, and closes it.

    Args:
        config: as `extra_routes.applied` gives it.
        load_model: loads the model's facts for the routes; called in a thread once the worker
            is ready.
        on_loaded: called when requests can be answered, or with the error that prevents it,
            which /health then reports.

    Raises:
        ConfigError: the API key file or something in `extras` cannot be used.
    """
    service = Service(config, worker)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(_load(service, load_model, on_loaded)),
            asyncio.create_task(status_events.tell_states(service)),
            asyncio.create_task(_unload_when_idle(service)),
        ]
        try:
            async with extra_routes.running(extras, config):
                yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await service.close()

    routes = [route for family in FAMILIES for route in family.routes.all()]
    routes.append(_openapi_route([*endpoints(), *extra_routes.endpoints_of(extras)]))
    app = Starlette(routes=routes, lifespan=lifespan)
    app.state.service, app.state.threads = service, service.prompt_threads
    app.state.streams = kept_streams.KeptStreams()
    app.state.responses = responses.ResponseStore(config.tenant_responses_mb << 20)
    if config.sleep_idle_seconds > 0:
        app.add_middleware(waking, service=service)
    guard.install(app, config, extras, service.why_not_ready)
    return app


def endpoints() -> list[Endpoint]:
    """All endpoints without those of extras, family by family."""
    return [endpoint for family in FAMILIES for endpoint in family.routes.endpoints]


def _openapi_route(endpoints: Sequence[Endpoint]) -> Route:
    """/openapi.json, made at the first request because it builds every body's schema."""
    document = cache(lambda: describe(endpoints))

    async def openapi(http: HttpRequest) -> Response:
        return JSONResponse(await asyncio.to_thread(document))  # orjson writes no 2**64

    return Route("/openapi.json", openapi)


async def _load(
    service: Service,
    load_model: Callable[[], ServedModel],
    on_loaded: Callable[[Exception | None], None],
) -> None:
    """Load the worker, then the model's facts; keep a failure for /health.

    The worker comes first because libllama aborts on some damaged files, which must only end the
    engine process.
    """
    failure: Exception | None = None
    try:
        await service.worker.start()
        model = await service.text_threads.run(load_model)
        service.idle_since, service.model = time.monotonic(), model
    except Exception as error:  # any failure is reported by /health
        failure, service.load_failure = error, str(error)
    on_loaded(failure)


async def _unload_when_idle(service: Service) -> None:
    """Unload the model after a time without requests; the next one loads it again."""
    seconds = service.config.sleep_idle_seconds
    while seconds > 0:
        await asyncio.sleep(1)
        is_idle = service.model is not None and not service.num_awake
        if is_idle and time.monotonic() - service.idle_since >= seconds:
            await service.worker.sleep()


def waking(app: ASGIApp, *, service: Service) -> ASGIApp:
    """ASGI middleware behind the guard: POST requests load the model and keep it loaded.

    Others, such as a monitoring's GET, do neither.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        service.num_awake += 1
        try:
            await service.worker.wake()
            await app(scope, receive, send)
        except HeadstartError as error:  # the app handles its own errors
            await error_response(error, scope["path"])(scope, receive, send)
        finally:
            service.num_awake -= 1
            service.idle_since = time.monotonic()

    return answer
