"""The types that a tool's schema gives to arguments: between markers, texts have no quotes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

TEXT = frozenset(("string",))
MAX_PARTS = 1000  # that are asked for a type or property, at each argument of an answer
TYPES = {
    str: "string", bool: "boolean", int: "number", float: "number", type(None): "null",
    list: "array", dict: "object",
}  # fmt: skip


def parameters_of(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """The JSON schema of a function's arguments."""
    schema = function.get("parameters")
    return schema if isinstance(schema, Mapping) else {}


class ToolSchema:
    """The JSON schema of a tool's arguments. Its parts are known by identity, so they are its own,
    not copies.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self._types: dict[int, frozenset[str]] = {}  # of each part alone

    def types_of(self, schema: Any) -> frozenset[str]:
        """The JSON types that a schema names, also in what it refers to or combines; "number"
        includes integers. Empty: it names none, so any value may come.
        """
        return frozenset().union(*map(self._own_types, self.parts_of(schema)))

    def property_of(self, schema: Any, name: str) -> Any:
        """The schema of a property of an object; None if it is not listed."""
        for part in self.parts_of(schema):
            properties = part.get("properties")
            if isinstance(properties, Mapping) and name in properties:
                return properties[name]
        return None

    def parts_of(self, schema: Any) -> Iterator[Mapping[str, Any]]:
        """A schema, and those that it refers to or combines."""
        waiting, seen = [schema], set[int]()
        for part in waiting:  # which grows
            if not isinstance(part, Mapping) or id(part) in seen:
                continue
            seen.add(id(part))
            yield part
            for key in ("anyOf", "oneOf", "allOf"):
                room = max(0, MAX_PARTS - len(waiting))
                waiting += part[key][:room] if isinstance(part.get(key), list) else ()
            if isinstance(reference := part.get("$ref"), str):
                waiting.append(referenced(reference, self.root))

    def _own_types(self, part: Mapping[str, Any]) -> frozenset[str]:
        if id(part) not in self._types:
            values, named = listed(part), part.get("type")
            found = named if isinstance(named, list) else [named]
            if values is not None:
                found = [TYPES.get(type(value)) for value in values]
            names = {name for name in found if isinstance(name, str)}
            self._types[id(part)] = frozenset(
                "number" if name == "integer" else name for name in names
            )
        return self._types[id(part)]


def listed(schema: Mapping[str, Any]) -> Sequence[Any] | None:
    """The values that a schema lists; None if it lists none."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return values if isinstance(values, list) else None


def pointer(reference: str) -> list[str]:
    """The names along a JSON pointer that is a URI fragment."""
    parts = filter(None, unquote(reference.removeprefix("#")).split("/"))
    return [part.replace("~1", "/").replace("~0", "~") for part in parts]


def referenced(reference: str, root: Mapping[str, Any]) -> Any:
    """The schema under a reference within `root`, a JSON pointer as a URI fragment; None if there
    is none.

    Source: RFC 6901, section 6
    """
    schema: Any = root
    for name in pointer(reference):
        if isinstance(schema, list) and not (name.isascii() and name.isdigit()):
            return None
        try:
            schema = schema[int(name) if isinstance(schema, list) else name]
        except (LookupError, TypeError, ValueError):
            return None
    return schema
