"""Tools and their calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from headstart.extras.tools.machine import Machine

V = TypeVar("V")
MAX_ANSWER_BYTES = 16 * 1024  # what a model can still use
Run = Callable[["ToolInvocation"], Awaitable[dict[str, Any]]]


class ToolError(Exception):
    """Failure of a call whose message is for the model."""


@dataclass(frozen=True, slots=True)
class ToolInvocation:
    """One call: its arguments, its machine, and the target of its output."""

    arguments: Mapping[str, Any]
    machine: Machine
    wants_base64: bool = False
    on_output: Callable[[str], None] | None = None

    def text(self, name: str, default: str | None = None) -> str:
        """A text argument; required without a default.

        Raises:
            ToolError: it is missing or of another type.
        """
        return self._get(name, str, default)

    def number(self, name: str, default: int | None = None) -> int:
        """An integer argument.

        Raises:
            ToolError: as of `text`.
        """
        return self._get(name, int, default)

    def flag(self, name: str) -> bool:
        """A boolean argument, false by default.

        Raises:
            ToolError: it is of another type.
        """
        return self._get(name, bool, False)

    def _get(self, name: str, kind: type[V], default: V | None) -> V:
        value = self.arguments.get(name)
        if value is None:
            value = default
        if isinstance(value, float) and kind is int and value.is_integer():
            value = int(value)
        if type(value) is not kind:
            reason = "is missing" if value is None else f"is {value!r:.60}"
            raise ToolError(f"{name} {reason} but must be of type {kind.__name__}")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that clients may call, and its entry in GET /tools."""

    name: str
    title: str
    description: str
    parameters: Mapping[str, Any]  # JSON schema of the arguments
    run: Run  # raises ToolError; cancelling ends it
    writes: bool = False
    kind: str = "server"  # or mcp
    can_stream: bool = False

    def describe(self) -> dict[str, Any]:
        """The entry in GET /tools, as llama-server writes it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {
            "display_name": self.title,
            "tool": self.name,
            "type": self.kind,
            "permissions": {"write": self.writes},
            "uses_cwd": self.kind == "server",
            "definition": {"type": "function", "function": function},
        }


def tool(**facts: Any) -> Callable[[Run], Tool]:
    """Decorator: a function becomes the tool of its name."""
    return lambda run: Tool(name=run.__name__, run=run, **facts)


def parameters(required: tuple[str, ...], **properties: tuple[str, str]) -> dict[str, Any]:
    """JSON schema of arguments: each with its type and description."""
    named = {
        name: {"type": kind, "description": description}
        for name, (kind, description) in properties.items()
    }
    return {"type": "object", "properties": named, "required": list(required)}


def readable(text: str) -> str:
    """Text that JSON can hold: bytes of a file name that are no UTF-8 become U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
