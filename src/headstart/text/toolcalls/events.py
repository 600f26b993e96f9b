"""Events of a parsed answer, and the message they add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Reasoning text."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call; as an event its start, whose arguments follow."""

    index: int
    name: str
    call_id: str = ""  # "" if the model writes none
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of a call's arguments, JSON text."""

    index: int
    text: str


AnswerEvent = Content | Thoughts | ToolCall | CallArguments


class AnswerMessage:
    """An answer, collected from events."""

    def __init__(self) -> None:
        # adjacent events of one kind: the first of them, and their texts
        self._runs: list[tuple[AnswerEvent, list[str]]] = []
        self.starts: list[int] = []  # of each of `events`: number of tokens when it began

    def add(self, events: Iterable[AnswerEvent], num_tokens: int = 0) -> None:
        """Add events of an answer that has `num_tokens` tokens by now."""
        for event in events:
            last = self._runs[-1][0] if self._runs else None
            if isinstance(event, ToolCall) or type(event) is not type(last):
                self._runs.append((event, []))
                self.starts.append(num_tokens)
            if not isinstance(event, ToolCall):
                self._runs[-1][1].append(event.text)

    @property
    def events(self) -> list[AnswerEvent]:
        """All events, adjacent texts of one kind joined."""
        return [
            first if isinstance(first, ToolCall) else replace(first, text="".join(texts))
            for first, texts in self._runs
        ]

    @property
    def content(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Content))

    @property
    def thoughts(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Thoughts))

    @property
    def calls(self) -> list[ToolCall]:
        calls = list[ToolCall]()
        for event in self.events:
            match event:
                case ToolCall():
                    calls.append(event)
                case CallArguments(_, text):
                    calls[-1] = replace(calls[-1], arguments=text)
        return calls
