"""What clients of Ollama ask before they chat: the router's models in Ollama's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from headstart.gateway.router.listing import RouterState, json_response, state_of
from headstart.gateway.router.pooled_model import PooledModel
from headstart.server.ollama_models import (
    OLLAMA_VERSION,
    listed_model,
    loaded_model,
    model_details,
)


def ollama_routes() -> Sequence[Route]:
    """The routes that name no model."""
    return [
        Route("/api/version", ollama_version),
        Route("/api/tags", ollama_tags),
        Route("/api/ps", ollama_ps),
    ]


async def ollama_version(http: HttpRequest) -> Response:
    """Tell clients of Ollama what they talk to."""
    return json_response({"version": OLLAMA_VERSION})


async def ollama_tags(http: HttpRequest) -> Response:
    """List all models as Ollama lists those on disk."""
    state = state_of(http)
    return json_response({"models": [_listed(one, state) for one in _shown(state)]})


async def ollama_ps(http: HttpRequest) -> Response:
    """List the models that run as Ollama lists those in memory."""
    state = state_of(http)
    running = [
        loaded_model(_listed(one, state), _meta(one).get("n_ctx", 0))
        for one in _shown(state)
        if one.is_running
    ]
    return json_response({"models": running})


def _shown(state: RouterState) -> Sequence[PooledModel]:
    return [one for one in state.pool.models.values() if not one.preset.is_hidden]


def _listed(model: PooledModel, state: RouterState) -> dict[str, Any]:
    """Size and details are what its own server said when it was last loaded."""
    meta = _meta(model)
    details = model_details("", meta.get("n_params", 0), meta.get("ftype", ""))
    return listed_model(model.name, model.name, meta.get("size", 0), state.started_at, details)


def _meta(model: PooledModel) -> dict[str, Any]:
    return dict(model.info.get("meta", {}))
