"""Formats of calls between markers: JSON objects, or a name with arguments.

Markers are compared without surrounding white space, which models vary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from headstart.text.toolcalls.argument_types import TEXT
from headstart.text.toolcalls.json_text import (
    dump,
    python_value,
    read_members,
    read_string,
    read_value,
    spelled_value,
    value_or_text,
)
from headstart.text.toolcalls.reader import AnswerReader, Reading
from headstart.text.toolcalls.value_rules import ValueRules


def pieces(marker: str) -> list[str]:
    """The tags and single characters of a marker."""
    return re.findall(r"<[^<>]*>|\[/?[A-Z_]+\]|\S", marker)


@dataclass(frozen=True, slots=True)
class MarkedCalls:
    """Calls between markers: around all of them, around each, and between two."""

    name: str  # in /props and the log
    body: JsonCall | NamedCall
    section_start: str = ""
    section_end: str = ""
    call_start: str = ""
    call_end: str = ""
    separator: str = ""
    is_parallel: bool = True  # the template renders several calls
    header: str = ""  # before the section where calls are required; {name} is the tool's
    next_message: str = ""  # between a section and the next header

    @property
    def trigger(self) -> str:
        """The marker with which calls begin."""
        return self.section_start.strip() or self.call_start.strip() or "{"

    def read(self, reader: AnswerReader) -> Reading[bool]:
        """Parse all calls of a section; returns False without any event if there is none."""
        yield from reader.takes(self.section_start.strip())
        ends = pieces(self.call_end) or pieces(self.section_end)
        is_call = False
        while (yield from reader.behind_space(self._read_one(reader, ends))):
            is_call = True
        if is_call:
            yield from _take_all(reader, pieces(self.section_end))
        return is_call

    def _read_one(self, reader: AnswerReader, ends: Sequence[str]) -> Reading[bool]:
        if not (yield from reader.takes(self.call_start.strip())):
            return False
        yield from reader.skip_space()
        if not (yield from self.body.read(reader, ends)):
            return False
        yield from _take_all(reader, pieces(self.call_end))
        yield from _take_all(reader, pieces(self.separator))
        return True


def _take_all(reader: AnswerReader, parts: Sequence[str]) -> Reading[bool]:
    """Skip the parts of a marker, whatever white space is before each; False if one is missing."""
    for part in parts:
        if not (yield from reader.behind_space(reader.takes(part))):
            return False
    return True


@dataclass(frozen=True, slots=True)
class JsonCall:
    """An object with the name, the arguments and maybe an id."""

    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str = ""
    is_id_last: bool = False  # the id follows the arguments
    is_name_key: bool = False  # {name: arguments}

    def read(self, reader: AnswerReader, ends: Sequence[str]) -> Reading[bool]:
        if not (yield from reader.sees("{")):
            return False
        reading = _JsonCallReading(self, reader)
        is_whole = yield from read_members(reader, reading.read_member)
        is_call = reading.has_arguments or (reading.name and is_whole)
        if is_call and not reading.has_begun:
            reading.begin()
            reader.arguments("".join(reading.held) if reading.has_arguments else "{}")
        if not is_whole and reading.has_begun:
            sink = reader.arguments if reading.is_broken else _drop
            yield from reader.up_to(ends[:1], sink)
        return reading.has_begun


def _drop(_: str) -> None:
    """Discard text."""


@dataclass(slots=True)
class _JsonCallReading:
    """The state of parsing one JSON call."""

    format: JsonCall
    reader: AnswerReader
    name: str = ""
    call_id: str = ""
    held: list[str] = field(default_factory=list)  # arguments before the id
    has_begun: bool = False
    has_arguments: bool = False
    is_broken: bool = False  # in its arguments
    is_nested: bool = False  # inside `function`

    def read_member(self, key: str) -> Reading[bool]:
        form, reader = self.format, self.reader
        if form.is_name_key:
            if self.has_begun or key not in reader.tools:
                return False
            self.name = key
            return (yield from self._read_arguments())
        if key == form.name_key:
            self.name, is_whole = yield from read_string(reader)
            return is_whole and self.name in reader.tools
        if key == form.id_key:
            return (yield from self._read_id())
        if key == "function" and not self.is_nested and (yield from reader.sees("{")):
            self.is_nested = True
            return (yield from read_members(reader, self.read_member))
        if not self.name:
            # before the name, only short members are skipped: the text may still be content
            return key == "type" and (yield from read_string(reader))[1]
        if key in (form.arguments_key, "arguments", "parameters"):  # models confuse them
            return (yield from self._read_arguments())
        if not self.has_begun and (yield from reader.sees("{", "[")):
            return False
        return (yield from read_value(reader, _drop))

    def begin(self) -> None:
        self.reader.begin_call(self.name, self.call_id)
        self.has_begun = True

    def _read_id(self) -> Reading[bool]:
        if (yield from self.reader.sees("{", "[")):
            return False
        value: list[str] = []
        is_whole = yield from read_value(self.reader, value.append)
        found = value_or_text("".join(value)) if is_whole else None
        self.call_id = "" if found is None else str(found)
        return is_whole

    def _read_arguments(self) -> Reading[bool]:
        reader = self.reader
        if self.has_arguments:  # written twice
            return (yield from read_value(reader, _drop))
        self.has_arguments = True
        reader.commit()
        if not self.format.is_id_last:
            self.begin()
        sink = reader.arguments if self.has_begun else self.held.append
        if (yield from reader.sees('"')):  # JSON in a string, as OpenAI has it
            text, is_whole = yield from read_string(reader)
            sink(text)
        else:
            is_whole = yield from read_value(reader, sink)
        self.is_broken = not is_whole
        return is_whole


@dataclass(frozen=True, slots=True)
class NamedCall:
    """A head with the name, then the arguments: JSON, each between markers, or a family's own."""

    head: str  # markers around {name}, {id} and the call's {number}
    arguments: TaggedArguments | type[ValueRules] | None = None  # None: one JSON object
    is_name_id: bool = False  # the name as it is written, `functions.name:0`, is the id

    @property
    def parts(self) -> list[str]:
        """Markers, `{name}`, `{number}`, and `{id}` with the marker before it."""
        return re.split(r"(\{name\}|\{number\}|[^{}]*\{id\})", self.head)

    def read(self, reader: AnswerReader, ends: Sequence[str]) -> Reading[bool]:
        name = call_id = ""
        for part in self.parts:
            if part == "{name}":
                known = (yield from reader.sees(*sorted(reader.tools, key=len, reverse=True))) or ""
                reader.at += len(known)
                written = yield from reader.run(lambda char: char.isalnum() or char in "._-:/")
                written = known + written
                # models also write `functions.name:0`
                shorter = re.sub(r"^functions\.|:\d+$", "", written)
                name = written if written in reader.tools else shorter
                if name not in reader.tools:
                    return False
                if self.is_name_id and name != written:
                    call_id = written
            elif part == "{number}":
                yield from reader.run(str.isdigit)
            elif part.endswith("{id}"):  # which may be missing
                if (yield from reader.behind_space(reader.takes(part[:-4].strip()))):
                    call_id = yield from reader.run(lambda char: char not in "[<{ \n")
            elif not (yield from _take_all(reader, part.split())):
                return False
        yield from reader.skip_space()
        is_object = self.arguments is None or self.arguments.is_object
        if is_object and not (yield from reader.sees("{")):  # in other forms, a call may have none
            return False
        reader.begin_call(name, call_id)
        if self.arguments:
            yield from self.arguments.read(reader, name, ends)
        elif not (yield from read_value(reader, reader.arguments)):
            yield from reader.up_to(ends[:1], reader.arguments)
        return True


