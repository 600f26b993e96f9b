"""MiniMax M3: XML with `]<]minimax[>[` before every tag; the tags are the keys.

Source: its chat template in llama.cpp's models/templates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from headstart.text.toolcalls.answer_format import AnswerFormat
from headstart.text.toolcalls.argument_types import TEXT, ToolSchema
from headstart.text.toolcalls.formats import MarkedCalls, NamedCall
from headstart.text.toolcalls.json_text import dump, spelled_value
from headstart.text.toolcalls.reader import AnswerReader, Reading
from headstart.text.toolcalls.value_rules import (
    MAX_DEPTH,
    Limits,
    Members,
    ValueRules,
    quoted,
)

_NS = "]<]minimax[>["


def _read_arguments(reader: AnswerReader, name: str, ends: Sequence[str]) -> Reading[None]:
    """Parse one element for each argument, which is emitted when it is complete."""
    reader.arguments("{")
    before = ""
    while key := (yield from reader.behind_space(_read_tag(reader))):
        root = reader.schema_of(name)
        schema = root.property_of(root.root, key)
        text = yield from _element(reader, key, nests=root.types_of(schema) != TEXT)
        reader.arguments(f"{before}{dump(key)}:{dump(_value(text, schema, root))}")
        before = ","
    reader.arguments("}")


def _read_tag(reader: AnswerReader) -> Reading[str]:
    """The name of the element that begins here; "" if there is none."""
    if not (yield from reader.takes(_NS + "<")):
        return ""
    key = yield from reader.run(lambda char: char not in "<>/\n")
    return key if (yield from reader.takes(">")) else ""


class _ElementValues(ValueRules):
    """Nested elements; only the schema tells an empty list or object from an empty string."""

    read = _read_arguments
    separator = ""

    def literal(self, value: Any, end: str) -> str:
        return f"{quoted(value if isinstance(value, str) else dump(value))} {self.spelled(end)}"

    def scalar(self, schema: Any, end: str) -> str:
        return f"{super().scalar(schema, end)} {self.spelled(end)}"

    def array(self, item: Callable[[str], str], limits: Limits, end: str) -> str:
        return f"{self.repeated(self.member('item', item), limits)} {self.spelled(end)}"

    def member(self, key: str, value: Callable[[str], str]) -> str:
        return f"{self.spelled(_NS)} {quoted(f'<{key}>')} {value(f'{_NS}</{key}>')}"

    def object_of(self, members: Members, end: str) -> str:
        return f"{self.joined(members)} {self.spelled(end)}"


def _element(reader: AnswerReader, key: str, *, nests: bool) -> Reading[str]:
    """The text up to the end of an element, which may have elements of its own name."""
    text: list[str] = []
    marks = (f"{_NS}</{key}>", f"{_NS}<{key}>")[: 1 + nests]
    depth = 1
    while found := (yield from reader.until(marks, text.append)):
        depth += 1 if found == marks[-1] != marks[0] else -1
        if not depth:
            break
        text.append(found)
    return "".join(text)


def _value(text: str, schema: Any, root: ToolSchema, depth: int = 0) -> object:
    """The value of an element: nested elements are an object or list, other text is a scalar."""
    types = root.types_of(schema)
    if types == TEXT or depth == MAX_DEPTH:
        return text
    children = _children(text)
    if not children:
        is_empty = not text.strip() and "string" not in types
        empty: object = [] if "array" in types else {} if "object" in types else ""
        return empty if is_empty else spelled_value(text, types)
    is_list = "array" in types or "object" not in types  # an object may have a property "item"
    if is_list and all(key == "item" for key, _ in children):
        item = next((one["items"] for one in root.parts_of(schema) if "items" in one), None)
        return [_value(inner, item, root, depth + 1) for _, inner in children]
    return {
        key: _value(inner, root.property_of(schema, key), root, depth + 1)
        for key, inner in children
    }


def _children(text: str) -> list[tuple[str, str]] | None:
    """The elements of a text; None if it contains anything else."""
    found: list[tuple[str, str]] = []
    at, mark = 0, re.escape(_NS)
    opening = re.compile(rf"\s*{mark}<([\w.-]+)>")
    while match := opening.match(text, at):
        depth, end = 1, match
        for end in re.compile(f"{mark}<(/?){re.escape(match[1])}>").finditer(text, match.end()):
            depth += -1 if end[1] else 1
            if not depth:
                break
        if depth:
            return None
        found.append((match[1], text[match.end() : end.start()]))
        at = end.end()
    return found if not text[at:].strip() else None


FORMAT = AnswerFormat(
    calls=MarkedCalls(
        "minimax-m3",
        NamedCall('{name}">', _ElementValues),
        section_start=_NS + "<tool_call>\n",
        section_end=_NS + "</tool_call>",
        call_start=_NS + '<invoke name="',
        call_end=_NS + "</invoke>\n",
    ),
    dropped=("</mm:think>",),
)
