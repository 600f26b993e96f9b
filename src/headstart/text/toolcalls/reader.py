"""Streaming input for parsers.

A parser is a generator that yields when it needs more text. Its result does not depend on how the
text is split, because every method waits until no further text can change its result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from headstart.structures.prefix import num_begun
from headstart.text.toolcalls.argument_types import ToolSchema, parameters_of
from headstart.text.toolcalls.events import AnswerEvent, CallArguments, Content, Thoughts, ToolCall

Tools = Mapping[str, Mapping[str, Any]]
"""The functions of OpenAI's `tools`, by name."""


T = TypeVar("T")
Reading = Generator[None, None, T]
"""A part of a reader; use with `yield from`."""


Start = Literal["answer", "thoughts", "content"]
"""What the model writes first."""


class AnswerReader:
    """Reads one answer: the text so far, a position in it, and the events found.

    The events do not depend on how the text is split.
    """

    def __init__(
        self,
        read: Callable[[AnswerReader], Reading[None]],
        tools: Tools,
        start: Start = "answer",
        *,
        splits_thoughts: bool = True,
    ) -> None:
        """`read` parses a whole answer; without `tools` calls stay in the content."""
        self.tools, self.start, self.splits_thoughts = tools, start, splits_thoughts
        self._schemas: dict[str, ToolSchema] = {}
        self.text = ""
        self.at = 0
        self.is_over = False
        self.is_done = False  # all that follows is content
        self.num_calls = 0
        self._num_dropped = 0  # characters before `text`
        self._kept: int | None = None  # where the outermost attempt began, in the whole text
        self._events: list[AnswerEvent] = []
        self._reading = read(self)

    def feed(self, text: str) -> list[AnswerEvent]:
        """Add text; returns the events that are certain."""
        done = self.at if self._kept is None else self._kept - self._num_dropped
        if done > 4096:
            self.text, self.at = self.text[done:], self.at - done
            self._num_dropped += done
        self.text += text
        return self._go_on()

    def finish(self) -> list[AnswerEvent]:
        """End the text; returns the remaining events."""
        self.is_over = True
        return self._go_on()

    def _go_on(self) -> list[AnswerEvent]:
        if next(self._reading, self) is self:
            self.is_done = True
            self._note(Content(self.text[self.at :]))
            self.at = len(self.text)
        events, self._events = self._events, []
        return events

    def schema_of(self, name: str) -> ToolSchema:
        """The schema of a tool's arguments, with what was found in it before."""
        if name not in self._schemas:
            self._schemas[name] = ToolSchema(parameters_of(self.tools[name]))
        return self._schemas[name]

    def content(self, text: str) -> None:
        self._note(Content(text))

    def thoughts(self, text: str) -> None:
        self._note(Thoughts(text))

    def begin_call(self, name: str, call_id: str = "") -> None:
        self.commit()
        self._events.append(ToolCall(self.num_calls, name, call_id))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """Emit a piece of the last call's arguments."""
        self._note(CallArguments(self.num_calls - 1, text))

    def _note(self, event: Content | Thoughts | CallArguments) -> None:
        """Merge adjacent events of one kind."""
        if not event.text:
            return
        last = self._events[-1] if self._events else None
        if type(last) is type(event):  # a further call begins with a ToolCall
            event = replace(event, text=last.text + event.text)
            self._events.pop()
        self._events.append(event)

    def commit(self) -> None:
        """Promise that no attempt fails that has begun before."""
        self._kept = None

    def attempt(self, reading: Reading[T]) -> Reading[T]:
        """Read, and go back to the position before if the result is false."""
        outer, place = self._kept, self._num_dropped + self.at
        if outer is None:
            self._kept = place
        found = yield from reading
        if not found:
            self.at = place - self._num_dropped
        if self._kept is not None:
            self._kept = outer
        return found

    def behind_space(self, reading: Reading[T]) -> Reading[T]:
        """As `attempt`, after white space."""

        def read() -> Reading[T]:
            yield from self.skip_space()
            return (yield from reading)

        return self.attempt(read())

    def peek(self, count: int) -> Reading[str]:
        """The next characters, fewer at the end of the text."""
        while len(self.text) - self.at < count and not self.is_over:
            yield
        return self.text[self.at : self.at + count]

    def is_at_end(self) -> Reading[bool]:
        """Whether nothing follows."""
        return not (yield from self.peek(1))

    def sees(self, *markers: str) -> Reading[str | None]:
        """The first of these markers that comes next; does not skip it."""
        for marker in markers:
            while True:
                rest = self.text[self.at : self.at + len(marker)]
                if rest == marker:
                    return marker
                if len(rest) == len(marker) or self.is_over or not marker.startswith(rest):
                    break
                yield
        return None

    def takes(self, marker: str) -> Reading[bool]:
        """Whether this marker comes next; skips it."""
        is_there = (yield from self.sees(marker)) is not None
        if is_there:
            self.at += len(marker)
        return is_there

    def skip_space(self) -> Reading[None]:
        yield from self.run(str.isspace)

    def run(self, belongs: Callable[[str], bool]) -> Reading[str]:
        """Skip and return the characters for which this holds."""
        found = ""
        while True:
            start, size = self.at, len(self.text)
            self.at = next((at for at in range(start, size) if not belongs(self.text[at])), size)
            found += self.text[start : self.at]
            if self.at < size or self.is_over:
                return found
            yield

    def before(self, marker: str) -> Reading[str | None]:
        """The text up to a marker, which is skipped; None without the marker."""
        text: list[str] = []
        found = yield from self.until((marker,), text.append)
        return None if found is None else "".join(text)

    def until(self, markers: Sequence[str], emit: Callable[[str], object]) -> Reading[str | None]:
        """As `up_to`, and skip the marker."""
        found = yield from self.up_to(markers, emit)
        self.at += len(found or "")
        return found

    def up_to(self, markers: Sequence[str], emit: Callable[[str], object]) -> Reading[str | None]:
        """Emit the text up to the first of the markers.

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
