"""The router's own routes: which models there are, and loading, unloading and downloading them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

import headstart
from headstart.config import Config
from headstart.gateway.router.child import command
from headstart.gateway.router.downloads import Downloads, ModelStore
from headstart.gateway.router.pool import Pool
from headstart.gateway.router.pooled_model import LOADING, UNLOADED, PooledModel
from headstart.gateway.router.presets import CACHE, ModelPreset
from headstart.server.body import off_loop, read_object
from headstart.server.errors import ApiError, shorten
from headstart.server.ollama_dialect import OLLAMA_VERSION, listed_model, loaded_model
from headstart.server.routing import json_response
from headstart.types.errors import ModelError

ReadPresets = Callable[[], Sequence[ModelPreset]]
"""Reads which models there are; raises ConfigError."""


class OwnRoutes:
    """The routes that are not passed to a model.

    Args:
        store: where models are downloaded to.
        settings: shown by /props.
    """

    def __init__(
        self,
        config: Config,
        pool: Pool,
        read_presets: ReadPresets,
        store: ModelStore,
        settings: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.config, self.pool = config, pool
        self._read_presets, self._settings = read_presets, settings
        self._started_at = time.time()
        self.downloads = Downloads(store, pool.tell, self.reload)
        self._reloading = asyncio.Lock()  # else an older reading could end last

    def all(self) -> list[Route]:
        return [
            Route("/health", self.health),
            Route("/v1/health", self.health),
            Route("/models", self.list_models),
            Route("/v1/models", self.list_models),
            Route("/models", self.download, methods=["POST"]),
            Route("/models", self.remove, methods=["DELETE"]),
            Route("/models/load", self.load, methods=["POST"]),
            Route("/models/unload", self.unload, methods=["POST"]),
            Route("/models/sse", self.events),
            Route("/v1/models/{model:path}", self.describe),
            Route("/models/{model:path}", self.describe),
            Route("/api/version", self.ollama_version),
            Route("/api/tags", self.ollama_tags),
            Route("/api/ps", self.ollama_ps),
        ]

    async def reload(self) -> None:
        """Read again which models there are.

        Raises:
            ConfigError: they cannot be read.
        """
        async with self._reloading:
            await self.pool.reload(await asyncio.to_thread(self._read_presets))

    async def named(self, http: HttpRequest) -> tuple[object, object]:
        """The fields `model` and `stream` of a request's body; None where it has none.

        Raises:
            RequestError: the body is not a JSON object, or exceeds the limits of structure.
            CapacityError: too many bodies are queued.
        """
        body, kind = await http.body(), http.headers.get("content-type", "")

        def read() -> tuple[object, object]:
            fields = read_object(body, kind) if body else {}
            return fields.get("model"), fields.get("stream")

        return await off_loop(http, read)

    def props(self) -> dict[str, Any]:
        """Properties of the router; with ?model= the model's server answers instead."""
        router = self.config.router
        return {
            "role": "router",
            "max_instances": router.models_max,
            "models_autoload": router.models_autoload,
            "models_dir": router.models_dir,
            "models_preset": router.models_preset,
            "model_alias": "headstart",
            "model_path": "none",
            "default_generation_settings": {"params": {}, "n_ctx": 0},
            "ui_settings": {},
            "build_info": f"b-headstart-{headstart.__version__}",
            "cors_proxy_enabled": self.config.tools.ui_mcp_proxy,
            "settings": list(self._settings),
        }

    async def health(self, http: HttpRequest) -> Response:
        return json_response({"status": "ok"})

    async def list_models(self, http: HttpRequest) -> Response:
        """List all models; with ?reload=1 after reading again which there are."""
        if http.query_params.get("reload"):
            await self.reload()
        listed = [self._describe(one) for one in self._shown()]
        names = [name for name in self.downloads.names if self.pool.find(name) is None]
        listed += map(_downloading, names)
        return json_response({"object": "list", "data": listed})

    async def describe(self, http: HttpRequest) -> Response:
        return json_response(self._describe(self._found(http.path_params["model"])))

    async def download(self, http: HttpRequest) -> Response:
        """Download a model of the hub; the answer does not wait for it."""
        name, _ = await self.named(http)
        if not isinstance(name, str) or not name:
            raise ApiError(400, "model must be the name of a model of the hub, user/repo:QUANT")
        if self.pool.find(name) is not None:
            raise ApiError(400, f"the model {shorten(name)} already exists")
        await self.downloads.start(name)
        return json_response({"success": True})

    async def remove(self, http: HttpRequest) -> Response:
        """Unload and delete a downloaded model, or end its download."""
        name = http.query_params.get("model", "")
        was_downloading = await self.downloads.cancel(name)
        model = self.pool.models.get(name)
        if model is None and not was_downloading:
            raise ApiError(404, f"model {shorten(name)} is not found; GET /models lists them")
        if model is not None:
            if model.preset.source != CACHE:
                raise ApiError(400, f"model {shorten(name)} was not downloaded; remove its file")
            await self.pool.unloaded(model)
            try:
                await asyncio.to_thread(self.downloads.store.remove, name)
            except ModelError as error:
                raise ApiError(400, str(error)) from error
            await self.reload()
        self.pool.tell("model_remove", name, {})
        return json_response({"success": True})

    async def load(self, http: HttpRequest) -> Response:
        """Load a model; the answer does not wait for it."""
        name, _ = await self.named(http)
        model = self._found(name)
        if self.pool.is_awaited(model) or (model.is_running and not model.is_stopping):
            raise ApiError(400, f"the model {model.name} is already running")
        self.pool.load(model)
        return json_response({"success": True})

    async def unload(self, http: HttpRequest) -> Response:
        """Unload a model, or end its download; the answer does not wait for the former."""
        name, _ = await self.named(http)
        if await self.downloads.cancel(str(name)):
            return json_response({"success": True})
        model = self._found(name)
        if not (model.is_running or self.pool.is_awaited(model)):
            raise ApiError(400, f"the model {model.name} is not running")
        self.pool.unload(model)
        return json_response({"success": True})

    async def events(self, http: HttpRequest) -> Response:
        return self.pool.events.response(http.scope)

    async def ollama_version(self, http: HttpRequest) -> Response:
        """Tell clients of Ollama which version's API this is."""
        return json_response({"version": OLLAMA_VERSION})

    async def ollama_tags(self, http: HttpRequest) -> Response:
        """List all models as Ollama lists those on disk."""
        return json_response({"models": [self._tag(one) for one in self._shown()]})

    async def ollama_ps(self, http: HttpRequest) -> Response:
        """List the models that run as Ollama lists those in memory."""
        running = [
            loaded_model(self._tag(one), one.info.get("meta", {}).get("n_ctx", 0))
            for one in self._shown()
            if one.is_running
        ]
        return json_response({"models": running})

    def _shown(self) -> list[PooledModel]:
        return [one for one in self.pool.models.values() if not one.preset.is_hidden]

    def _tag(self, model: PooledModel) -> dict[str, Any]:
        """Size and details are those that its server reported when it was last loaded."""
        return listed_model(model.name, model.name, self._started_at, model.info.get("meta", {}))

    def _describe(self, model: PooledModel) -> dict[str, Any]:
        preset = model.preset
        value = LOADING if self.pool.is_awaited(model) else model.status
        status: dict[str, Any] = {"value": value, "args": command(preset), "preset": preset.ini}
        if model.failure and value == UNLOADED:
            status |= {"failed": True, "exit_code": model.exit_code, "reason": model.failure}
        return {
            "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
            **(model.info if model.is_running else {}),
            "id": preset.name,
            "aliases": list(preset.aliases),
            "tags": list(preset.tags),
            "object": "model",
            "owned_by": "headstart",
            "created": int(time.time()),
            "status": status,
            "source": preset.source,
            "can_remove": preset.source == CACHE,
            "needs": dict(model.needs),
        }

    def _found(self, name: object) -> PooledModel:
        model = self.pool.find(name) if isinstance(name, str) else None
        if model is None:
            raise ApiError(404, f"model {shorten(name)} is not found; GET /models lists them")
        return model


def _downloading(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "owned_by": "headstart",
        "created": int(time.time()),
        "status": {"value": "downloading"},
        "source": CACHE,
        "can_remove": True,
    }
