"""The format of a whole answer: reasoning, content, tool calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass

from headstart.text.thinking import Thinking
from headstart.text.toolcalls.formats import MarkedCalls
from headstart.text.toolcalls.reader import AnswerReader, Reading


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
    own: Callable[[AnswerReader], Reading[None]] | None = None

    @property
    def markers(self) -> list[str]:
        """All markers that the parser must see, even if they are special tokens."""
        thinking = self.thinking
        around = (self.content_start, self.content_end, *self.seen_markers, self.after_thoughts)
        of_thoughts = (thinking.start, thinking.end) if thinking else ()
        return [*_texts(self.calls), *around, *of_thoughts]

    def read(self, reader: AnswerReader) -> Reading[None]:
        if self.own:
            yield from self.own(reader)
            return
        triggers = (self.calls.trigger,) if self.calls and reader.tools else ()
        if reader.splits_thoughts and reader.start != "content":
            yield from self._read_thoughts(reader, triggers)
        yield from self._read_content(reader, triggers)

    def _read_thoughts(self, reader: AnswerReader, triggers: tuple[str, ...]) -> Reading[None]:
        if self.thinking is None:
            return
        start, end = self.thinking.start, self.thinking.end
        is_marked = bool(start) and (yield from reader.behind_space(reader.takes(start.strip())))
        if not is_marked and reader.start != "thoughts":
            return
        if is_marked and start[-1:].isspace():
            yield from reader.skip_space()
        stops = triggers if self.calls_end_thoughts else ()
        if self.content_start:
            stops = (*stops, self.content_start)
        yield from reader.behind_space(reader.sees(end.strip()))  # white space is not reasoning
        yield from reader.up_to((end.strip(), *stops), reader.thoughts)
        if (yield from reader.takes(end.strip())) and end[-1:].isspace():
            yield from reader.skip_space()

    def _read_content(self, reader: AnswerReader, triggers: tuple[str, ...]) -> Reading[None]:
        around = (self.content_start.strip(), self.content_end.strip())
        drops = tuple(filter(None, (*around, *self.dropped)))
        markers = (*triggers, *drops)
        # white space alone is not content
        yield from reader.behind_space(reader.sees(*(one for one in triggers if one != "{")))
        while markers:
            found = yield from reader.until(markers, reader.content)
            if found is None:
                return
            if found not in drops:
                assert self.calls is not None
                yield from read_calls(self.calls, reader, found)


def read_calls(calls: MarkedCalls, reader: AnswerReader, trigger: str) -> Reading[None]:
    """Parse the calls at the trigger just read; if there are none, it is content."""
    reader.at -= len(trigger)
    if (yield from reader.attempt(calls.read(reader))):
        yield from reader.behind_space(reader.is_at_end())
        return
    reader.content(trigger)
    reader.at += len(trigger)


def _texts(part: object) -> Iterator[str]:
    """All texts in a form of calls; most of them are markers."""
    if isinstance(part, str):
        yield part
    elif is_dataclass(part):
        for field in fields(part):
            yield from _texts(getattr(part, field.name))