@dataclass(frozen=True, slots=True)
class TaggedArguments:
    """Each argument's name and value between markers; emitted as JSON."""

    is_object: ClassVar[bool] = False
    key_start: str
    key_end: str  # between name and value; up to the attribute, if there is one
    value_end: str
    # an attribute between name and value that says whether the value is text
    attribute_end: str = ""
    text_attribute: str = ""
    has_cdata: bool = False  # a value may be in <![CDATA[ and ]]>, with value_end inside

    def read(self, reader: AnswerReader, name: str, ends: Sequence[str]) -> Reading[None]:
        """Emit the arguments as members of a JSON object while they arrive."""
        reader.arguments("{")
        before = ""
        while (yield from reader.behind_space(reader.takes(self.key_start.strip()))):
            key = yield from reader.before(self.key_end.strip())
            if key is None:
                break
            reader.arguments(f"{before}{dump(key)}:")
            before = ","
            yield from self._read_value(reader, name, key, ends)
        reader.arguments("}")

    def _read_value(
        self, reader: AnswerReader, name: str, key: str, call_ends: Sequence[str]
    ) -> Reading[None]:
        schema = reader.schema_of(name)
        types = schema.types_of(schema.property_of(schema.root, key))
        if self.attribute_end:
            word = yield from reader.before(self.attribute_end.strip())
            types = TEXT if word == self.text_attribute else frozenset()
        if (self.attribute_end or self.key_end)[-1:].isspace():
            yield from reader.takes("\n")
        end = self.value_end.strip()
        ends = ("\n" + end, end) if self.value_end[:1].isspace() else (end,)
        if self.has_cdata and (yield from reader.takes("<![CDATA[")):
            types, ends = TEXT, ("]]>" + end,)
        after = (self.key_start.strip(), *call_ends)
        if types == TEXT:
            reader.arguments('"')
            yield from _read_to_end(reader, ends, after, lambda t: reader.arguments(dump(t)[1:-1]))
            reader.arguments('"')
            return
        text = ""
        if "string" not in types and (yield from reader.peek(1)) in ("[", "{", '"'):
            text = yield from reader.attempt(_quoting_value(reader, ends, after))
        if not text:
            parts: list[str] = []
            yield from _read_to_end(reader, ends, after, parts.append)
            text = "".join(parts)
        reader.arguments(dump(spelled_value(text, types)))


