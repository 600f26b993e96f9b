"""Grammar rules for a tool's arguments in forms other than JSON.

These forms do not enforce `pattern`, `format` and lengths of strings, nor anything about unlisted
properties. A strict tool with such keywords is refused.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from headstart.text.toolcalls.argument_types import listed, pointer, referenced
from headstart.text.toolcalls.reader import AnswerReader, Reading
from headstart.types.constraint import MAX_TEXT_BYTES
from headstart.types.errors import RequestError

MAX_DEPTH = 32


def quoted(text: str) -> str:
    """A text as a string of Lark."""
    return json.dumps(text, ensure_ascii=False)


def as_json(schema: Any, root: Mapping[str, Any] | None = None) -> str:
    """A JSON value of this schema, laid out as by Python's json.dumps, which most models learned.

    Args:
        root: the whole schema, whose definitions and "x-guidance" apply.

    Raises:
        RequestError: "x-guidance" is no object.
    """
    whole = dict(schema) if isinstance(schema, Mapping) else {}
    root = root or {}
    whole = {**_definitions(whole, root), **whole}
    guidance = whole.get("x-guidance", root.get("x-guidance", {}))
    if not isinstance(guidance, Mapping):
        raise RequestError(f'"x-guidance" is {str(guidance)[:50]!r}, but must be an object')
    layout = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
    whole["x-guidance"] = {**guidance, **layout}
    return "%json " + json.dumps(whole, ensure_ascii=False)


def _definitions(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """The definitions of `root` that a schema refers to, also through others."""
    every = {key: root[key] for key in ("$defs", "definitions") if isinstance(root.get(key), dict)}
    found = {key: dict[str, Any]() for key in every}
    waiting: list[Any] = [schema]
    for part in waiting:  # which grows
        if isinstance(part, list):
            waiting += part
        if not isinstance(part, Mapping):
            continue
        waiting += part.values()
        if not isinstance(reference := part.get("$ref"), str):
            continue
        if not reference.startswith("#/"):  # an anchor or address, which any of them may have
            return every
        key, name = [*pointer(reference), "", ""][:2]
        if name in every.get(key, ()) and name not in found[key]:
            found[key][name] = every[key][name]
            waiting.append(found[key][name])
    return {key: names for key, names in found.items() if names}


class Lines(list[str]):
    """The rules of a grammar, which may be much longer than the schemas that they come from."""

    num_chars = 0

    def append(self, line: str) -> None:
        """Add a rule.

        Raises:
            RequestError: the grammar is longer than one may be.
        """
        super().append(line)
        self.num_chars += len(line) + 1
        if self.num_chars > MAX_TEXT_BYTES:
            raise RequestError(
                f"the Lark grammar of the tools has {self.num_chars} bytes or more but at most "
                f"{MAX_TEXT_BYTES} are taken; send fewer or smaller tools"
            )


Limits = tuple[int, int | None]
"""The least and the largest number of elements"""


Members = Mapping[str, bool]
"""The properties of an object: the rule of key and value, and whether it is required"""


class ValueRules(ABC):
    """Rules for the values of one tool's schema; one subclass per form."""

    is_object = False  # whether arguments begin with {
    # of forms that only one family has: emits the arguments of the tool of this name, up to the
    # markers after them
    read: ClassVar[Callable[[AnswerReader, str, Sequence[str]], Reading[None]]]
    separator = ","  # of elements and members
    key_end = ":"

    def __init__(
        self, schema: Mapping[str, Any], lines: Lines, spelled: Callable[[str], str]
    ) -> None:
        """Rules go to the end of `lines`; `spelled`: a marker as text and ids of special tokens."""
        self.root, self.lines, self.spelled = schema, lines, spelled
        self._known: dict[tuple[str, str], str] = {}  # rules of references and of JSON

    def arguments(self) -> str:
        """All arguments of a call."""
        return self.joined(self.members(self.root))

    def text(self, end: str) -> str:
        """Any string; `end` is the text after the value."""
        if self.spelled(end.strip()).startswith("<["):  # a special token, which text never matches
            return f"/(?s:.*)/ {self.spelled(end)}"
        return self.named(f"text[suffix={quoted(end)}]", "/(?s:.*)/")

    @abstractmethod
    def literal(self, value: Any, end: str) -> str:
        """One constant value."""

    def array(self, item: Callable[[str], str], limits: Limits, end: str) -> str:
        """An array; `item` makes the rule of an element from the text after it."""
        return f'"[" {self.repeated(item(""), limits)} "]"'

    def member(self, key: str, value: Callable[[str], str]) -> str:
        """A property of an object; `value` makes the rule of its value from the text after it."""
        return f"{quoted(key + self.key_end)} {value('')}"

    def object_of(self, members: Members, end: str) -> str:
        """An object; any, unless the form has rules for its members."""
        return self.scalar({"type": "object"}, end)

    def scalar(self, schema: Any, end: str) -> str:
        """A number, true, false or null."""
        return self.json(schema)

    def json(self, schema: Any) -> str:
        """A JSON value of a schema; one rule for all that are equal."""
        key = "%json", json.dumps(schema)
        if key not in self._known:
            self._known[key] = self.named("json", as_json(schema, self.root))
        return self._known[key]

    def value(self, schema: Any, end: str = "", depth: int = 0) -> str:
        """A value of this schema."""
        schema = schema if isinstance(schema, Mapping) else {}
        self._check(schema)
        reference, is_deep = schema.get("$ref"), depth >= MAX_DEPTH
        if isinstance(reference, str) and reference.startswith("#") and not is_deep:
            return self._referenced(reference, end, depth)
        if values := listed(schema):
            return self._one_of(self.literal(value, end) for value in values)
        for key in ("anyOf", "oneOf", "allOf"):
            if schema.get(key) and isinstance(schema[key], list) and not is_deep:
                return self._one_of(self.value(one, end, depth + 1) for one in schema[key])
        types = schema.get("type") or _guessed_types(schema)
        names = dict.fromkeys(map(str, types)) if isinstance(types, list) else [types]
        return self._one_of(self._typed(name, schema, end, depth) for name in names)

    def members(self, schema: Mapping[str, Any], depth: int = 0) -> Members:
        """The listed properties of an object, in their order."""
        self._check(schema)
        properties, required = schema.get("properties"), schema.get("required")
        required = required if isinstance(required, list) else ()
        return {
            self.member(key, partial(self.value, value, depth=depth + 1)): key in required
            for key, value in (properties if isinstance(properties, Mapping) else {}).items()
        }

    def joined(self, properties: Members) -> str:
        """Properties in order, each optional unless required, with separators between."""
        number, members = self._number(), list(properties.items())
        between = quoted(self.separator) * bool(self.separator)
        self.lines.append(f'tail_{number}_{len(members)}: ""')
        for at in range(len(members) - 1, 0, -1):
            text, is_required = members[at]
            one = f"{between} {text}" if is_required else f"({between} {text})?"
            self.lines.append(f"tail_{number}_{at}: {one} tail_{number}_{at + 1}")
        first = next((at for at, (_, is_required) in enumerate(members) if is_required), None)
        choices = [
            f"{members[at][0]} tail_{number}_{at + 1}"
            for at in range(len(members) if first is None else first + 1)
        ]
        self.lines.append(f"members_{number}: {' | '.join(choices) or quoted('')}")
        return f"members_{number}" + "?" * (first is None and bool(members))

    def repeated(self, item: str, limits: Limits) -> str:
        """Elements with separators between them."""
        least, most = limits
        more = f"({quoted(self.separator)} {item})" if self.separator else f"({item})"
        upper = "" if most is None else str(max(0, most - 1))
        some = f"{item} {more}{{{max(0, least - 1)},{upper}}}"
        if most == 0:
            return '""'
        return some if least > 0 else f"({some})?"

    def named(self, name: str, body: str) -> str:
        """Add a separate rule; returns its name. `name` may be followed by attributes."""
        number = self._number()
        bare, bracket, attributes = name.partition("[")
        self.lines.append(f"{bare}_{number}{bracket}{attributes}: {body}")
        return f"{bare}_{number}"

    def _check(self, schema: Mapping[str, Any]) -> None:
        """Raise RequestError if a strict tool has a keyword that these forms do not enforce."""
        unknown = [keyword for keyword in schema if keyword not in _ALLOWED]
        if unknown and not self.root.get("x-guidance"):  # set unless the tool is strict
            raise RequestError(
                f'a strict tool has "{unknown[0]}" in its parameters, which cannot be demanded in '
                'the form in which this model writes calls; leave it out, or send "strict": false'
            )

    def _typed(self, name: Any, schema: Mapping[str, Any], end: str, depth: int) -> str:
        if name in ("number", "integer", "boolean", "null"):
            bounds = {key: schema[key] for key in _BOUNDS if key in schema}
            return self.scalar({"type": name, **bounds}, end)
        if name == "array" and depth < MAX_DEPTH:
            least, most = schema.get("minItems"), schema.get("maxItems")
            limits = least if isinstance(least, int) else 0, most if isinstance(most, int) else None
            items = schema.get("items")
            return self.array(partial(self.value, items, depth=depth + 1), limits, end)
        if name == "object" and depth < MAX_DEPTH:
            return self.object_of(self.members(schema, depth), end)
        return self.text(end)

    def _referenced(self, reference: str, end: str, depth: int) -> str:
        """The rule of a reference, which may be recursive."""
        if known := self._known.get((reference, end)):
            return known
        self._known[reference, end] = name = f"ref_{self._number()}"
        schema = referenced(reference, self.root)
        self.lines.append(f"{name}: {self.value(schema, end, depth + 1)}")
        return name

    def _one_of(self, choices: Any) -> str:
        texts = list(dict.fromkeys(choices))
        return texts[0] if len(texts) == 1 else self.named("choice", " | ".join(texts))

    def _number(self) -> int:
        """A unique number for names of rules."""
        self.lines.append("")
        return len(self.lines) - 1


_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_ALLOWED = frozenset((
    "type", "properties", "required", "items", "enum", "const", "anyOf", "oneOf", "$ref",
    "minItems", "maxItems", "additionalProperties", *_BOUNDS,
    # annotations
    "$defs", "definitions", "$schema", "$id", "$comment", "title", "description", "default",
    "examples", "deprecated", "readOnly", "writeOnly",
))  # fmt: skip


def _guessed_types(schema: Mapping[str, Any]) -> list[str]:
    """Types of a schema without `type`."""
    if "properties" in schema:
        return ["object"]
    return ["array"] if "items" in schema else ["string", "number", "boolean", "null"]
