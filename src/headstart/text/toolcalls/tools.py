"""The tools of a request, as parsers need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Tools:
    """Functions and the schemas of their arguments."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """Take OpenAI's `tools`."""
        self._parameters = {
            tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools
        }
        self._strict = {
            tool["function"]["name"] for tool in tools if tool["function"].get("strict") is True
        }

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def __bool__(self) -> bool:
        return bool(self._parameters)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._parameters)

    def parameters(self, name: str) -> Mapping[str, Any]:
        """The JSON schema of a function's arguments."""
        schema = self._parameters.get(name)
        return schema if isinstance(schema, Mapping) else {}

    def is_strict(self, name: str) -> bool:
        """Whether unsupported keywords in the schema are an error."""
        return name in self._strict

    def is_text(self, name: str, argument: str) -> bool:
        """Whether an argument is a string even where it looks like another value."""
        properties = self.parameters(name).get("properties")
        schema = properties.get(argument) if isinstance(properties, Mapping) else None
        if not isinstance(schema, Mapping):
            return False
        if isinstance(values := schema.get("enum"), list):
            return all(isinstance(value, str) for value in values)
        return schema.get("type") == "string"
