"""Formats of calls between markers: JSON objects, or a name with arguments.

Markers are compared without surrounding white space, which models vary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
from headstart.text.toolcalls.reader import Reading, TextReader
from headstart.text.toolcalls.value_rules import ValueRules

_PIECE = re.compile(r"<[^<>]*>|\[/?[A-Z_]+\]|\S")


def pieces(marker: str) -> tuple[str, ...]:
    """The tags and single characters of a marker."""
    return tuple(_PIECE.findall(marker))


@dataclass(frozen=True, slots=True)
class MarkedCalls:
    """Calls between markers: around all of them, around each, and between two."""

    name: str  # in /props and the log
    body: JsonCall | NamedCall | OwnCall
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

    @property
    def markers(self) -> list[str]:
        """All texts that are markers."""
        own = [self.section_start, self.section_end, self.call_start, self.call_end]
        body = self.body
        if isinstance(body, NamedCall):
            own += [body.name_start, body.name_end, body.id_start, body.number_end]
            if form := body.arguments:
                own += [form.key_start, form.key_end, form.value_end, form.attribute_end]
        return own

    def read(self, reader: TextReader) -> Reading[bool]:
        """Parse all calls of a section; returns False without any event if there is none."""
        yield from reader.takes(self.section_start.strip())
        ends = pieces(self.call_end) or pieces(self.section_end)
        is_call = False
        while (yield from self._read_one(reader, ends)):
            is_call = True
        if is_call:
            yield from _take_all(reader, pieces(self.section_end))
        return is_call

    def _read_one(self, reader: TextReader, ends: Sequence[str]) -> Reading[bool]:
        place = reader.mark()
        yield from reader.skip_space()
        is_call = yield from reader.takes(self.call_start.strip())
        if is_call:
            yield from reader.skip_space()
            is_call = yield from self.body.read(reader, ends)
        if not is_call:
            reader.release(place)
            return False
        reader.release()
        yield from _take_all(reader, pieces(self.call_end))
        yield from _take_all(reader, pieces(self.separator))
        return True


def _take_all(reader: TextReader, parts: Sequence[str]) -> Reading[bool]:
    """Skip the parts of a marker, whatever white space is before each; False if one is missing."""
    for part in parts:
        if not (yield from reader.takes_behind_space(part)):
            return False
    return True


@dataclass(frozen=True, slots=True)
class OwnCall:
    """A form of one call that only one family of models has."""

    # parses the call that begins here; the markers may follow it. Returns whether there is one; if
    # not, no event was emitted
    read: Callable[[TextReader, Sequence[str]], Reading[bool]]
    values: type[ValueRules]  # provides the rule of a call as `call`


@dataclass(frozen=True, slots=True)
class JsonCall:
    """An object with the name, the arguments and maybe an id."""

    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str = ""
    is_id_last: bool = False  # the id follows the arguments
    is_name_key: bool = False  # {name: arguments}

    def read(self, reader: TextReader, ends: Sequence[str]) -> Reading[bool]:
        """Read the object."""
        if not (yield from reader.sees("{")):
            return False
        reading = _JsonCallReading(self, reader)
        is_whole = yield from read_members(reader, reading.read_member)
        if not reading.has_begun and reading.name and is_whole:
            reading.begin()
            reader.arguments("".join(reading.held) or "{}")
        if not is_whole and reading.has_begun:
            sink = reader.arguments if reading.is_broken else _drop
            yield from _to_the_end(reader, ends[:1], sink)
        return reading.has_begun


def _drop(_: str) -> None:
    """Discard text."""


def _to_the_end(
    reader: TextReader, ends: Sequence[str], sink: Callable[[str], object]
) -> Reading[None]:
    """Read malformed text up to the end of a call."""
    found = yield from reader.until(ends, sink)
    if found:
        reader.at -= len(found)


@dataclass(slots=True)
class _JsonCallReading:
    """The state of parsing one JSON call."""

    format: JsonCall
    reader: TextReader
    name: str = ""
    call_id: str = ""
    held: list[str] = field(default_factory=list)  # arguments before the name or id is known
    has_begun: bool = False
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
            return (yield from self._read_name())
        if key == form.id_key:
            return (yield from self._read_id())
        if key == "function" and not self.is_nested and (yield from reader.sees("{")):
            self.is_nested = True
            return (yield from read_members(reader, self.read_member))
        if not self.name:
            # before the name, only short members are skipped: the text may still be content
            return key == "type" and (yield from read_string(reader, _drop))
        if key in (form.arguments_key, "arguments", "parameters"):  # models confuse them
            return (yield from self._read_arguments())
        if not self.has_begun and (yield from self._is_container()):
            return False
        return (yield from read_value(reader, _drop))

    def begin(self) -> None:
        self.reader.begin_call(self.name, self.call_id)
        self.has_begun = True

    def _read_name(self) -> Reading[bool]:
        name: list[str] = []
        is_whole = yield from read_string(self.reader, name.append)
        self.name = "".join(name)
        return is_whole and self.name in self.reader.tools

    def _read_id(self) -> Reading[bool]:
        value: list[str] = []
        if (yield from self._is_container()):
            return False
        is_whole = yield from read_value(self.reader, value.append)
        found = value_or_text("".join(value))
        self.call_id = "" if found is None else str(found)
        return is_whole

    def _is_container(self) -> Reading[bool]:
        char = yield from self.reader.peek(1)
        return bool(char) and char in "{["

    def _read_arguments(self) -> Reading[bool]:
        reader = self.reader
        if self.has_begun or self.held:  # written twice
            return (yield from read_value(reader, _drop))
        if self.name and not self.format.is_id_last:
            self.begin()
        sink = reader.arguments if self.has_begun else self.held.append
        is_text = yield from reader.sees('"')  # JSON in a string, as OpenAI has it
        read = read_string if is_text else read_value
        is_whole = yield from read(reader, sink)
        self.is_broken = not is_whole
        if self.is_broken and not self.has_begun:  # emit malformed arguments as they are
            self.begin()
            reader.arguments("".join(self.held))
        return is_whole


@dataclass(frozen=True, slots=True)
class NamedCall:
    """A name, then its arguments: JSON, or each between markers."""

    arguments: TaggedArguments | None = None  # None: one JSON object
    name_end: str = ""  # between name and arguments
    id_start: str = ""  # between name and id, if the id comes there
    is_id_first: bool = False  # the id precedes the name; name_start is between
    name_start: str = ""
    number_end: str = ""  # name_end is followed by the call's number, and this
    is_name_id: bool = False  # the name as it is written, `functions.name:0`, is the id

    def read(self, reader: TextReader, ends: Sequence[str]) -> Reading[bool]:
        """Read name, id and arguments."""
        call_id = ""
        if self.is_id_first:
            found: list[str] = []
            if not (yield from reader.until((self.name_start.strip(),), found.append)):
                return False
            call_id = "".join(found).strip()
        written = yield from reader.run(lambda char: char.isalnum() or char in "._-:/")
        name = written
        if name not in reader.tools:  # models also write `functions.name:0`
            name = re.sub(r"^functions\.|:\d+$", "", written)
        if name not in reader.tools:
            return False
        if self.is_name_id and name != written:
            call_id = written
        if self.id_start:
            yield from reader.skip_space()
            if (yield from reader.takes(self.id_start.strip())):
                call_id = yield from reader.run(lambda char: char not in "[<{ \n")
        if not (yield from _take_all(reader, self.name_end.split())):
            return False
        if self.number_end:
            yield from reader.run(str.isdigit)
            if not (yield from _take_all(reader, self.number_end.split())):
                return False
        yield from reader.skip_space()
        # in the other form, a call may have none
        if self.arguments is None and not (yield from reader.sees("{")):
            return False
        reader.begin_call(name, call_id)
        if self.arguments:
            yield from self.arguments.read(reader, name, ends)
        elif not (yield from read_value(reader, reader.arguments)):
            yield from _to_the_end(reader, ends[:1], reader.arguments)
        return True


@dataclass(frozen=True, slots=True)
class TaggedArguments:
    """Each argument's name and value between markers; emitted as JSON."""

    key_start: str
    key_end: str  # between name and value; up to the attribute, if there is one
    value_end: str
    # an attribute between name and value that says whether the value is text
    attribute_end: str = ""
    text_attribute: str = ""
    has_cdata: bool = False  # a value may be in <![CDATA[ and ]]>, with value_end inside

    def read(self, reader: TextReader, name: str, ends: Sequence[str]) -> Reading[None]:
        """Emit the arguments as members of a JSON object while they arrive."""
        reader.arguments("{")
        before = ""
        while (yield from reader.takes_behind_space(self.key_start.strip())):
            key: list[str] = []
            if not (yield from reader.until((self.key_end.strip(),), key.append)):
                break
            reader.arguments(f"{before}{dump(''.join(key))}:")
            before = ","
            yield from self._read_value(reader, name, "".join(key), ends)
        reader.arguments("}")

    def _read_value(
        self, reader: TextReader, name: str, key: str, call_ends: Sequence[str]
    ) -> Reading[None]:
        types = reader.tools.types(name, key)
        if self.attribute_end:
            word: list[str] = []
            yield from reader.until((self.attribute_end.strip(),), word.append)
            types = TEXT if "".join(word) == self.text_attribute else frozenset()
        if (self.attribute_end or self.key_end)[-1:].isspace():
            yield from reader.takes("\n")
        end = self.value_end.strip()
        ends = ("\n" + end, end) if self.value_end[:1].isspace() else (end,)
        value: list[str] = []
        is_quoted = self.has_cdata and (yield from reader.takes("<![CDATA["))
        if is_quoted:
            types, ends = TEXT, ("]]>" + end,)
        emit: Callable[[str], object] = value.append
        if types == TEXT:
            reader.arguments('"')
            emit = lambda text: reader.arguments(dump(text)[1:-1])  # noqa: E731
        is_json = "string" not in types and (yield from reader.peek(1)) in ("[", "{", '"')
        quote, num_read, place, size = "", 0, None, 0
        while found := (yield from reader.until(ends, emit)):
            if is_json:  # a string in it may contain the marker
                quote = _open_quote("".join(value[num_read:]), quote)
                num_read = len(value)
            # in the line of the value it may be part of a text
            after = (self.key_start.strip(), *call_ends)
            is_sure = found == ends[0] or (yield from _sees_behind_space(reader, after))
            if is_sure and not quote:
                break
            if is_sure and place is None:
                place, size = reader.mark(), len(value)
            emit(found)
        text = "".join(value)
        if place is not None and python_value(text) is not text:
            reader.release()
        elif place is not None:  # the quote is part of a text
            reader.release(place)
            text = "".join(value[:size])
        written = '"' if types == TEXT else dump(spelled_value(text, types))
        reader.arguments(written)


def _sees_behind_space(reader: TextReader, markers: Sequence[str]) -> Reading[bool]:
    """Whether white space and then one of the markers, or the end of the text, come next."""
    place = reader.mark()
    yield from reader.skip_space()
    is_there = not (yield from reader.peek(1))
    for marker in markers:
        is_there = is_there or (yield from reader.sees(marker))
    reader.release(place)
    return is_there


def _open_quote(text: str, quote: str) -> str:
    """The quote that a value in JSON or Python has open behind this text; `quote`: before it."""
    for mark in re.findall(r"(?s)\\.|[\"']", text):
        if mark == quote:
            quote = ""
        elif not quote and len(mark) == 1:
            quote = mark
    return quote
