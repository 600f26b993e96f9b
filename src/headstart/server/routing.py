"""Declares endpoints: the paths of a handler, and its description in the API documents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import orjson
from pydantic import BaseModel
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headstart.server.errors import ApiError, error_response


def prefixed(app: ASGIApp, *, prefix: str) -> ASGIApp:
    """ASGI middleware: serves the app below a path prefix."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            if path != prefix and not path.startswith(f"{prefix}/"):
                error = ApiError(404, f"there is no {path} here; paths begin with {prefix}")
                await error_response(error)(scope, receive, send)
                return
            scope = {**scope, "path": path[len(prefix) :] or "/"}
        await app(scope, receive, send)

    return answer


Handler = Callable[[HttpRequest], Awaitable[Any]]
"""Returns a response, or a value that is sent as JSON."""


def json_response(
    data: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with JSON; numpy arrays and keys that are no strings are allowed."""
    body = orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    return Response(body, status, headers, media_type="application/json")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A handler with its method, its paths (the first is documented) and the class of its body."""

    method: str
    paths: tuple[str, ...]
    handler: Handler
    body: type[BaseModel] | None
    answer: str  # description of a 200 response


@dataclass(frozen=True, slots=True)
class Routes:
    """The endpoints of one API family, in order; its methods are decorators of handlers."""

    endpoints: list[Endpoint] = field(default_factory=list)

    def get(self, *paths: str, answer: str) -> Callable[[Handler], Handler]:
        """Serve GET on these paths."""
        return self._declare("GET", paths, None, answer)

    def post(self, *paths: str, body: type[BaseModel], answer: str) -> Callable[[Handler], Handler]:
        """Serve POST on these paths; the handler reads the body with `read_body`."""
        return self._declare("POST", paths, body, answer)

    def delete(self, *paths: str, answer: str) -> Callable[[Handler], Handler]:
        """Serve DELETE on these paths."""
        return self._declare("DELETE", paths, None, answer)

    def _declare(
        self, method: str, paths: tuple[str, ...], body: type[BaseModel] | None, answer: str
    ) -> Callable[[Handler], Handler]:
        def declare(handler: Handler) -> Handler:
            self.endpoints.append(Endpoint(method, paths, handler, body, answer))
            return handler

        return declare

    def all(self) -> Iterator[Route]:
        """One route per path."""
        for endpoint in self.endpoints:
            for path in endpoint.paths:
                yield Route(path, _responding(endpoint.handler), methods=[endpoint.method])


def _responding(handler: Handler) -> Callable[[HttpRequest], Awaitable[Response]]:
    @wraps(handler)
    async def respond(http: HttpRequest) -> Response:
        answer = await handler(http)
        return answer if isinstance(answer, Response) else json_response(answer)

    return respond
