"""LFM2: calls as Python writes them, `<|tool_call_start|>[f(a='x', b=2)]<|tool_call_end|>`.

Source: https://docs.liquid.ai/lfm/key-concepts/tool-use
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headstart.text.toolcalls.answer_format import AnswerFormat
from headstart.text.toolcalls.formats import MarkedCalls, NamedCall
from headstart.text.toolcalls.json_text import dump, python_value, read_rest
from headstart.text.toolcalls.reader import AnswerReader, Reading
from headstart.text.toolcalls.value_rules import ValueRules, as_json, quoted


def _read_arguments(reader: AnswerReader, name: str, ends: Sequence[str]) -> Reading[None]:
    """Parse keyword arguments, each of which is emitted once complete."""
    reader.arguments("{")
    before = ""
    while True:
        yield from reader.skip_space()
        key = yield from reader.run(lambda char: char.isalnum() or char == "_")
        yield from reader.skip_space()
        if not key or not (yield from reader.takes("=")):
            break
        value = yield from _source_of_value(reader)
        reader.arguments(f"{before}{dump(key)}:{dump(python_value(value))}")
        before = ","
        yield from reader.takes(",")
    reader.arguments("}")


class _PythonValues(ValueRules):
    """Strings in either kind of quotes; everything else as in JSON."""

    read = _read_arguments
    separator, key_end = ", ", "="

    def text(self, end: str) -> str:
        return self.named("text", as_json({"type": "string"}) + r""" | "'" /[^'\\\n]*/ "'" """)

    def literal(self, value: Any, end: str) -> str:
        texts = [dump(value)]
        if isinstance(value, str) and not set(value) & set("'\\\n"):
            texts.append(f"'{value}'")
        return f"({' | '.join(map(quoted, texts))})"

    def value(self, schema: Any, end: str = "", depth: int = 0) -> str:
        is_object = isinstance(schema, Mapping) and schema.get("type") == "object"
        return self.json(schema) if is_object else super().value(schema, end, depth)


def _source_of_value(reader: AnswerReader) -> Reading[str]:
    """The text up to the comma or parenthesis that ends the value."""
    text: list[str] = []
    depth = 0
    while True:
        found = yield from reader.up_to(tuple("'\",([{)]}"), text.append)
        if found is None or (depth == 0 and found in ",)]}"):
            break
        reader.at += 1
        text.append(found)
        depth += (found in "([{") - (found in ")]}")
        if found in "'\"":
            yield from read_rest(reader, text.append, found)
    return "".join(text).strip()


FORMAT = AnswerFormat(
    calls=MarkedCalls(
        "lfm2",
        NamedCall("{name}(", _PythonValues),
        section_start="<|tool_call_start|>[",
        section_end="]<|tool_call_end|>",
        call_end=")",
        separator=", ",
    ),
    calls_end_thoughts=True,
)
