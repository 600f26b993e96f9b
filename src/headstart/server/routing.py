"""Declares routes: several paths for one handler, and the body's schema for OpenAPI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.schemas import Body

Handler = Callable[[HttpRequest], Awaitable[Response]]


def get(router: APIRouter, *paths: str) -> Callable[[Handler], Handler]:
    """Decorator: serve GET on these paths; the first is documented."""
    return _declare(router, "GET", paths, None)


def post(router: APIRouter, *paths: str, body: type[Body]) -> Callable[[Handler], Handler]:
    """Decorator: serve POST on these paths; the handler reads the body with `read_body`."""
    content = {
        "application/json": {
            "schema": body.model_json_schema(ref_template="#/components/schemas/{model}")
        }
    }
    return _declare(router, "POST", paths, {"requestBody": {"required": True, "content": content}})


def _declare(
    router: APIRouter, method: str, paths: tuple[str, ...], extra: dict[str, Any] | None
) -> Callable[[Handler], Handler]:
    def declare(handler: Handler) -> Handler:
        for path in paths:
            router.add_api_route(
                path,
                handler,
                methods=[method],
                response_model=None,
                include_in_schema=path == paths[0],
                openapi_extra=extra,
            )
        return handler

    return declare
