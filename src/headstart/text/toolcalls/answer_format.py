"""The format of a whole answer: reasoning, content, tool calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headstart.text.thinking import Thinking
from headstart.text.toolcalls.events import AnswerEvent
from headstart.text.toolcalls.formats import MarkedCalls
from headstart.text.toolcalls.reader import Reading, Start, TextReader, Tools


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """Reasoning first, then content, with calls after or within it."""

    thinking: Thinking | None = None
    calls: MarkedCalls | None = None
    content_start: str = ""  # markers around the content
    content_end: str = ""
    calls_end_thoughts: bool = False  # a call may begin before the reasoning has ended
    after_thoughts: str = ""  # text between reasoning and required calls
    seen_markers: tuple[str, ...] = ()  # further markers that the parser needs
    dropped: tuple[str, ...] = ()  # markers to remove from the content
    why_no_calls: str = ""  # if no call format was found
    # parses answers of several messages with headers; overrides all other fields
    own: Callable[[TextReader], Reading[None]] | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers that the parser must see, even if they are special tokens."""
        found = [self.content_start, self.content_end]
        if self.thinking:
            found += [self.thinking.start, self.thinking.end]
        if self.calls:
            found += self.calls.markers
        return tuple(marker.strip() for marker in (*found, *self.seen_markers) if marker.strip())

    def read(self, reader: TextReader) -> Reading[None]:
        """Parse a whole answer."""
        if self.own:
            yield from self.own(reader)
            return
        triggers = (self.calls.trigger,) if self.calls and reader.tools else ()
        if reader.splits_thoughts and reader.start != "content":
            yield from self._read_thoughts(reader, triggers)
        yield from self._read_content(reader, triggers)

    def _read_thoughts(self, reader: TextReader, triggers: tuple[str, ...]) -> Reading[None]:
        if self.thinking is None:
            return
        start, end = self.thinking.start, self.thinking.end
        is_marked = bool(start) and (yield from reader.takes_behind_space(start.strip()))
        if not is_marked and reader.start != "thoughts":
            return
        if is_marked and start[-1:].isspace():
            yield from reader.skip_space()
        stops = triggers if self.calls_end_thoughts else ()
        if self.content_start:
            stops = (*stops, self.content_start)
        yield from _skip_space_before(reader, (end.strip(),))  # white space alone is not reasoning
        found = yield from reader.until((end.strip(), *stops), reader.thoughts)
        if found in stops and found is not None:
            reader.at -= len(found)
        elif end[-1:].isspace():
            yield from reader.skip_space()

    def _read_content(self, reader: TextReader, triggers: tuple[str, ...]) -> Reading[None]:
        around = (self.content_start.strip(), self.content_end.strip())
        drops = tuple(filter(None, (*around, *self.dropped)))
        # white space alone is not content
        yield from _skip_space_before(reader, [one for one in triggers if one != "{"])
        while True:
            found = yield from reader.until((*triggers, *drops), reader.content)
            if found is None:
                return
            if found not in drops:
                assert self.calls is not None
                yield from read_calls(self.calls, reader, found)


def read_calls(calls: MarkedCalls, reader: TextReader, trigger: str) -> Reading[None]:
    """Parse the calls at the trigger just read; if there are none, it is content."""
    reader.at -= len(trigger)
    place = reader.mark()
    if (yield from calls.read(reader)):
        reader.release()
        yield from _skip_space_at_the_end(reader)
        return
    reader.release(place)
    reader.content(trigger)
    reader.at += len(trigger)


def _skip_space_before(reader: TextReader, markers: Sequence[str]) -> Reading[None]:
    """Skip white space if one of the markers follows it."""
    place = reader.mark()
    yield from reader.skip_space()
    for marker in markers:
        if (yield from reader.sees(marker)):
            reader.release()
            return
    reader.release(place)


def _skip_space_at_the_end(reader: TextReader) -> Reading[None]:
    """Skip white space at the end of the text."""
    place = reader.mark()
    yield from reader.skip_space()
    is_end = not (yield from reader.peek(1))
    reader.release(None if is_end else place)


class AnswerParser:
    """Parser of one answer. The message does not depend on how the text is split."""

    def __init__(
        self,
        answer_format: AnswerFormat,
        tools: Tools,
        start: Start = "answer",
        *,
        splits_thoughts: bool = True,
    ) -> None:
        """Without `tools` calls stay in the content."""
        self._reader = TextReader(tools, start, splits_thoughts=splits_thoughts)
        self._reading = answer_format.read(self._reader)

    def feed(self, text: str) -> list[AnswerEvent]:
        """Add text; returns the events that are certain."""
        self._reader.add(text)
        next(self._reading, None)
        return self._reader.take_events()

    def finish(self) -> list[AnswerEvent]:
        """End the text; returns the remaining events."""
        self._reader.is_over = True
        next(self._reading, None)
        rest = self._reader.text[self._reader.at :]
        self._reader.at = len(self._reader.text)
        self._reader.content(rest)
        return self._reader.take_events()
