"""The router's ASGI app: its own routes, and everything else passed to the model that is named."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

import orjson
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headstart.config import Config
from headstart.gateway.proxy import Backend, ProxiedRequest, Proxy
from headstart.gateway.router.child import TENANT_HEADER
from headstart.gateway.router.downloads import ModelStore
from headstart.gateway.router.listing import OwnRoutes, ReadPresets
from headstart.gateway.router.metrics import render
from headstart.gateway.router.pool import Pool
from headstart.gateway.router.pooled_model import PooledModel
from headstart.server import guard
from headstart.server.body import HEADER
from headstart.server.errors import ApiError, shorten
from headstart.server.extra_routes import Extras
from headstart.server.routing import json_response
from headstart.server.threads import unless_left
from headstart.structures.tenants import caller_of, may_take
from headstart.types.errors import CapacityError


def create_app(
    config: Config,
    pool: Pool,
    read_presets: ReadPresets,
    store: ModelStore,
    settings: Sequence[Mapping[str, Any]] = (),
    extras: Extras | None = None,
) -> Starlette:
    """Build the app. Models are started while it runs, and ended with it.

    Raises:
        ConfigError: the API key file, or what `extras` name, cannot be used.
    """
    server = config.server
    extras = extras or Extras()
    own = OwnRoutes(config, pool, read_presets, store, settings)
    forward = Forward(own, Proxy(server.timeout))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        for model in pool.models.values():
            if model.preset.loads_on_startup:
                pool.load(model)
        try:
            async with extras.running(server):
                yield
        finally:
            await own.close()
            await pool.close()
            forward.proxy.close()

    app = Starlette(routes=own.all(), lifespan=lifespan)
    app.router.default = forward
    guard.install(app, server, extras, lambda: None)
    return app


class Forward:
    """ASGI app: passes a request to the model that it names, which is loaded if need be."""

    def __init__(self, own: OwnRoutes, proxy: Proxy) -> None:
        self._own, self._pool, self.proxy = own, own.pool, proxy
        self._streams = Streams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = HttpRequest(scope, receive)
        path, names_model = scope["path"], bool(http.query_params.get("model"))
        body = await http.body()
        answer: Response | None = None
        if path == "/props" and not names_model:
            answer = json_response(self._own.props())
        elif path == "/metrics" and not names_model:
            answer = Response(render(self._pool), media_type="text/plain; version=0.0.4")
        elif path == "/v1/streams/lookup":
            answer = json_response(await self._look_up(ProxiedRequest.of(scope, body), scope))
        elif path == "/v1/stream":
            answer = self._without_model(http)
        if answer is not None:
            await answer(scope, receive, send)
            return
        model = await self._model(http)
        await self._pass_on(model, ProxiedRequest.of(scope, body), scope, receive, send)

    async def _model(self, http: HttpRequest) -> PooledModel:
        """The model that a request names, if it may be used.

        Raises:
            ApiError: there is none, or it is not loaded and must not be.
        """
        query, conversation = http.query_params, conversation_of(http)
        name: object = query.get("model")
        if http.method == "POST":
            name = await self._own.named(http)
        elif conversation and http.scope["path"] == "/v1/stream":
            name = self._streams.model_of(conversation)
        if not isinstance(name, str) or not name:
            raise ApiError(400, "model name is missing from the request; GET /models lists them")
        model = self._pool.find(name)
        if model is None:
            raise ApiError(400, f"model {shorten(name)} not found; GET /models lists them")
        autoload = query.get("autoload")
        loads = autoload in ("1", "true") if autoload else self._own.config.router.models_autoload
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
        is_task = request.method == "POST"
        conversation = conversation_of(HttpRequest(scope)) if is_task else None
        acquiring = self._pool.acquire(model, wakes=is_task)
        if conversation:  # its answer continues without the client, and keeps the model loaded
            backend = await self._streams.wait(conversation, model.name, acquiring)
            receive = _never
        else:
            backend = await unless_left(receive, acquiring)
        with ExitStack() as lease:
            lease.callback(self._pool.release, model, is_use=is_task)
            backend = _for_tenant(backend, scope)
            opening = self.proxy.open(backend, request, wants_first_piece=is_task)
            answer = await unless_left(receive, opening)
            if answer.is_event_stream and not is_task:
                lease.close()  # such a stream lasts as long as the model; it must not keep it
            await self.proxy.relay(answer, receive, send)

    def _without_model(self, http: HttpRequest) -> Response | None:
        """The response for a stream whose model is not running; None if it is.

        Raises:
            ApiError: there is no stream, or not yet.
        """
        if (conversation := conversation_of(http)) is None:
            raise ApiError(400, "conv_id is missing; name the conversation as ?conv_id=ID")
        model = self._pool.find(self._streams.model_of(conversation))
        is_waiting, stops = self._streams.is_waiting(conversation), http.method == "DELETE"
        if stops:
            self._streams.stop(conversation)
        elif is_waiting:
            raise CapacityError("the model of this stream is loading; try again later")
        if model is not None and model.is_running and not is_waiting:
            return None
        if not stops:
            raise ApiError(404, f"there is no stream of {shorten(conversation[1])}, or no longer")
        return Response(status_code=204)

    async def _look_up(self, request: ProxiedRequest, scope: Scope) -> list[Any]:
        """The joined answers of the servers of running models."""
        found: list[Any] = []
        for name in self._streams.models_of(caller_of(scope).tenant):
            model = self._pool.find(name)
            if model is None or not model.is_ready:
                continue
            backend = _for_tenant(await self._pool.acquire(model, wakes=False), scope)
            try:
                answer = await self.proxy.open(backend, request)
                said = orjson.loads(await self.proxy.read(answer))
                if answer.status != 200:
                    words, is_busy = said["error"]["message"], answer.status == 503
                    raise ApiError(answer.status, words, retry_after=int(is_busy))
                found += said
            finally:
                self._pool.release(model, is_use=False)
        return found


async def _never() -> NoReturn:
    """ASGI's `receive` for an answer whose client may leave."""
    await asyncio.Future()
    raise AssertionError


