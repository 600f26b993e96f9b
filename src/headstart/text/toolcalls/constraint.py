"""Tool calls as a Lark grammar for llguidance.

Special tokens appear by id, because text never matches them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headstart.text.toolcalls.argument_types import ToolSchema, parameters_of
from headstart.text.toolcalls.formats import JsonCall, MarkedCalls, NamedCall, TaggedArguments
from headstart.text.toolcalls.json_text import dump
from headstart.text.toolcalls.reader import Tools
from headstart.text.toolcalls.value_rules import Lines, ValueRules, as_json, quoted
from headstart.types.constraint import Constraint, ConstraintKind

TokenOf = Callable[[str], int | None]
"""The id of the special token with this spelling, if there is one."""


class CallRules:
    """The rules of a Lark grammar of calls."""

    def __init__(
        self, tools: Tools, names: Sequence[str], is_parallel: bool, token_of: TokenOf
    ) -> None:
        """`names`: of the tools that may be called; `is_parallel`: several in one answer."""
        self._tools, self._names, self._is_parallel = tools, names, is_parallel
        self._token_of = token_of
        self._lines = Lines()

    def required(self, calls: MarkedCalls) -> Constraint:
        """The whole answer must be calls."""
        text = self._section(calls, with_trigger=True)
        return Constraint(kind=ConstraintKind.LARK, text=text)

    def at_trigger(self, calls: MarkedCalls) -> Constraint | None:
        """A call must follow the trigger; None for formats without a trigger."""
        if calls.trigger == "{":
            return None
        return Constraint(
            kind=ConstraintKind.LARK,
            text=self._section(calls, with_trigger=False),
            triggers=(calls.trigger.encode(),),
        )

    def before(self, after_thoughts: str, header: str) -> str:
        """The rules for `Constraint.before`.

        Args:
            after_thoughts: text between reasoning and what follows it.
            header: text before the constrained text.
        """
        first, second = self.spelled(after_thoughts), self.spelled(header)
        if first and second:
            return f"before: ({first})? {second}"
        return f"before: {first}{second}" if first or second else ""

    def _section(self, calls: MarkedCalls, *, with_trigger: bool) -> str:
        """A grammar of all calls and their markers, without the trigger if it was written."""
        self._lines = Lines()
        bodies = [f"call_{at}: {self._call(calls, name)}" for at, name in enumerate(self._names)]
        self._lines += bodies
        self._lines.append("call: " + " | ".join(f"call_{at}" for at in range(len(bodies))))
        messages = self._further_messages(calls)
        opening, more = calls.section_start + calls.call_start, ""
        if not with_trigger:
            opening = opening.partition(calls.trigger)[2]
        end = self.spelled(calls.call_end)
        if self._is_parallel and calls.is_parallel:
            more = f"({self.spelled(calls.separator + calls.call_start)} call {end})*"
        section = f"{self.spelled(opening)} call {end} {more} {self.spelled(calls.section_end)}"
        if with_trigger and calls.header:
            section = "message"
        return "\n".join([f"start: {section} {messages}", *self._lines])

    def _further_messages(self, calls: MarkedCalls) -> str:
        """Rules for further messages if the header names the tool."""
        if not calls.header:
            return ""
        end = self.spelled(calls.call_end + calls.section_end)
        messages = []
        for index, name in enumerate(self._names):
            start = calls.header.format(name=name) + calls.section_start + calls.call_start
            messages.append(f"{self.spelled(start)} call_{index} {end}")
        self._lines.append("message: " + " | ".join(messages))
        if not (self._is_parallel and calls.next_message):
            return ""
        return f"({self.spelled(calls.next_message)} message)*"

    def _call(self, calls: MarkedCalls, name: str) -> str:
        # undeclared arguments would be useless
        schema = {
            "type": "object",
            "additionalProperties": False,
            **parameters_of(self._tools[name]),
        }
        if self._tools[name].get("strict") is not True:  # ignore unsupported keywords
            schema["x-guidance"] = {"lenient": True, "coerce_one_of": True}
        if isinstance(calls.body, JsonCall):
            return self._json_call(calls.body, name, schema)
        return self._named_call(calls.body, name, schema)

    def _json_call(self, body: JsonCall, name: str, schema: Mapping[str, Any]) -> str:
        fields = f"{json.dumps(body.name_key)}: {json.dumps(name)}"
        fields += f", {json.dumps(body.arguments_key)}: "
        if body.is_name_key:
            fields = json.dumps(name) + ": "
        opening, closing = quoted("{" + fields), quoted("}")
        id_field = json.dumps(body.id_key) + ': "'
        if body.is_id_last:
            closing = f"{quoted(', ' + id_field)} /[a-zA-Z0-9]{{9}}/ {quoted(chr(34) + '}')}"
        elif body.id_key:
            opening = f"{quoted('{' + id_field)} /[0-9]{{1,4}}/ {quoted(chr(34) + ', ' + fields)}"
        return f"{opening} {as_json(schema)} {closing}"

    def _named_call(self, body: NamedCall, name: str, schema: Mapping[str, Any]) -> str:
        written = (
            f"{quoted(f'functions.{name}:')} /[0-9]{{1,4}}/" if body.is_name_id else quoted(name)
        )
        fields = {"{name}": written, "{number}": "/[0-9]{1,3}/"}
        parts = [
            f"{self.spelled(part[:-4])} /[a-zA-Z0-9]{{9}}/"
            if part.endswith("{id}")
            else fields.get(part) or self.spelled(part)
            for part in body.parts
        ]
        match body.arguments:
            case None:
                arguments = as_json(schema)
            case TaggedArguments():
                values = _TaggedValues(body.arguments, schema, self._lines, self.spelled)
                arguments = values.arguments()
            case _:
                arguments = body.arguments(schema, self._lines, self.spelled).arguments()
        return " ".join([*parts, arguments])

    def spelled(self, marker: str) -> str:
        """A marker as literals and ids of special tokens; white space is a separate literal."""
        parts = []
        for part in filter(None, re.split(r"(\]<\]\w+\[>\[|<[^<>]*>|\[/?[A-Z_]+\]|\s+)", marker)):
            token = self._token_of(part)
            parts.append(quoted(part) if token is None else f"<[{token}]>")
        return " ".join(parts)


class _TaggedValues(ValueRules):
    """Arguments between markers: texts without quotes, everything else as JSON."""

    separator = ""

    def __init__(
        self,
        form: TaggedArguments,
        schema: Mapping[str, Any],
        lines: Lines,
        spelled: Callable[[str], str],
    ) -> None:
        super().__init__(schema, lines, spelled)
        self._form, self._types_of = form, ToolSchema(schema).types_of

    def member(self, key: str, value: Callable[[str], str]) -> str:
        form = self._form
        opening = f"{self.spelled(form.key_start)} {quoted(key)} {self.spelled(form.key_end)}"
        return f"{opening} {value(form.value_end)}"

    def value(self, schema: Any, end: str = "", depth: int = 0) -> str:
        may_be_text = "string" in self._types_of(schema)
        return super().value(schema, end, depth) if may_be_text else self.scalar(schema, end)

    def _typed(self, name: Any, schema: Mapping[str, Any], end: str, depth: int) -> str:
        return self.text(end) if name == "string" else self.scalar({**schema, "type": name}, end)

    def text(self, end: str) -> str:
        rule = super().text(end)
        if self._form.has_cdata and not rule.startswith("/"):
            cdata = r"/<!\[CDATA\[(?s:.*)/"
            self.lines[-1] += f" & ~{cdata}"
            rule += " | " + self.named(f"text[suffix={quoted(']]>' + end)}]", cdata)
        return f"{self._attribute(is_text=True)} ({rule})"

    def literal(self, value: Any, end: str) -> str:
        is_text = isinstance(value, str)
        written = quoted(value if is_text else dump(value))
        return f"{self._attribute(is_text=is_text)} {written} {self.spelled(end)}"

    def scalar(self, schema: Any, end: str) -> str:
        """A value in JSON."""
        return f"{self._attribute(is_text=False)} {self.json(schema)} {self.spelled(end)}"

    def _attribute(self, *, is_text: bool) -> str:
        form = self._form
        if not form.attribute_end:
            return ""
        words = ["number", "array", "object", "boolean", "null"]  # types except strings
        if is_text or form.text_attribute == "true":
            words = [form.text_attribute if is_text else "false"]
        return f"({' | '.join(map(quoted, words))}) {self.spelled(form.attribute_end)}"
