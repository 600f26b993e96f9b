"""The router's ASGI app: its own routes, and everything else passed to the model that is named."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import orjson
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headstart.config import Config
from headstart.gateway.router.child import TENANT_HEADER
from headstart.gateway.router.downloads import Downloads, ModelStore
from headstart.gateway.router.listing import RouterState, json_response, props, routes
from headstart.gateway.router.metrics import render, report_of
from headstart.gateway.router.ollama import ollama_routes
from headstart.gateway.router.pool import Pool
from headstart.gateway.router.pooled_model import PooledModel
from headstart.gateway.router.presets import ModelPreset
from headstart.gateway.router.proxy import (
    Backend,
    ProxiedRequest,
    Proxy,
    ProxyLimits,
    named_model,
    read_body,
    relay,
    unless_gone,
)
from headstart.server import errors
from headstart.server.errors import ApiError, log_failure
from headstart.server.extras import Extras
from headstart.server.guard import Guard
from headstart.server.page import POLICY, Page, page_files
from headstart.server.routing import prefixed
from headstart.server.threads import ClientGoneError
from headstart.types.errors import BackendError

TRUE = ("1", "true")
PROMETHEUS = "text/plain; version=0.0.4"


def create_app(
    config: Config,
    make_pool: Callable[[], Pool],
    read_presets: Callable[[], Sequence[ModelPreset]],
    settings: Sequence[Mapping[str, Any]] = (),
    extras: Extras | None = None,
    store: ModelStore | None = None,
) -> Starlette:
    """Build the app. Models are started while it runs, and ended with it.

    Args:
        make_pool: called in the loop that serves.
        read_presets: reads again what there is; raises ConfigError.
        settings: what /props shows.
        store: where models are downloaded to; None: none are.

    Raises:
        ConfigError: the API key file, or what `extras` name, cannot be used.
    """
    server = config.server
    extras = extras or Extras()
    state = RouterState(config, read_presets, settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        state.pool = make_pool()
        forward.proxy = Proxy(ProxyLimits(silence=server.timeout))
        state.pool.describe = forward.describe
        if store is not None:
            state.downloads = Downloads(store, state.pool.events, state.reload)
        for model in state.pool.models.values():
            if model.preset.loads_on_startup:
                state.pool.load(model)
        try:
            async with extras.running(server):
                yield
        finally:
            if state.downloads is not None:
                await state.downloads.close()
            await state.pool.close()
            await forward.proxy.close()

    forward = Forward(state)
    app = Starlette(routes=[*routes(), *ollama_routes()], lifespan=lifespan)
    app.router.default = forward
    app.router.redirect_slashes = False
    app.state.router = state
    app.add_middleware(Guard, config=server, why_not_ready=lambda: None)
    policy = POLICY if server.path is None else None
    app.add_middleware(Page, files=page_files(server), policy=policy)
    extras.install(app)
    if server.api_prefix:
        app.add_middleware(prefixed, prefix=server.api_prefix.rstrip("/"))
    errors.install(app)
    return app


class Forward:
    """ASGI app: passes a request to the model that it names, which is loaded if need be."""

    def __init__(self, state: RouterState) -> None:
        self._state = state
        self.proxy: Proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            body = await read_body(receive)
            query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
            if scope["path"] == "/props" and "model" not in query:
                await json_response(props(self._state))(scope, receive, send)
                return
            if scope["path"] == "/metrics" and "model" not in query:
                text = render(report_of(self._state.pool))
                await Response(text, media_type=PROMETHEUS)(scope, receive, send)
                return
            model = self._model(scope, query, body)
            await self._pass_on(model, ProxiedRequest.of(scope, body), scope, receive, send)
        except ClientGoneError:
            return

    async def describe(self, backend: Backend) -> Mapping[str, Any]:
        """What a model's server says of it.

        Raises:
            BackendError, ValueError, LookupError: nothing that can be read.
        """
        answer = await self.proxy.open(backend, ProxiedRequest("GET", "/v1/models", []))
        try:
            found: Mapping[str, Any] = orjson.loads(await answer.read())["data"][0]
        finally:
            await answer.close()
        return found

    def _model(self, scope: Scope, query: Mapping[str, Sequence[str]], body: bytes) -> PooledModel:
        """The model that a request names, if it may be used.

        Raises:
            ApiError: there is none, or it is not loaded and is not to be.
        """
        if scope["method"] == "POST":
            name: object = named_model(body)
        else:
            name = query.get("model", [None])[0]
        model = self._state.find(name)
        asked = query.get("autoload", [""])[0]
        loads = asked in TRUE if asked else self._state.config.router.models_autoload
        if not loads and not model.is_running:
            raise ApiError(400, f"the model {model.name} is not loaded; POST /models/load loads it")
        return model

    async def _pass_on(
        self,
        model: PooledModel,
        request: ProxiedRequest,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        pool = self._state.pool
        is_task = request.method == "POST"
        backend = await unless_gone(receive, pool.acquire(model, wakes=is_task))
        lease = _Lease(pool, model)
        try:
            tenant = scope.get("headstart.namespace", "")
            opened = self.proxy.open(
                _of_tenant(backend, tenant), request, wants_first_piece=is_task
            )
            answer = await unless_gone(receive, opened)
            if answer.is_event_stream and not is_task:
                lease.end()  # it goes on as long as the model does, and does not keep it
            try:
                await relay(answer, receive, send)
            except BackendError as error:  # the body ends without its end, which clients notice
                log_failure(error)
        finally:
            lease.end()


class _Lease:
    """Keeps a model loaded until it ends; ending it twice is harmless."""

    def __init__(self, pool: Pool, model: PooledModel) -> None:
        self._pool, self._model, self._is_over = pool, model, False

    def end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._pool.release(self._model)


def _of_tenant(backend: Backend, tenant: str) -> Backend:
    return replace(backend, headers={**backend.headers, TENANT_HEADER.lower(): tenant})
