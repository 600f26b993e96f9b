"""Declares endpoints: the paths of a handler, and its description in the API documents."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from pydantic import BaseModel
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headstart import __version__
from headstart.server.errors import ANSWERS, ApiError, error_response


def prefixed(app: ASGIApp, *, prefix: str) -> ASGIApp:
    """ASGI middleware: serves the app below a path prefix."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            if path != prefix and not path.startswith(f"{prefix}/"):
                error = ApiError(404, f"there is no {path} here; paths begin with {prefix}")
                await error_response(error)(scope, receive, send)
                return
            scope = {**scope, "path": path[len(prefix) :] or "/", "headstart.prefix": prefix}
        await app(scope, receive, send)

    return answer


Handler = Callable[[HttpRequest], Awaitable[Any]]
"""Returns a response, or a value that is sent as JSON."""


def json_response(data: Any) -> Response:
    """Answer with JSON; numpy arrays and keys that are no strings are allowed."""
    body = orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    return Response(body, media_type="application/json")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A handler with its method, its paths (the first is documented) and its body's class."""

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
        return self._declare("GET", paths, None, answer)

    def post(self, *paths: str, body: type[BaseModel], answer: str) -> Callable[[Handler], Handler]:
        """Serve POST on these paths; the handler reads the body with `read_body`."""
        return self._declare("POST", paths, body, answer)

    def delete(self, *paths: str, answer: str) -> Callable[[Handler], Handler]:
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
    async def respond(http: HttpRequest) -> Response:
        answer = await handler(http)
        return answer if isinstance(answer, Response) else json_response(answer)

    return respond


_REF = "#/components/schemas/"


def describe(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The OpenAPI document."""
    error = {
        "type": "object",
        "required": ["code", "message", "type"],
        "properties": {
            "code": {"type": "integer", "description": "the HTTP status"},
            "message": {"type": "string", "description": "what was wrong, and the remedy"},
            "type": {"type": "string"},
        },
    }
    envelope = {"type": "object", "required": ["error"], "properties": {"error": error}}
    schemas: dict[str, Any] = {"Error": envelope}
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        path = endpoint.paths[0].replace(":path}", "}")
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, path, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headstart", "version": __version__},
        "paths": paths,
        "components": {"schemas": dict(sorted(schemas.items()))},
    }


def _operation(endpoint: Endpoint, path: str, schemas: dict[str, Any]) -> dict[str, Any]:
    also = [f"`{path}`" for path in endpoint.paths[1:]]
    operation: dict[str, Any] = {
        "operationId": endpoint.handler.__name__,
        "summary": (inspect.getdoc(endpoint.handler) or "").split("\n")[0],
        "description": f"Also {', '.join(also)}." if also else "",
        "responses": {"200": {"description": endpoint.answer}, **_errors(endpoint)},
    }
    if names := re.findall(r"{(\w+)}", path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if endpoint.body is not None:
        schema = endpoint.body.model_json_schema(ref_template=_REF + "{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[endpoint.body.__name__] = schema
        content = {"application/json": {"schema": {"$ref": _REF + endpoint.body.__name__}}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _errors(endpoint: Endpoint) -> dict[str, Any]:
    found: dict[int, list[str]] = {}
    for status, kind, when in ANSWERS:
        if endpoint.body is not None or status not in (400, 408, 413, 415):
            found.setdefault(status, []).append(f"{kind}: {when}")
    content = {"application/json": {"schema": {"$ref": _REF + "Error"}}}
    return {
        str(status): {"description": "; ".join(whens), "content": content}
        for status, whens in found.items()
        if status not in (404, 405)  # are not this path's
    }
