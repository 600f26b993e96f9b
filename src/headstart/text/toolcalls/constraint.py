"""Tool calls as a Lark grammar for llguidance.

Special tokens appear by id, because text never matches them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any

from headstart.text.toolcalls.argument_types import TEXT, TYPES, listed, parts_of, types_of
from headstart.text.toolcalls.formats import JsonCall, MarkedCalls, NamedCall, TaggedArguments
from headstart.text.toolcalls.json_text import dump
from headstart.text.toolcalls.reader import Tools
from headstart.text.toolcalls.value_rules import as_json, quoted, refuse_undemanded
from headstart.types.constraint import Constraint, ConstraintKind

TokenOf = Callable[[str], int | None]
"""The id of the special token with this spelling, if there is one."""


def required_calls(calls: MarkedCalls, rules: CallRules) -> Constraint:
    """The whole answer must be calls."""
    text = rules.section(calls, with_trigger=True)
    return Constraint(kind=ConstraintKind.LARK, text=text)


def calls_at_a_trigger(calls: MarkedCalls, rules: CallRules) -> Constraint | None:
    """A call must follow the trigger; None for formats without a trigger."""
    if calls.trigger == "{":
        return None
    return Constraint(
        kind=ConstraintKind.LARK,
        text=rules.section(calls, with_trigger=False),
        triggers=(calls.trigger.encode(),),
    )


def before_rules(after_thoughts: str, header: str, token_of: TokenOf) -> str:
    """The rules for `Constraint.before`.

    Args:
        after_thoughts: text between reasoning and what follows it.
        header: text before the constrained text.
    """
    if not after_thoughts and not header:
        return ""
    rules = CallRules(Tools(), (), False, token_of)
    first, second = rules.spelled(after_thoughts), rules.spelled(header)
    return f"before: ({first})? {second}" if first and second else f"before: {first}{second}"


class CallRules:
    """The rules of a Lark grammar of calls."""

    def __init__(
        self, tools: Tools, names: Sequence[str], is_parallel: bool, token_of: TokenOf
    ) -> None:
        """`names`: of the tools that may be called; `is_parallel`: several in one answer."""
        self._tools, self._names, self._is_parallel = tools, names, is_parallel
        self.token_of = token_of
        self._lines: list[str] = []

    def section(self, calls: MarkedCalls, *, with_trigger: bool) -> str:
        """A grammar of all calls and their markers, without the trigger if it was written."""
        self._lines = []
        self._add_section(calls, with_trigger=with_trigger)
        space = "SPACE: /[ \\t\\r\\n]{1,4}/"
        return "\n".join(["start: section", space, *self._lines])

    def _add_section(self, calls: MarkedCalls, *, with_trigger: bool) -> None:
        opening, first_start = calls.section_start, calls.call_start
        if not with_trigger:
            if opening.strip():
                opening = opening.partition(calls.trigger)[2]
            else:
                first_start = first_start.partition(calls.trigger)[2]
        bodies = [self._call(calls, name) for name in self._names]
        for index, body in enumerate(bodies):
            self._lines.append(f"call_{index}: {body}")
        self._lines.append("call: " + " | ".join(f"call_{i}" for i in range(len(bodies))))
        messages = self._further_messages(calls)
        if with_trigger and calls.header:
            self._lines.append(f"section: message {messages}")
            return
        more = ""
        if self._is_parallel and calls.is_parallel:
            before = self.spelled(calls.separator + calls.call_start)
            more = f"({before} call {self.spelled(calls.call_end)})*"
        parts = [
            self.spelled(opening),
            self.spelled(first_start),
            "call",
            self.spelled(calls.call_end),
            more,
            self.spelled(calls.section_end),
            messages,
        ]
        self._lines.append("section: " + " ".join(filter(None, parts)))

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
        schema = {"type": "object", "additionalProperties": False, **self._tools.parameters(name)}
        if not self._tools.is_strict(name):  # ignore unsupported keywords
            schema["x-guidance"] = {"lenient": True, "coerce_one_of": True}
        match calls.body:
            case JsonCall():
                return self._json_call(calls.body, name, schema)
            case NamedCall():
                return self._named_call(calls.body, name, schema)
            case _:
                return calls.body.values(schema, self._lines, self.spelled).call(name)

    def _json_call(self, body: JsonCall, name: str, schema: Mapping[str, Any]) -> str:
        arguments = as_json(schema)
        if body.is_name_key:
            return f'{quoted("{" + json.dumps(name) + ": ")} {arguments} "}}"'
        key, written = json.dumps(body.name_key), json.dumps(name)
        fields = f"{key}: {written}, {json.dumps(body.arguments_key)}: "
        id_field = json.dumps(body.id_key) + ': "'
        if body.id_key and body.is_id_last:
            last = f"{quoted(', ' + id_field)} /[a-zA-Z0-9]{{9}}/ {quoted(chr(34))}"
            return f'{quoted("{" + fields)} {arguments} {last} "}}"'
        if body.id_key:
            first = f"{quoted('{' + id_field)} /[0-9]{{1,4}}/ {quoted(chr(34) + ', ' + fields)}"
            return f'{first} {arguments} "}}"'
        return f'{quoted("{" + fields)} {arguments} "}}"'

    def _named_call(self, body: NamedCall, name: str, schema: Mapping[str, Any]) -> str:
        parts = []
        if body.is_id_first:
            parts += ["/[a-zA-Z0-9]{9}/", self.spelled(body.name_start)]
        if body.is_name_id:
            parts += [quoted(f"functions.{name}:"), "/[0-9]{1,4}/"]
        else:
            parts.append(quoted(name))
        if body.id_start:
            parts += [self.spelled(body.id_start), "/[a-zA-Z0-9]{9}/"]
        parts.append(self.spelled(body.name_end))
        if body.number_end:
            parts += ["/[0-9]{1,3}/", self.spelled(body.number_end)]
        if body.arguments:
            parts += self._tagged(body.arguments, name, schema)
        else:
            parts.append(as_json(schema))
        return " ".join(filter(None, parts))

    def _tagged(
        self, arguments: TaggedArguments, name: str, schema: Mapping[str, Any]
    ) -> list[str]:
        properties = schema.get("properties")
        required = schema["required"] if isinstance(schema.get("required"), list) else ()
        parts = []
        for key, value in (properties if isinstance(properties, Mapping) else {}).items():
            if self._tools.is_strict(name) and "string" in self._tools.types(name, key):
                for part in parts_of(value, schema):
                    refuse_undemanded(part)
            written = self._argument(arguments, key, value, schema)
            parts.append(f"({written})" if key in required else f"({written})?")
        return parts

    def _argument(
        self, form: TaggedArguments, key: str, schema: Any, root: Mapping[str, Any]
    ) -> str:
        """Key and value: a text without quotes if it may be one, else JSON."""
        types = types_of(schema, root)
        opening = f"{self.spelled(form.key_start)} {quoted(key)} {self.spelled(form.key_end)}"
        as_value = f"{as_json(schema, root)} {self.spelled(form.value_end)}"
        if not form.attribute_end:
            is_text = "string" in types
            return f"{opening} {self._text(form, schema, root, types) if is_text else as_value}"
        words = ["number", "array", "object", "boolean", "null"]  # types except strings
        if form.text_attribute == "true":
            words = ["false"]
        end, choices = self.spelled(form.attribute_end), []
        if "string" in types:
            text = self._text(form, schema, root, TEXT)
            choices.append(f"{quoted(form.text_attribute)} {end} {text}")
        if types != TEXT:
            choices.append(f"({' | '.join(map(quoted, words))}) {end} {as_value}")
        return f"{opening} ({' | '.join(choices)})"

    def _text(
        self, form: TaggedArguments, schema: Any, root: Mapping[str, Any], types: frozenset[str]
    ) -> str:
        """A value of these types without quotes, and its end."""
        choices: list[str] = []
        end = form.value_end
        for part in parts_of(schema, root):
            if (values := listed(part)) is not None:
                texts = [one if isinstance(one, str) else dump(one) for one in values]
                ours = [TYPES.get(type(one)) in types for one in values]
                choices += map(quoted, compress(texts, ours))
            elif "string" in (named := types_of({"type": part.get("type")}, root)):
                break
            elif named <= types:
                choices += [as_json(part, root)] if named else []
        else:
            return f"({' | '.join(choices)}) {self.spelled(end)}"
        if self.token_of(end.strip()) is not None:
            return f"/(?s:.*)/ {self.spelled(end)}"
        name, cdata = f"text_{len(self._lines)}", r"/<!\[CDATA\[(?s:.*)/"
        if not form.has_cdata:
            self._lines.append(f"{name}[suffix={quoted(end)}]: /(?s:.*)/")
            return name
        self._lines.append(f"{name}[suffix={quoted(end)}]: /(?s:.*)/ & ~{cdata}")
        self._lines.append(f"{name}_quoted[suffix={quoted(']]>' + end)}]: {cdata}")
        return f"({name} | {name}_quoted)"

    def spelled(self, marker: str) -> str:
        """A marker as literals and ids of special tokens; white space is a separate literal."""
        parts = []
        for part in filter(None, re.split(r"(\]<\]\w+\[>\[|<[^<>]*>|\[/?[A-Z_]+\]|\s+)", marker)):
            token = self.token_of(part)
            parts.append(quoted(part) if token is None else f"<[{token}]>")
        return " ".join(parts)
