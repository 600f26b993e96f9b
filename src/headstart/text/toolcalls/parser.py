"""Parses an answer's text as it arrives into reasoning, content and calls."""

from __future__ import annotations

from headstart.text.toolcalls.answer_format import AnswerFormat, ReadOptions
from headstart.text.toolcalls.events import AnswerEvent
from headstart.text.toolcalls.reader import TextReader
from headstart.text.toolcalls.tools import Tools


class AnswerParser:
    """Parser of one answer. The message does not depend on how the text is split."""

    def __init__(
        self, answer_format: AnswerFormat, tools: Tools, options: ReadOptions, begun: str = ""
    ) -> None:
        """Start an answer; `begun` is its start in the prompt, which emits no events."""
        self._reader = TextReader(tools)
        self._reading = answer_format.read(self._reader, options)
        if begun:
            self.feed(begun)

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
