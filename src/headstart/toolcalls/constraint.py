"""Calls as a grammar, so that a model can write no others: llguidance's Lark.

Markers that are special tokens stand in it by their ids, because a text never matches those.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headstart.grammar import Constraint, ConstraintKind
from headstart.text.thinking import Thinking
from headstart.toolcalls.formats import (
    JsonArguments,
    JsonCall,
    MarkedCalls,
    NamedCall,
    TaggedArguments,
)
from headstart.toolcalls.tools import Tools

_PIECES = re.compile(r"(<[^<>]*>|\[/?[A-Z_]+\]|\s+)")
_TYPES = ("number", "array", "object", "boolean", "null")  # of values that are no text
# objects are written as Python's json.dumps does, which is what models mostly learned
_LAYOUT = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
TokenOf = Callable[[str], int | None]
"""The id of the special token with this spelling, if there is one."""


@dataclass(frozen=True, slots=True)
class CallRules:
    """Which calls may be written."""

    tools: Tools
    names: Sequence[str]  # of the tools that may be called
    is_parallel: bool
    token_of: TokenOf


def required_calls(
    calls: MarkedCalls,
    rules: CallRules,
    thinking: Thinking | None,
    *,
    is_thinking: bool,
    after_thoughts: str = "",
) -> Constraint:
    """The answer is calls, after thoughts if the model thinks.

    Args:
        is_thinking: the prompt has opened the thoughts.
        after_thoughts: what stands between thoughts and calls.
    """
    grammar = _Grammar(rules)
    grammar.add_section(calls, with_trigger=True)
    if thinking is None:
        return Constraint(kind=ConstraintKind.LARK, text=grammar.text("section"))
    if is_thinking:
        return Constraint(
            kind=ConstraintKind.LARK,
            text=grammar.text("section"),
            triggers=(thinking.end.strip().encode(),),
            is_required=True,
            allows_space=True,
        )
    grammar.add_thoughts(thinking, after_thoughts)
    return Constraint(kind=ConstraintKind.LARK, text=grammar.text("thoughts? SPACE? section"))


def calls_at_a_trigger(calls: MarkedCalls, rules: CallRules) -> Constraint | None:
    """What follows the marker of calls is a call; None where no marker shows that one begins."""
    if calls.triggers == ("{",):
        return None
    grammar = _Grammar(rules)
    grammar.add_section(calls, with_trigger=False)
    return Constraint(
        kind=ConstraintKind.LARK,
        text=grammar.text("section"),
        triggers=tuple(trigger.encode() for trigger in calls.triggers),
    )


class _Grammar:
    """Rules of a Lark grammar, written one by one."""

    def __init__(self, rules: CallRules) -> None:
        self._rules = rules
        self._lines: list[str] = []

    def text(self, start: str) -> str:
        space = "SPACE: /[ \\t\\r\\n]{1,4}/"
        return "\n".join([f"start: {start}", space, *self._lines])

    def add_thoughts(self, thinking: Thinking, after: str) -> None:
        """Thoughts between their markers."""
        start, end = self._spelled(thinking.start), thinking.end.strip()
        then = self._spelled(after)
        if self._rules.token_of(end) is None:
            self._lines += [
                f"thoughts: {start} thought_text {then}",
                f"thought_text[suffix={_quoted(end)}]: /(?s:.*)/",
            ]
        else:
            self._lines += [f"thoughts: {start} /(?s:.*)/ {self._spelled(end)} {then}"]

    def add_section(self, calls: MarkedCalls, *, with_trigger: bool) -> None:
        """All calls with what is around them; without the trigger if that was written already."""
        opening, first_start = calls.section_start, calls.call_start
        if not with_trigger:
            trigger = calls.triggers[0]
            if opening.strip():
                opening = opening.partition(trigger)[2]
            else:
                first_start = first_start.partition(trigger)[2]
        bodies = [self._call(calls, name) for name in self._rules.names]
        for index, body in enumerate(bodies):
            self._lines.append(f"call_{index}: {body}")
        self._lines.append("call: " + " | ".join(f"call_{i}" for i in range(len(bodies))))
        more = ""
        if self._rules.is_parallel and calls.is_parallel:
            before = self._spelled(calls.separator + calls.call_start)
            more = f"({before} call {self._spelled(calls.call_end)})*"
        parts = [
            self._spelled(opening),
            self._spelled(first_start),
            "call",
            self._spelled(calls.call_end),
            more,
            self._spelled(calls.section_end),
        ]
        self._lines.append("section: " + " ".join(filter(None, parts)))

    def _call(self, calls: MarkedCalls, name: str) -> str:
        # arguments that the tool does not declare would be of no use
        schema = {"type": "object", "additionalProperties": False}
        schema |= self._rules.tools.parameters(name)
        match calls.body:
            case JsonCall():
                return self._json_call(calls.body, name, schema)
            case NamedCall():
                return self._named_call(calls.body, name, schema)
        raise TypeError(f"no grammar for {calls.body!r}")

    def _json_call(self, body: JsonCall, name: str, schema: Mapping[str, Any]) -> str:
        arguments = _json(schema)
        if body.is_name_key:
            return f'{_quoted("{" + json.dumps(name) + ": ")} {arguments} "}}"'
        key, written = json.dumps(body.name_key), json.dumps(name)
        fields = f"{key}: {written}, {json.dumps(body.arguments_key)}: "
        id_field = json.dumps(body.id_key) + ': "'
        if body.id_key and body.is_id_last:
            last = f"{_quoted(', ' + id_field)} /[a-zA-Z0-9]{{9}}/ {_quoted(chr(34))}"
            return f'{_quoted("{" + fields)} {arguments} {last} "}}"'
        if body.id_key:
            first = f"{_quoted('{' + id_field)} /[0-9]{{1,4}}/ {_quoted(chr(34) + ', ' + fields)}"
            return f'{first} {arguments} "}}"'
        return f'{_quoted("{" + fields)} {arguments} "}}"'

    def _named_call(self, body: NamedCall, name: str, schema: Mapping[str, Any]) -> str:
        parts = []
        if body.is_id_first:
            parts += ["/[a-zA-Z0-9]{9}/", self._spelled(body.name_start)]
        if body.is_name_id:
            parts += [_quoted(f"functions.{name}:"), "/[0-9]{1,4}/"]
        else:
            parts.append(_quoted(name))
        if body.id_start:
            parts += [self._spelled(body.id_start), "/[a-zA-Z0-9]{9}/"]
        parts.append(self._spelled(body.name_end))
        if body.number_end:
            parts += ["/[0-9]{1,3}/", self._spelled(body.number_end)]
        match body.arguments:
            case JsonArguments():
                parts.append(_json(schema))
            case TaggedArguments():
                parts += self._tagged(body.arguments, name, schema)
        return " ".join(filter(None, parts))

    def _tagged(
        self, arguments: TaggedArguments, name: str, schema: Mapping[str, Any]
    ) -> list[str]:
        properties = schema.get("properties")
        required = schema.get("required") or ()
        parts = []
        for key, value in (properties if isinstance(properties, Mapping) else {}).items():
            is_text = self._rules.tools.is_text(name, key)
            written = self._argument(arguments, key, value, is_text=is_text)
            parts.append(f"({written})" if key in required else f"({written})?")
        return parts

    def _argument(self, form: TaggedArguments, key: str, schema: Any, *, is_text: bool) -> str:
        has_values = isinstance(schema, Mapping) and ("enum" in schema or "const" in schema)
        parts = [self._spelled(form.key_start), _quoted(key), self._spelled(form.key_end)]
        if form.attribute_end:
            others = ("false",) if form.text_attribute == "true" else _TYPES
            words = (form.text_attribute,) if is_text else others
            parts.append(f"({' | '.join(map(_quoted, words))})")
            parts.append(self._spelled(form.attribute_end))
        opening = " ".join(parts)
        if is_text and has_values:
            values = schema.get("enum") or [schema["const"]]
            choices = " | ".join(_quoted(str(value)) for value in values)
            return f"{opening} ({choices}) {self._spelled(form.value_end)}"
        if not is_text:
            return f"{opening} {_json(schema)} {self._spelled(form.value_end)}"
        end = form.value_end
        if self._rules.token_of(end.strip()) is not None:
            return f"{opening} /(?s:.*)/ {self._spelled(end)}"
        name = f"text_{len(self._lines)}_{len(opening)}"
        self._lines.append(f"{name}[suffix={_quoted(end)}]: /(?s:.*)/")
        return f"{opening} {name}"

    def _spelled(self, marker: str) -> str:
        """A marker as text and ids of special tokens.

        White space is a piece of its own: what may follow it is decided behind it.
        """
        parts = []
        for part in filter(None, _PIECES.split(marker)):
            token = self._rules.token_of(part)
            parts.append(_quoted(part) if token is None else f"<[{token}]>")
        return " ".join(parts)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json(schema: Any) -> str:
    """A value of this schema."""
    whole = dict(schema) if isinstance(schema, Mapping) else {}
    return "%json " + json.dumps({**whole, "x-guidance": _LAYOUT}, ensure_ascii=False)
