"""Estimates whether a grammar can force long texts, which llguidance would compute at once.

That takes some microseconds per byte, inside a step. Text is forced between two choices of the
grammar, so it is never longer than the expansion of one alternative of the start. That bound is
computed from the grammar's text; it may be too high, but never too low.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

MOST_BYTES = 2048  # forced text that a step may compute
_RULE = re.compile(r"^[ \t]*[?!]?([A-Za-z_]\w*)\s*(?:(?:\.-?\d+|\[[^\]\n]*\])\s*)?:", re.MULTILINE)
# comments, texts and regexes; the rest is names, numbers and signs
_LITERAL = re.compile(r'//[^\n]*|#[^\n]*|"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/')
_SCHEMA = re.compile(rf"{_LITERAL.pattern}|(%json)\s*")
_BAR = re.compile(rf"{_LITERAL.pattern}|(\|)")
_WORD = re.compile(r"\{\s*(\d+)\s*(?:,\s*(?:(\d+)\s*)?)?\}|~\s*(\d+)|([A-Za-z_]\w*)")


def lark_may_force_much(text: str) -> bool:
    """Whether a Lark grammar may force long texts; assumed for recursive ones."""
    bare = _without_schemas(text)
    if bare is None or re.search(r"%(json|lark|regex)\b", bare):  # in another language
        return True
    found = list(_RULE.finditer(bare))
    ends = [one.start() for one in found[1:]] + [len(bare)]
    rules = {one[1]: bare[one.end() : end] for one, end in zip(found, ends, strict=True)}

    def size(name: str, of: Callable[[str], float]) -> float:
        return max(_alternative_size(part, of) for part in _alternatives(rules.get(name, "")))

    return _expand("start", size) > MOST_BYTES


def _without_schemas(text: str) -> str | None:
    """The grammar with a text of equal size for each JSON schema; None if one is malformed."""
    parts, at = [], 0
    while found := _SCHEMA.search(text, at):
        if found[1] is None:  # a literal
            parts.append(text[at : (at := found.end())])
            continue
        parts.append(text[at : found.start()])
        try:
            schema, at = json.JSONDecoder().raw_decode(text, found.end())
        except ValueError:
            return None
        size = min(_schema_bound(schema), MOST_BYTES + 1)
        parts.append(f'"{"x" * int(size)}"')
    return "".join([*parts, text[at:]])


def schema_may_force_much(schema: Any) -> bool:
    """Whether a JSON schema may force long texts, by references that multiply its text."""
    return _schema_bound(schema) > max(MOST_BYTES, 4 * len(json.dumps(schema)))


def _schema_bound(schema: Any) -> float:
    """Upper bound of the bytes that a JSON schema forces; infinite if llguidance may find a part by
    an escaped name, an anchor or an address.
    """
    if isinstance(schema, Mapping):  # its own address changes no reference to a part of it
        schema = {key: one for key, one in schema.items() if key != "$id"}

    def size(reference: str, of: Callable[[str], float]) -> float:
        part: Any = schema
        is_plain = reference == "#" or reference.startswith("#/")
        if not is_plain or "%" in reference or "~" in reference:
            return math.inf
        try:
            for key in reference.lstrip("#/").split("/") if reference != "#" else ():
                part = part[int(key) if isinstance(part, list) else key]
        except (LookupError, TypeError, ValueError):
            return math.inf
        return _schema_size(part, of)

    # recursion always passes a choice, and objects that contain themselves are common
    return _expand("#", size, cycle=0.0)


def _expand(
    first: str, size: Callable[[str, Callable[[str], float]], float], cycle: float = math.inf
) -> float:
    """The expanded size of a name; `size` may ask for others; `cycle` is that of recursion."""
    known: dict[str, float] = {}

    def of(name: str) -> float:
        if name not in known:
            known[name] = cycle
            known[name] = size(name, of)
        return known[name]

    try:
        return of(first)
    except RecursionError:
        return math.inf


def _alternatives(text: str) -> list[str]:
    """The parts between `|` outside literals."""
    marks = [0, *(one.start() for one in _BAR.finditer(text) if one[1])]
    return [text[a:b] for a, b in zip(marks, [*marks[1:], len(text)], strict=True)]


def _alternative_size(text: str, of: Callable[[str], float]) -> float:
    times, total = 1.0, float(sum(len(one[0]) for one in _LITERAL.finditer(text)))
    for count, most, tilde, name in _WORD.findall(_LITERAL.sub(" ", text)):
        if name:
            total += of(name)
        else:
            times *= max(1, *(int(number) for number in (count, most, tilde) if number))
    return total * times


def _schema_size(schema: Any, of: Callable[[str], float]) -> float:
    """Bytes of all keys and values, including references; definitions count only if referenced."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$id"), str):  # references below it start there
            return math.inf
        kept = {key: one for key, one in schema.items() if key not in ("$defs", "definitions")}
        if isinstance(kept.get("description"), str):  # not a property of this name
            del kept["description"]
        total = 0.0
        if isinstance(kept.get("enum"), list):  # not a property of this name
            total += len(json.dumps(kept.pop("enum")))
        if "const" in kept:
            const = kept.pop("const")
            total += max(len(json.dumps(const)), _schema_size(const, of))  # or such a property
        total += sum(len(key) + _schema_size(one, of) for key, one in kept.items())
        reference = schema.get("$ref")
        return total + (of(reference) if isinstance(reference, str) else 0.0)
    if isinstance(schema, list):
        return sum(_schema_size(one, of) for one in schema)
    return float(len(schema)) if isinstance(schema, str) else 4.0