def _for_tenant(backend: Backend, scope: Scope) -> Backend:
    """The backend with the header that names whose request it is."""
    tenant = {TENANT_HEADER.lower(): caller_of(scope).tenant}
    return replace(backend, headers={**backend.headers, **tenant})


T = TypeVar("T")
MAX_WAITING = 512  # requests whose answers continue without their clients; half of it per tenant
Conversation = tuple[str, str]  # tenant and name


def conversation_of(http: HttpRequest) -> Conversation | None:
    """The conversation that a request continues, or asks for; None without one."""
    name = http.headers.get(HEADER)
    if http.scope["path"] == "/v1/stream":
        name = http.query_params.get("conv_id")
    return (caller_of(http.scope).tenant, name) if name else None


class Streams:
    """The model of each conversation, and requests waiting for their model.

    A stream is kept by the server of its model (server/kept_streams.py). Until that is loaded, its
    request waits here, whether or not its client does.
    """

    def __init__(self) -> None:
        self._models: OrderedDict[Conversation, str] = OrderedDict()
        self._waiting: dict[Conversation, asyncio.Future[Any]] = {}

    def model_of(self, conversation: Conversation) -> str:
        """The name of its model: the last one, else the one in `conversation::model`."""
        return self._models.get(conversation) or conversation[1].partition("::")[2]

    def models_of(self, tenant: str) -> set[str]:
        """The names of all models with streams of a tenant."""
        return {model for (owner, _), model in self._models.items() if owner == tenant}

    def is_waiting(self, conversation: Conversation) -> bool:
        return conversation in self._waiting

    def stop(self, conversation: Conversation) -> None:
        """End the conversation's request if it waits."""
        if waiting := self._waiting.get(conversation):
            waiting.cancel()

    async def wait(
        self, conversation: Conversation, model: str, work: Coroutine[None, None, T]
    ) -> T:
        """Await the model.

        Raises:
            ApiError: the stream was stopped before.
            CapacityError: too many wait, perhaps without a client.
        """
        if not may_take(Counter(one for one, _ in self._waiting), conversation[0], MAX_WAITING):
            work.close()
            raise CapacityError(
                f"{len(self._waiting)} requests with {HEADER} wait for their model; try again later"
            )
        self._models[conversation] = model
        self._models.move_to_end(conversation)
        if len(self._models) > 4096:  # the oldest goes of the tenant that has most
            held = Counter(tenant for tenant, _ in self._models)
            most = max(held, key=held.__getitem__)
            del self._models[next(one for one in self._models if one[0] == most)]
        self.stop(conversation)
        task = asyncio.ensure_future(work)
        self._waiting[conversation] = task
        try:
            return await task
        except asyncio.CancelledError:
            if not task.cancelled():
                task.cancel()
                raise
            raise ApiError(400, "the request was cancelled while its model was loading") from None
        finally:
            if self._waiting.get(conversation) is task:
                del self._waiting[conversation]