def _read_to_end(
    reader: AnswerReader, ends: Sequence[str], after: Sequence[str], emit: Callable[[str], object]
) -> Reading[None]:
    """Emit a value up to its end marker, which it may contain.

    Args:
        ends: the marker in a line of its own, which is certain, and in the value's line.
        after: what follows the latter, or the end of the text does.
    """
    while found := (yield from reader.until(ends, emit)):
        if found == ends[0] or (yield from reader.behind_space(_is_followed(reader, after))):
            return
        emit(found)


def _quoting_value(reader: AnswerReader, ends: Sequence[str], after: Sequence[str]) -> Reading[str]:
    """A value in JSON or Python, whose strings may contain the end; "" if it is none."""
    parts: list[str] = []
    quote, num_read = "", 0
    while found := (yield from reader.until(ends, parts.append)):
        quote = _open_quote("".join(parts[num_read:]), quote)
        num_read = len(parts)
        if not quote and (
            found == ends[0] or (yield from reader.behind_space(_is_followed(reader, after)))
        ):
            break
        parts.append(found)
    text = "".join(parts)
    return "" if python_value(text) is text else text


def _is_followed(reader: AnswerReader, after: Sequence[str]) -> Reading[bool]:
    is_there = yield from reader.sees(*after)
    return is_there is not None or (yield from reader.is_at_end())


def _open_quote(text: str, quote: str) -> str:
    """The quote that a value in JSON or Python has open behind this text; `quote`: before it."""
    for mark in re.findall(r"(?s)\\.|[\"']", text):
        if mark == quote:
            quote = ""
        elif not quote and len(mark) == 1:
            quote = mark
    return quote
