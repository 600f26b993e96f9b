"""Declares endpoints: the paths of a handler, and its description in the API documents."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partialmethod
from typing import Any
from urllib.parse import quote

import orjson
from pydantic import BaseModel
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headstart import __version__
from headstart.server.body import Body, read_body
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
            path = path[len(prefix) :] or "/"
            # from `path`, which was checked, as the prefix may be encoded in the raw one
            raw_path = quote(path).encode()
            scope = {**scope, "path": path, "raw_path": raw_path, "headstart.prefix": prefix}
        await app(scope, receive, send)

    return answer


Handler = Callable[..., Awaitable[Any]]
"""Takes the request and, if it has a second parameter, the body as an object of that parameter's
class; returns a response, or a value that is sent as JSON.
"""


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

    def declare(
        self, method: str, *paths: str, answer: str, body: type[BaseModel] | None = None
    ) -> Callable[[Handler], Handler]:
        """Serve a method on these paths; `body`: its class, if the handler reads it by itself."""

        def add(handler: Handler) -> Handler:
            told = body or _class_of_body(handler)
            self.endpoints.append(Endpoint(method, paths, handler, told, answer))
            return handler

        return add

    get = partialmethod(declare, "GET")
    post = partialmethod(declare, "POST")
    delete = partialmethod(declare, "DELETE")

    def all(self) -> Iterator[Route]:
        """One route per path."""
        for endpoint in self.endpoints:
            for path in endpoint.paths:
                yield Route(path, _responding(endpoint.handler), methods=[endpoint.method])


def _class_of_body(handler: Handler) -> type[Body] | None:
    """The class of the body that a handler is given."""
    _, *others = inspect.signature(handler, eval_str=True).parameters.values()
    return others[0].annotation if others else None


def _responding(handler: Handler) -> Callable[[HttpRequest], Awaitable[Response]]:
    schema = _class_of_body(handler)

    async def respond(http: HttpRequest) -> Response:
        given = () if schema is None else (await read_body(http, schema),)
        answer = await handler(http, *given)
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
    error = {"application/json": {"schema": {"$ref": _REF + "Error"}}}
    operation: dict[str, Any] = {
        "operationId": endpoint.handler.__name__,
        "summary": (inspect.getdoc(endpoint.handler) or "").split("\n")[0],
        "description": f"Also {', '.join(also)}." if also else "",
        "responses": {
            "200": {"description": endpoint.answer},
            "default": {"description": "an error", "content": error},
        },
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
