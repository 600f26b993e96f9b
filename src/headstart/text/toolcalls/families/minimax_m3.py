"""MiniMax M3: XML with `]<]minimax[>[` before every tag; the tags are the keys.

Source: its chat template in llama.cpp's models/templates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from headstart.text.toolcalls.answer_format import AnswerFormat
from headstart.text.toolcalls.formats import MarkedCalls, OwnCall
from headstart.text.toolcalls.json_text import dump, value_or_text
from headstart.text.toolcalls.reader import Reading, TextReader
from headstart.text.toolcalls.value_rules import Limits, Member, ValueRules, quoted

_NS = "]<]minimax[>["
_TAG = re.compile(re.escape(_NS) + r"<(/?)([\w.-]+)>")


def _read_call(reader: TextReader, ends: Sequence[str]) -> Reading[bool]:
    """Parse a name and one element for each argument, which is emitted when it is complete."""
    name = yield from reader.run(lambda char: char not in '"<>\n')
    if name not in reader.tools or not (yield from reader.takes('">')):
        return False
    reader.begin_call(name)
    reader.arguments("{")
    before = ""
    while True:
        place = reader.mark()
        yield from reader.skip_space()
        is_there = yield from reader.takes(_NS + "<")
        key = yield from reader.run(lambda char: char not in "<>/\n")
        is_there = is_there and bool(key) and (yield from reader.takes(">"))
        reader.release(None if is_there else place)
        if not is_there:
            break
        text: list[str] = []
        yield from reader.until((f"{_NS}</{key}>",), text.append)
        value = _value("".join(text), is_text=reader.tools.is_text(name, key))
        reader.arguments(f"{before}{dump(key)}:{dump(value)}")
        before = ","
    reader.arguments("}")
    return True


class _ElementValues(ValueRules):
    """Nested elements; an empty list or object looks like an empty string."""

    separator = ""

    def call(self, name: str) -> str:
        return f"{quoted(name + chr(34) + '>')} {self.joined(self.members(self.root))}"

    def text(self, end: str) -> str:
        if self.spelled(_NS) != quoted(_NS):  # a special token, which text never matches
            return f"/(?s:.*)/ {self.spelled(end)}"
        return self.named(f"text[suffix={quoted(end)}]", "/(?s:.*)/")

    def literal(self, value: Any, end: str) -> str:
        return f"{quoted(value if isinstance(value, str) else dump(value))} {self.spelled(end)}"

    def scalar(self, schema: Any, end: str) -> str:
        return f"{super().scalar(schema, end)} {self.spelled(end)}"

    def array(self, item: Callable[[str], str], limits: Limits, end: str) -> str:
        element = self.member("item", item)
        least = max(1, limits[0])
        return f"{self.repeated(element, (least, limits[1]))} {self.spelled(end)}"

    def member(self, key: str, value: Callable[[str], str]) -> str:
        return f"{self.spelled(_NS)} {quoted(f'<{key}>')} {value(f'{_NS}</{key}>')}"

    def object_of(self, members: Sequence[Member], end: str) -> str:
        return f"{self.joined(members)} {self.spelled(end)}"


def _value(text: str, *, is_text: bool = False, depth: int = 0) -> object:
    """The value of an element: nested elements are an object or list, other text is a scalar."""
    children = _children(text) if depth < 32 else None
    if not children:
        return text if is_text else value_or_text(text)
    values = [(key, _value(inner, depth=depth + 1)) for key, inner in children]
    if all(key == "item" for key, _ in values):
        return [value for _, value in values]
    return dict(values)


def _children(text: str) -> list[tuple[str, str]] | None:
    """The elements of a text; None if it contains anything else."""
    found: list[tuple[str, str]] = []
    at = 0
    while match := _TAG.match(text, at):
        end = text.find(f"{_NS}</{match[2]}>", match.end())
        if match[1] or end < 0:
            return None
        found.append((match[2], text[match.end() : end]))
        at = end + len(f"{_NS}</{match[2]}>")
    return found if not text[at:].strip() else None


FORMAT = AnswerFormat(
    calls=MarkedCalls(
        "minimax-m3",
        OwnCall(_read_call, _ElementValues),
        section_start=_NS + "<tool_call>\n",
        section_end=_NS + "</tool_call>",
        call_start=_NS + '<invoke name="',
        call_end=_NS + "</invoke>\n",
    ),
    seen_markers=(_NS,),
    dropped=("</mm:think>",),
)
