"""Gemma 4: `<|tool_call>call:name{key:<|"|>text<|"|>,other:2}<tool_call|>`.

Source: https://ai.google.dev/gemma/docs/core/prompt-formatting-gemma4
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headstart.text.toolcalls.answer_format import AnswerFormat
from headstart.text.toolcalls.formats import MarkedCalls, NamedCall
from headstart.text.toolcalls.json_text import dump, python_value
from headstart.text.toolcalls.reader import AnswerReader, Reading
from headstart.text.toolcalls.value_rules import Members, ValueRules, quoted

_QUOTE = '<|"|>'


def _read_object(reader: AnswerReader, name: str, ends: Sequence[str]) -> Reading[None]:
    """Emit an object as JSON while it arrives, without recursion."""
    open_brackets: list[str] = []
    while True:
        yield from reader.skip_space()
        if open_brackets and open_brackets[-1] == "}":
            yield from _read_key(reader)
        opening = yield from reader.sees(_QUOTE, "{", "[")
        reader.at += len(opening or "")
        if opening == _QUOTE:
            reader.arguments('"')
            yield from reader.until((_QUOTE,), lambda text: reader.arguments(dump(text)[1:-1]))
            reader.arguments('"')
        elif opening:
            reader.arguments(opening)
            open_brackets.append("}" if opening == "{" else "]")
            yield from reader.skip_space()
            if not (yield from reader.sees(open_brackets[-1])):
                continue
        else:
            word = yield from reader.run(lambda char: char not in ",{}[]<")
            reader.arguments(dump(python_value(word.strip())))
        if not (yield from _go_on(reader, open_brackets)):
            return


class _GemmaValues(ValueRules):
    """Keys are in alphabetical order, as the template writes them."""

    is_object = True
    read = _read_object

    def arguments(self) -> str:
        return self.value(self.root)

    def text(self, end: str) -> str:
        return f"{self.spelled(_QUOTE)} {super().text(_QUOTE)}"

    def literal(self, value: Any, end: str) -> str:
        if not isinstance(value, str):
            return quoted(dump(value))
        quote = self.spelled(_QUOTE)
        return f"{quote} {quoted(value)} {quote}"

    def object_of(self, members: Members, end: str) -> str:
        ordered = sorted(members.items(), key=lambda one: one[0].casefold())
        return f'"{{" {self.joined(dict(ordered))} "}}"'


def _read_key(reader: AnswerReader) -> Reading[None]:
    key: list[str] = []  # of a cut call, its end
    end = _QUOTE if (yield from reader.takes(_QUOTE)) else ":"
    yield from reader.until((end,), key.append)
    if end == _QUOTE:
        yield from reader.takes(":")
    reader.arguments(dump("".join(key).strip()) + ":")
    yield from reader.skip_space()


def _go_on(reader: AnswerReader, open_brackets: list[str]) -> Reading[bool]:
    """Emit closing brackets; returns whether another value follows."""
    while open_brackets:
        yield from reader.skip_space()
        if (yield from reader.takes(open_brackets[-1])):
            reader.arguments(open_brackets.pop())
            continue
        if (yield from reader.takes(",")):
            reader.arguments(",")
            return True
        return False
    return False


FORMAT = AnswerFormat(
    calls=MarkedCalls(
        "gemma4",
        NamedCall("{name}", _GemmaValues),
        call_start="<|tool_call>call:",
        call_end="<tool_call|>",
    ),
    seen_markers=(_QUOTE,),
    dropped=("<|tool_response>",),
)
