"""The router's own routes: which models there are, loading and unloading them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import headstart
from headstart.config import Config
from headstart.gateway.router.child import command
from headstart.gateway.router.downloads import Downloads
from headstart.gateway.router.pool import Pool
from headstart.gateway.router.pooled_model import PooledModel
from headstart.gateway.router.presets import CACHE, ModelPreset
from headstart.gateway.router.proxy import named_model
from headstart.server import sse
from headstart.server.errors import ApiError, shorten
from headstart.types.errors import ModelError


@dataclass(slots=True)
class RouterState:
    """What the routes share. The pool is made in the loop that serves."""

    config: Config
    read_presets: Callable[[], Sequence[ModelPreset]]
    settings: Sequence[Mapping[str, Any]] = ()
    pool: Pool = field(init=False)
    downloads: Downloads | None = field(init=False, default=None)
    started_at: float = field(init=False, default_factory=time.time)

    async def reload(self) -> None:
        """Read again which models there are.

        Raises:
            ConfigError: they cannot be read.
        """
        await self.pool.reload(await asyncio.to_thread(self.read_presets))

    def find(self, name: object) -> PooledModel:
        """The model with this name.

        Raises:
            ApiError: no name, or no such model.
        """
        if not isinstance(name, str) or not name:
            raise ApiError(400, "model name is missing from the request; GET /models lists them")
        model = self.pool.find(name)
        if model is None:
            raise ApiError(400, f"model {shorten(name)} not found; GET /models lists them")
        return model


def routes() -> list[Route]:
    """The routes that are not passed to a model."""
    both = {"/models": list_models, "/health": health}
    found = [
        Route(prefix + path, handler) for path, handler in both.items() for prefix in ("", "/v1")
    ]
    found += [
        Route("/models", download, methods=["POST"]),
        Route("/models", remove, methods=["DELETE"]),
        Route("/models/load", load, methods=["POST"]),
        Route("/models/unload", unload, methods=["POST"]),
        Route("/models/sse", events),
        Route("/v1/models/{model:path}", describe),
        Route("/models/{model:path}", describe),
    ]
    return found


async def health(http: HttpRequest) -> Response:
    """Say that requests are taken."""
    return json_response({"status": "ok"})


async def list_models(http: HttpRequest) -> Response:
    """List all models; with ?reload=1 after reading again which there are."""
    state = state_of(http)
    if http.query_params.get("reload"):
        await state.reload()
    listed = [_describe(one) for one in state.pool.models.values() if not one.preset.is_hidden]
    names = state.downloads.names if state.downloads else []
    listed += [_coming(name) for name in names if state.pool.find(name) is None]
    return json_response({"object": "list", "data": listed})


async def describe(http: HttpRequest) -> Response:
    """Describe one model."""
    name = http.path_params["model"]
    model = state_of(http).pool.find(name)
    if model is None:
        raise ApiError(404, f"there is no model {shorten(name)} here; GET /models lists them")
    return json_response(_describe(model))


async def download(http: HttpRequest) -> Response:
    """Download a model of the hub; the answer does not wait for it."""
    state = state_of(http)
    name = named_model(await http.body())
    if not isinstance(name, str) or not name:
        raise ApiError(400, "model must be the name of a model of the hub, user/repo:QUANT")
    if state.downloads is None:
        raise ApiError(501, "this router downloads no models")
    if state.pool.find(name) is not None:
        raise ApiError(400, f"the model {shorten(name)} already exists")
    await state.downloads.start(name)
    return json_response({"success": True})


async def remove(http: HttpRequest) -> Response:
    """Delete a model that was downloaded, or end its download; a loaded one is unloaded before."""
    state = state_of(http)
    name = http.query_params.get("model", "")
    if state.downloads is None:
        raise ApiError(501, "this router removes no models")
    was_coming = await state.downloads.cancel(name)
    model = state.pool.models.get(name)
    if model is None and not was_coming:
        raise ApiError(404, f"model {shorten(name)} is not found; GET /models lists them")
    if model is not None:
        if model.preset.source != CACHE:
            raise ApiError(400, f"model {shorten(name)} was not downloaded; remove its file")
        await state.pool.unloaded(model)
        try:
            await asyncio.to_thread(state.downloads.store.remove, name)
        except ModelError as error:
            raise ApiError(400, str(error)) from error
        await state.reload()
    state.pool.events.tell("model_remove", name, {})
    return json_response({"success": True})


async def load(http: HttpRequest) -> Response:
    """Load a model; the answer does not wait for it."""
    state = state_of(http)
    model = _named(state, await http.body())
    if model.is_running and not model.is_stopping:
        raise ApiError(400, f"the model {model.name} is already running")
    state.pool.load(model)
    return json_response({"success": True})


async def unload(http: HttpRequest) -> Response:
    """Unload a model; the answer does not wait for it."""
    state = state_of(http)
    model = _named(state, await http.body())
    if not model.is_running:
        raise ApiError(400, f"the model {model.name} is not running")
    state.pool.unload(model)
    return json_response({"success": True})


async def events(http: HttpRequest) -> Response:
    """What happens to models, as it happens."""
    pool = state_of(http).pool

    async def stream() -> AsyncIterator[bytes]:
        queue = pool.events.listen()
        try:
            yield sse.PING  # so that the client knows that it listens
            while (message := await _next(queue)) is not None:
                yield sse.event(message) if message else sse.PING
        finally:
            pool.events.stop_listening(queue)

    return StreamingResponse(stream(), headers=sse.HEADERS, media_type="text/event-stream")


async def _next(queue: asyncio.Queue[Mapping[str, Any] | None]) -> Mapping[str, Any] | None:
    """The next event; an empty one where none comes for a while."""
    try:
        return await asyncio.wait_for(queue.get(), 30)
    except TimeoutError:
        return {}


def props(state: RouterState) -> dict[str, Any]:
    """What the router says of itself; of a model, its own server does."""
    router = state.config.router
    return {
        "role": "router",
        "max_instances": router.models_max,
        "models_autoload": router.models_autoload,
        "models_dir": router.models_dir,
        "models_preset": router.models_preset,
        "model_alias": "headstart",
        "model_path": "none",
        "default_generation_settings": {"params": {}, "n_ctx": 0},
        "build_info": f"b-headstart-{headstart.__version__}",
        "settings": list(state.settings),
    }


def _describe(model: PooledModel) -> dict[str, Any]:
    preset = model.preset
    status: dict[str, Any] = {"value": model.status, "args": command(preset), "preset": preset.ini}
    if model.has_failed:
        status |= {"failed": True, "exit_code": model.exit_code, "reason": model.failure}
    return {
        **(model.info if model.is_running else {}),
        "id": preset.name,
        "aliases": list(preset.aliases),
        "tags": list(preset.tags),
        "object": "model",
        "owned_by": "headstart",
        "created": int(time.time()),
        "status": status,
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "source": preset.source,
        "can_remove": preset.source == CACHE,
        "needs": dict(model.needs),
    }


def _coming(name: str) -> dict[str, Any]:
    """A model that is being downloaded."""
    return {
        "id": name,
        "object": "model",
        "owned_by": "headstart",
        "created": int(time.time()),
        "status": {"value": "downloading"},
        "source": CACHE,
        "can_remove": True,
    }


def _named(state: RouterState, body: bytes) -> PooledModel:
    name = named_model(body)
    model = state.pool.find(name) if isinstance(name, str) else None
    if model is None:
        raise ApiError(404, f"model {shorten(name)} is not found; GET /models lists them")
    return model


def state_of(http: HttpRequest) -> RouterState:
    """What the router's routes share."""
    state = http.app.state.router
    assert isinstance(state, RouterState)
    return state


def json_response(data: Any) -> Response:
    """An answer with status 200."""
    return Response(orjson.dumps(data), media_type="application/json")
