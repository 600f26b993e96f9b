"""An answer's text, in pieces as they come, to thoughts, content and calls."""

from __future__ import annotations

from headstart.text.toolcalls.answer_format import AnswerFormat, ReadOptions
from headstart.text.toolcalls.events import AnswerEvent
from headstart.text.toolcalls.reader import TextReader
from headstart.text.toolcalls.tools import Tools


class AnswerParser:
    """Reads one answer. Whatever its text and its pieces, it gives the same message."""

    def __init__(
        self, answer_format: AnswerFormat, tools: Tools, options: ReadOptions, begun: str = ""
    ) -> None:
        """Start an answer; `begun` is text of it that stands in the prompt and gives no events."""
        self._reader = TextReader(tools)
        self._reading = answer_format.read(self._reader, options)
        if begun:
            self.feed(begun)

    def feed(self, text: str) -> list[AnswerEvent]:
        """Take the next piece of text; returns what is certain now."""
        self._reader.add(text)
        next(self._reading, None)
        return self._reader.take_events()

    def finish(self) -> list[AnswerEvent]:
        """The text is over; returns what was held back."""
        self._reader.is_over = True
        next(self._reading, None)
        rest = self._reader.text[self._reader.at :]
        self._reader.at = len(self._reader.text)
        self._reader.content(rest)
        return self._reader.take_events()
