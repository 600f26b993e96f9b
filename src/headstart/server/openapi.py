"""The API described: as OpenAPI for programs, as one page without scripts for people.

Both are made from what the routes declare, the classes of the bodies, and the table of errors.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

from headstart import __version__
from headstart.server.errors import ANSWERS
from headstart.server.routing import Endpoint

_REF = "#/components/schemas/"
_OF_BODIES = (400, 408, 413, 415)  # statuses that only a request with a body gets
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
    said: dict[int, list[str]] = {}
    for status, kind, when in ANSWERS:
        if endpoint.body is not None or status not in _OF_BODIES:
            said.setdefault(status, []).append(f"{kind}: {when}")
    content = {"application/json": {"schema": {"$ref": _REF + "Error"}}}
    return {
        str(status): {"description": "; ".join(whens), "content": content}
        for status, whens in said.items()
        if status not in (404, 405)  # no such path, or another method: not of this one
    }


def page(document: Mapping[str, Any]) -> str:
    """The same for people: every path with its fields, its answer and its errors."""
    return "\n".join(["<!doctype html>", "<meta charset=utf-8>", *_page(document)])


def _page(document: Mapping[str, Any]) -> Iterator[str]:
    yield "<title>Headstart API</title>"
    yield "<h1>Headstart API</h1>"
    yield "<p>For programs: <a href=openapi.json>openapi.json</a>.</p>"
    schemas = document["components"]["schemas"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield f"<h2 id={operation['operationId']}>{method.upper()} {escape(path)}</h2>"
            yield f"<p>{_text(operation['summary'])} {_text(operation['description'])}</p>"
            if body := operation.get("requestBody"):
                schema = _resolve(body["content"]["application/json"]["schema"], schemas)
                yield _table(("field", "type", "default", ""), _fields(schema, schemas))
            answers = (
                (status, said["description"]) for status, said in operation["responses"].items()
            )
            yield _table(("status", "answer"), answers)


def _fields(
    schema: Mapping[str, Any], schemas: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, ...]]:
    """Rows of a schema's fields, those of an object inside it under their dotted names."""
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        inner = _resolve(field, schemas)
        if inner.get("properties"):
            yield from _fields(inner, schemas, f"{prefix}{name}.")
            continue
        default = "required" if name in required else _shown(field.get("default"))
        yield f"{prefix}{name}", _type(field), default, field.get("description", "")


def _resolve(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    name = schema.get("$ref", "").removeprefix(_REF)
    found: Mapping[str, Any] = schemas[name] if name else schema
    return found


def _type(field: Mapping[str, Any]) -> str:
    if "$ref" in field:
        return str(field["$ref"]).removeprefix(_REF)
    kinds = [_type(one) for one in field.get("anyOf", []) if one.get("type") != "null"]
    if kinds:
        return " or ".join(kinds)
    kind = str(field.get("type", "any"))
    return f"{kind} of {_type(field['items'])}" if field.get("items") else kind


def _shown(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def _table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def line(cells: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag} align=left>{_text(cell)}</{tag}>" for cell in cells)

    return "\n".join(
        ["<table>", line(heading, "th"), *(line(row, "td") for row in rows), "</table>"]
    )


def _text(text: str) -> str:
    """Plain text with `code`."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
