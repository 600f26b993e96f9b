"""Declares endpoints: several paths for one handler, and what the API pages say of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from pydantic import BaseModel
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headstart.server.errors import ApiError, error_response


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


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A handler, its paths (the first is documented), and the class of its body, if it has one."""

    method: str
    paths: tuple[str, ...]
    handler: Handler
    body: type[BaseModel] | None
    answer: str  # what a 200 has, for the API pages


@dataclass(frozen=True, slots=True)
class Routes:
    """The endpoints of one API family, in order."""

    endpoints: list[Endpoint] = field(default_factory=list)

    def routes(self) -> Iterator[Route]:
        """One route per path."""
        for endpoint in self.endpoints:
            for path in endpoint.paths:
                yield Route(path, endpoint.handler, methods=[endpoint.method])


def get(router: Routes, *paths: str, answer: str) -> Callable[[Handler], Handler]:
    """Decorator: serve GET on these paths."""
    return _declare(router, "GET", paths, None, answer)


def post(
    router: Routes, *paths: str, body: type[BaseModel], answer: str
) -> Callable[[Handler], Handler]:
    """Decorator: serve POST on these paths; the handler reads the body with `read_body`."""
    return _declare(router, "POST", paths, body, answer)


def delete(router: Routes, *paths: str, answer: str) -> Callable[[Handler], Handler]:
    """Decorator: serve DELETE on these paths."""
    return _declare(router, "DELETE", paths, None, answer)


def _declare(
    router: Routes, method: str, paths: tuple[str, ...], body: type[BaseModel] | None, answer: str
) -> Callable[[Handler], Handler]:
    def declare(handler: Handler) -> Handler:
        router.endpoints.append(Endpoint(method, paths, handler, body, answer))
        return handler

    return declare
