"""The ASGI app: all routes around one worker."""

from __future__ import annotations

import asyncio
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
    timer = None
    if config.sleep_idle_seconds > 0:
        timer = IdleTimer(worker, config.sleep_idle_seconds)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(_load(service, load_model, on_loaded, timer)),
            asyncio.create_task(status_events.tell_states(service)),
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
    if timer is not None:
        app.add_middleware(waking, timer=timer)
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
    timer: IdleTimer | None,
) -> None:
    """Load the worker, then the model's facts; keep a failure for /health.

    The worker comes first because libllama aborts on some damaged files, which must only end the
    engine process.
    """
    failure: Exception | None = None
    try:
        await service.worker.start()
        service.model = await service.text_threads.run(load_model)
        if timer is not None:
            timer.restart()
    except Exception as error:  # any failure is reported by /health
        failure, service.load_failure = error, str(error)
    on_loaded(failure)


class IdleTimer:
    """Unloads the model after a time without requests; the next request loads it again.

    Only POST requests count, so that monitoring by GET does not keep the model loaded. Call it on
    the app's event loop.
    """

    def __init__(self, worker: Worker, seconds: int) -> None:
        self._worker = worker
        self._seconds = seconds
        self._num_running = 0
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def awake(self) -> AsyncIterator[None]:
        """Load the model if it is not loaded, and keep it loaded.

        Raises:
            CapacityError: it cannot be loaded.
        """
        self._num_running += 1
        try:
            await self._worker.wake()
            yield
        finally:
            self._num_running -= 1
            self.restart()

    def restart(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._sleep())

    async def _sleep(self) -> None:
        while self._worker.status not in ("sleeping", "closed"):  # it may be restarting
            await asyncio.sleep(self._seconds)
            if self._num_running:  # the last one restarts the timer
                return
            await self._worker.sleep()


def waking(app: ASGIApp, *, timer: IdleTimer) -> ASGIApp:
    """ASGI middleware behind the guard: POST requests load the model and keep it loaded."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        try:
            async with timer.awake():
                await app(scope, receive, send)
        except HeadstartError as error:  # the app handles its own errors
            await error_response(error, scope["path"])(scope, receive, send)

    return answer
