"""The OpenAPI document, made from the declared routes, the classes of bodies and the errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

from headstart import __version__
from headstart.server.errors import ANSWERS
from headstart.server.routing import Endpoint

_REF = "#/components/schemas/"
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "type"],
            "properties": {
                "code": {"type": "integer", "description": "the HTTP status"},
                "message": {"type": "string", "description": "what was wrong, and the remedy"},
                "type": {"type": "string"},
            },
        }
    },
}


def describe(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The OpenAPI document."""
    schemas: dict[str, Any] = {"Error": _ERROR}
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
