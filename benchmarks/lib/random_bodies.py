"""Random constraints, mostly of the right form; bodies with images and sounds, mostly damaged."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from typing import Any

from tests.images import TINY_GIF, TINY_JPEG, flac, mp3, picture, wav

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
"""By the field of a body that takes them."""

MARKER = "<__media__>"  # in the text, for an image
_TAG = b"Info\0\0\0\1\0\0\0\x09"
_WEBP = base64.b64decode("UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA")


def image_body(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """A path and a body with one file, three times in four damaged."""
    images = picture(chance.randrange(9), 28, 40), TINY_JPEG, TINY_GIF, _WEBP
    sounds = wav(chance.randrange(9), 0.2), mp3(9, _TAG), flac(5000)
    is_sound = chance.random() < 0.3
    data = bytearray(chance.choice(sounds if is_sound else images))
    for _ in range(chance.choice((0, 1, 3, 9))):
        data[chance.randrange(min(len(data), 500))] = chance.randrange(256)
    if chance.random() < 0.2:
        del data[chance.randrange(len(data)) :]
    image = base64.b64encode(data).decode()
    text = {"type": "text", "text": "a"}
    sound = {"type": "input_audio", "input_audio": {"data": image}}
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
    source = {"type": "base64", "media_type": "image/png", "data": image}
    prompt = {"prompt_string": f"{MARKER} a", "multimodal_data": [image]}
    bodies: dict[str, Any] = {
        "/v1/chat/completions": {
            "messages": [{"role": "user", "content": [sound if is_sound else url, text]}]
        },
        "/v1/messages": {
            "messages": [{"role": "user", "content": [{"type": "image", "source": source}, text]}]
        },
        "/api/chat": {
            "messages": [{"role": "user", "content": "a", "images": [image]}],
            "options": {"num_predict": 2},
        },
        "/completion": {"prompt": prompt},
        "/embedding": {"content": prompt},
        "/v1/embeddings": {"input": [prompt, "a"]},
    }
    path = chance.choice(list(bodies))
    return path, {"max_tokens": 2} | bodies[path]
