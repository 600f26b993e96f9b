"""Declares routes: several paths for one handler, and the body's schema for OpenAPI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headstart.server.errors import ApiError, error_response
from headstart.server.schemas import Body


class Prefixed:
    """ASGI middleware: the paths of the app begin with a prefix."""

    def __init__(self, app: ASGIApp, *, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            if path != self._prefix and not path.startswith(f"{self._prefix}/"):
                error = ApiError(404, f"there is no {path} here; paths begin with {self._prefix}")
                await error_response(error)(scope, receive, send)
                return
            scope = {**scope, "path": path[len(self._prefix) :] or "/"}
        await self._app(scope, receive, send)


Handler = Callable[[HttpRequest], Awaitable[Response]]


def get(router: APIRouter, *paths: str) -> Callable[[Handler], Handler]:
    """Decorator: serve GET and HEAD on these paths; the first is documented."""

    def declare(handler: Handler) -> Handler:
        for path in paths:
            router.add_route(path, handler, methods=["HEAD"], include_in_schema=False)
        return _declare(router, "GET", paths, None)(handler)

    return declare


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
