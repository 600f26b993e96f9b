"""Streaming parsers of JSON values."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

from headstart.text.toolcalls.argument_types import TEXT, TYPES
from headstart.text.toolcalls.reader import AnswerReader, Reading


def read_value(reader: AnswerReader, emit: Callable[[str], object]) -> Reading[bool]:
    """Emit the JSON value that begins here verbatim while it arrives.

    Returns whether it is complete and well-formed; of a malformed value, the start is emitted.
    """
    opening = yield from reader.peek(1)
    if opening == '"':
        emit(opening)
        reader.at += 1
        return (yield from read_rest(reader, emit))
    if opening and opening in "{[":
        return (yield from _container(reader, emit))
    text = yield from reader.run(lambda char: char in "0123456789+-.eEtrufalsn")
    emit(text)
    return value_or_text(text) is not text


def read_string(reader: AnswerReader) -> Reading[tuple[str, bool]]:
    """The JSON string that begins here, decoded, and whether it is complete and well-formed; if
    not, its start as it is.
    """
    if not (yield from reader.sees('"')):
        return "", False
    parts: list[str] = []
    yield from read_value(reader, parts.append)
    raw = "".join(parts)
    try:
        return _without_surrogates(json.loads(raw, strict=False)), True
    except ValueError:
        return raw, False


def read_members(reader: AnswerReader, on_member: Callable[[str], Reading[bool]]) -> Reading[bool]:
    """Read an object's members; `on_member` reads the value of each key.

    Returns whether the object is complete and well-formed.
    """
    if not (yield from reader.takes("{")):
        return False
    yield from reader.skip_space()
    if (yield from reader.takes("}")):
        return True
    while True:
        yield from reader.skip_space()
        key, is_whole = yield from read_string(reader)
        if not is_whole:
            return False
        yield from reader.skip_space()
        if not (yield from reader.takes(":")):
            return False
        yield from reader.skip_space()
        if not (yield from on_member(key)):
            return False
        yield from reader.skip_space()
        if (yield from reader.takes("}")):
            return True
        if not (yield from reader.takes(",")):
            return False


def value_or_text(text: str) -> Any:
    """The text parsed as JSON, or the text itself."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return text


def spelled_value(text: str, types: frozenset[str]) -> Any:
    """The value of these types that a text spells, in JSON or, as some templates, in Python."""
    if "string" not in types:
        return python_value(text) if types else value_or_text(text)
    value = {"None": None, "True": True, "False": False}.get(text, value_or_text(text))
    return value if TYPES[type(value)] in types - TEXT else text


def python_value(text: str) -> Any:
    """The text parsed as JSON or as a literal of Python, or the text itself."""
    value = value_or_text(text)
    if value is not text:
        return value
    try:
        value = ast.literal_eval(text.replace("\n", "\\n"))
        dump(value)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text
    return text if isinstance(value, tuple) and text[0] != "(" else value  # 1,000 is no list


def dump(value: Any) -> str:
    """Compact JSON text; lone surrogates become U+FFFD.

    Raises:
        ValueError, TypeError: JSON has no such value.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _without_surrogates(text)


def _without_surrogates(text: str) -> str:
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def read_rest(
    reader: AnswerReader, emit: Callable[[str], object], quote: str = '"'
) -> Reading[bool]:
    """Emit the rest of a string verbatim, with its closing quote; returns whether it has one."""
    while True:
        found = yield from reader.until((quote, "\\"), emit)
        if found is None:
            return False
        emit(found)
        if found == quote:
            return True
        escaped = yield from reader.peek(1)
        emit(escaped)
        reader.at += len(escaped)


def _container(reader: AnswerReader, emit: Callable[[str], object]) -> Reading[bool]:
    """Emit an object or list by counting brackets outside strings."""
    depth: list[str] = []
    while True:
        found = yield from reader.until(('"', "{", "[", "}", "]"), emit)
        if found is None:
            return False
        if found == '"':
            emit(found)
            if not (yield from read_rest(reader, emit)):
                return False
            continue
        if found in "{[":
            depth.append("}" if found == "{" else "]")
        elif depth.pop() != found:
            reader.at -= 1
            return False
        emit(found)
        if not depth:
            return True


def _finite(text: str) -> float:
    return float(text) if math.isfinite(float(text)) else _refuse(text)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
