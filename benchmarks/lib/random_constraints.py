"""Random constraints by the field of a body that takes them, mostly of the right form."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

_WRONG: tuple[Any, ...] = (None, True, -1, 10**40, "a", [], [{}], [[1, 1.5]])
KEYWORDS: dict[str, tuple[Any, ...]] = {
    "type": ("object", "array", "string", "integer", "number", ["string", "null"], "x", 5),
    "properties": ("by name",), "$defs": ("by name",), "patternProperties": ("by name", {"^a": {}}),
    "items": ("schema", False), "prefixItems": ("schemas",), "additionalProperties": ("schema",),
    "allOf": ("schemas",), "anyOf": ("schemas",), "oneOf": ("schemas",), "not": ("schema",),
    "enum": ([], [1, "a", None], [{}], ["a" * 300]), "const": (1, "b", {"a": [1]}),
    "$ref": ("#", "#/$defs/a", "#/nowhere", "http://127.0.0.1:9/x"), "required": (["a"], "a"),
    "pattern": ("^a+$", "(", "x{900}{100}", "(a*)*b"), "format": ("date-time", "email", "no"),
    "multipleOf": (97, 89, 0.1, 0, -3), "minimum": (0, 1e308, "a"), "maximum": (5, -5, 10**30),
    "minLength": (0, 10**6, -1), "maxLength": (3, 2**40), "maxItems": (1, 10**9),
}  # fmt: skip
PATTERN = (
    "a", "[^b]", "(", ")", "|", "{900}", "{3,}", "*", "+?", "\\d", "\\p{L}", "root ::= ", "root",
    '"a"', " x", "start: ", "(?i)", "(?=a)", "\n", ".", "^", "/", "%json {}", "😀",
)  # fmt: skip


def _schema(chance: random.Random, depth: int = 3) -> Any:
    """A JSON schema, mostly of the right form."""
    found: dict[str, Any] = {}
    for name in chance.sample(list(KEYWORDS), chance.choice((1, 1, 2, 3))):
        value = chance.choice(KEYWORDS[name])
        if value in ("schema", "schemas", "by name") and not depth:
            continue
        if value == "schema":
            value = _schema(chance, depth - 1)
        elif value == "schemas":
            value = [_schema(chance, depth - 1) for _ in range(chance.choice((0, 1, 2, 5)))]
        elif value == "by name":
            value = {key: _schema(chance, depth - 1) for key in chance.sample("abc$", 2)}
        found[name] = value
    return chance.choice(_WRONG) if chance.random() < 0.05 else found


def _pattern(chance: random.Random) -> str:
    """A regex, or rules of a grammar."""
    return "".join(chance.choice(PATTERN) for _ in range(chance.choice((1, 3, 8, 40))))


CONSTRAINTS: dict[str, Callable[[random.Random], Any]] = {
    "json_schema": _schema, "regex": _pattern, "grammar": _pattern, "lark": _pattern,
    "response_format": lambda chance: {
        "type": "json_schema", "json_schema": {"name": "n", "schema": _schema(chance)}
    },
    "tools": lambda chance: [
        {"type": "function", "function": {"name": "f", "parameters": _schema(chance)}}
    ] * chance.choice((1, 2)),
    "format": _schema,
}  # fmt: skip
