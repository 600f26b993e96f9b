"""Streaming input for parsers.

A parser is a generator that yields when it needs more text. Its result does not depend on how the
text is split, because every method waits until no further text can change its result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from headstart.structures.prefix import num_begun
from headstart.text.toolcalls.argument_types import property_of, types_of
from headstart.text.toolcalls.events import AnswerEvent, CallArguments, CallBegin, Content, Thoughts


class Tools:
    """Functions and the schemas of their arguments."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """Take OpenAI's `tools`."""
        self._functions = {tool["function"]["name"]: tool["function"] for tool in tools}
        self._types: dict[tuple[str, str], frozenset[str]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._functions

    def __bool__(self) -> bool:
        return bool(self._functions)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._functions)

    def parameters(self, name: str) -> Mapping[str, Any]:
        """The JSON schema of a function's arguments."""
        schema = self._functions.get(name, {}).get("parameters")
        return schema if isinstance(schema, Mapping) else {}

    def is_strict(self, name: str) -> bool:
        """Whether unsupported keywords in the schema are an error."""
        return self._functions.get(name, {}).get("strict") is True

    def types(self, name: str, argument: str) -> frozenset[str]:
        """The JSON types of an argument, as `types_of`."""
        if (name, argument) not in self._types:
            root = self.parameters(name)
            self._types[name, argument] = types_of(property_of(root, argument, root), root)
        return self._types[name, argument]


T = TypeVar("T")
Reading = Generator[None, None, T]
"""A part of a reader; use with `yield from`."""


Start = Literal["answer", "thoughts", "content"]
"""What the model writes first."""


class TextReader:
    """The text so far, a position in it, the events found, and the expected contents."""

    def __init__(
        self, tools: Tools, start: Start = "answer", *, splits_thoughts: bool = True
    ) -> None:
        self.tools, self.start, self.splits_thoughts = tools, start, splits_thoughts
        self.text = ""
        self.at = 0
        self.is_over = False
        self.num_calls = 0
        self._events: list[AnswerEvent] = []
        self._num_marks = 0

    def add(self, text: str) -> None:
        """Append text; drop text that was read unless a mark refers to it."""
        if not self._num_marks and self.at > 4096:
            self.text, self.at = self.text[self.at :], 0
        self.text += text

    def take_events(self) -> list[AnswerEvent]:
        """The events since the last time."""
        events, self._events = self._events, []
        return events

    def content(self, text: str) -> None:
        """Emit text for the user."""
        self._note(Content(text))

    def thoughts(self, text: str) -> None:
        """Emit reasoning text."""
        self._note(Thoughts(text))

    def begin_call(self, name: str, call_id: str = "") -> None:
        """Emit the start of a call."""
        self._events.append(CallBegin(self.num_calls, name, call_id))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """Emit a piece of the last call's arguments."""
        self._note(CallArguments(self.num_calls - 1, text))

    def _note(self, event: Content | Thoughts | CallArguments) -> None:
        """Merge adjacent events of one kind."""
        if not event.text:
            return
        last = self._events[-1] if self._events else None
        if type(last) is type(event):  # a further call begins with a CallBegin
            event = replace(event, text=last.text + event.text)
            self._events.pop()
        self._events.append(event)

    def mark(self) -> int:
        """Remember this position to return to; `release` it afterwards."""
        self._num_marks += 1
        return self.at

    def release(self, place: int | None = None) -> None:
        """Drop a mark; return to a position if one is given."""
        self._num_marks -= 1
        if place is not None:
            self.at = place

    def peek(self, count: int) -> Reading[str]:
        """The next characters, fewer at the end of the text."""
        while len(self.text) - self.at < count and not self.is_over:
            yield
        return self.text[self.at : self.at + count]

    def sees(self, marker: str) -> Reading[bool]:
        """Whether this marker comes next; does not skip it."""
        while True:
            rest = self.text[self.at : self.at + len(marker)]
            if len(rest) == len(marker) or self.is_over or not marker.startswith(rest):
                return rest == marker
            yield

    def takes(self, marker: str) -> Reading[bool]:
        """Whether this marker comes next; skips it."""
        is_there = yield from self.sees(marker)
        if is_there:
            self.at += len(marker)
        return is_there

    def takes_behind_space(self, marker: str) -> Reading[bool]:
        """Whether this marker comes next, possibly after white space; skips both."""
        place = self.mark()
        yield from self.skip_space()
        is_there = yield from self.takes(marker)
        self.release(None if is_there else place)
        return is_there

    def takes_one(self, markers: Sequence[str]) -> Reading[str | None]:
        """Skip the longest marker that comes next and return it."""
        for marker in sorted(markers, key=len, reverse=True):
            if (yield from self.takes(marker)):
                return marker
        return None

    def skip_space(self) -> Reading[None]:
        """Skip white space."""
        while True:
            while self.at < len(self.text) and self.text[self.at].isspace():
                self.at += 1
            if self.at < len(self.text) or self.is_over:
                return
            yield

    def run(self, belongs: Callable[[str], bool]) -> Reading[str]:
        """Skip and return the characters for which this holds."""
        start = self.mark()
        while True:
            while self.at < len(self.text) and belongs(self.text[self.at]):
                self.at += 1
            if self.at < len(self.text) or self.is_over:
                break
            yield
        self.release()
        return self.text[start : self.at]

    def until(self, markers: Sequence[str], emit: Callable[[str], object]) -> Reading[str | None]:
        """Emit the text up to the first of the markers and skip that marker.

        Returns the marker, the longest at its position; None at the end of the text.
        """
        while True:
            found, place = self._first(markers)
            # a marker may have begun whose end has not arrived
            waits = len(self.text)
            if not self.is_over:
                waits -= num_begun(self.text, markers, self.at)
            stop = min(place, waits)
            if stop > self.at:
                emit(self.text[self.at : stop])
                self.at = stop
            if found is not None and place < waits:
                self.at = place + len(found)
                return found
            if self.is_over:
                return None
            yield

    def _first(self, markers: Sequence[str]) -> tuple[str | None, int]:
        """The first marker and its position."""
        best: str | None = None
        place = len(self.text)
        for marker in markers:
            at = self.text.find(marker, self.at)
            if at >= 0 and (at < place or (at == place and len(marker) > len(best or ""))):
                best, place = marker, at
        return best, place
