"""The router's ASGI app: its own routes, and everything else passed to the model that is named."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headstart.gateway.proxy import Proxy
from headstart.gateway.router.child import TENANT_HEADER
from headstart.gateway.router.listing import OwnRoutes
from headstart.gateway.router.metrics import render
from headstart.gateway.router.pooled_model import PooledModel
from headstart.gateway.upstream import Connection
from headstart.server import extra_routes, guard, kept_streams
from headstart.server.errors import ApiError, shorten
from headstart.server.extra_routes import Extra
from headstart.server.kept_streams import KeptStreams
from headstart.server.routing import json_response
from headstart.server.threads import Threads, unless_left
from headstart.structures.tenants import caller_of


def create_app(own: OwnRoutes, extras: Sequence[Extra]) -> Starlette:
    """Build the app. Models are started while it runs, and ended with it.

    Raises:
        ConfigError: the API key file, or what `extras` name, cannot be used.
    """
    server, pool = own.config.server, own.pool
    forward = Forward(own, Proxy(server.timeout))
    threads = Threads("bodies", 1, max_waiting=256)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        for model in pool.models.values():
            if model.preset.loads_on_startup:
                pool.load(model)
        try:
            async with extra_routes.running(extras, server):
                yield
        finally:
            await own.downloads.close()
            await pool.close()
            threads.close()
            forward.proxy.close()

    app = Starlette(routes=[*own.all(), *kept_streams.routes.all()], lifespan=lifespan)
    app.state.threads, app.state.streams = threads, KeptStreams()
    app.router.default = forward
    guard.install(app, server, extras, lambda: None)
    return app


class Forward:
    """ASGI app: passes a request to the model that it names, which is loaded if need be."""

    def __init__(self, own: OwnRoutes, proxy: Proxy) -> None:
        self._own, self._pool, self.proxy = own, own.pool, proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = HttpRequest(scope, receive)
        path = scope["path"]
        is_own = http.method != "POST" and not http.query_params.get("model")
        await http.body()  # what comes behind it is a disconnect
        if path == "/props" and is_own:
            await json_response(self._own.props())(scope, receive, send)
            return
        if path == "/metrics" and is_own:
            metrics = Response(render(self._pool), media_type="text/plain; version=0.0.4")
            await metrics(scope, receive, send)
            return
        if http.method == "POST":
            name, stream = await self._own.named(http)
        else:
            name, stream = http.query_params.get("model"), None
        opening = partial(self._open, self._model(http, name), http)
        await self.proxy.answer(http, send, opening, stream=stream)

    def _model(self, http: HttpRequest, name: object) -> PooledModel:
        """The model that a request names, if it may be used.

        Raises:
            ApiError: there is none, or it is not loaded and must not be.
        """
        if not isinstance(name, str) or not name:
            raise ApiError(400, "model name is missing from the request; GET /models lists them")
        model = self._pool.find(name)
        if model is None:
            raise ApiError(400, f"model {shorten(name)} not found; GET /models lists them")
        autoload = http.query_params.get("autoload")
        loads = autoload in ("1", "true") if autoload else self._own.config.router.models_autoload
        if not loads and not model.is_running:
            raise ApiError(400, f"the model {model.name} is not loaded; POST /models/load loads it")
        return model

    async def _open(
        self, model: PooledModel, http: HttpRequest, receive: Receive, lease: ExitStack
    ) -> Connection:
        """The answer of a model's server, which has begun; `lease` then releases the model."""
        is_task = http.method == "POST"
        backend = await unless_left(receive, self._pool.acquire(model, wakes=is_task))
        lease.callback(self._pool.release, model, is_use=is_task)
        tenant = {TENANT_HEADER.lower(): caller_of(http.scope).tenant}
        backend = replace(backend, headers={**backend.headers, **tenant})
        opening = self.proxy.open(backend, http.scope, await http.body())
        answer = await unless_left(receive, opening)
        if answer.is_event_stream and not is_task:
            lease.close()  # such a stream lasts as long as the model; it must not keep it
        return answer
