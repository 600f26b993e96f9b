"""Events of a parsed answer, and the message they add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Reasoning text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """The start of a tool call; its arguments follow."""

    index: int
    name: str
    call_id: str = ""  # "" if the model writes none


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of a call's arguments, JSON text."""

    index: int
    text: str


AnswerEvent = Content | Thoughts | CallBegin | CallArguments


@dataclass(slots=True)
class ToolCall:
    """A tool call, complete so far."""

    name: str
    call_id: str = ""
    arguments: str = ""


@dataclass(slots=True)
class AnswerMessage:
    """An answer, collected from events."""

    content: str = ""
    thoughts: str = ""
    calls: list[ToolCall] = field(default_factory=list)

    def add(self, events: Iterable[AnswerEvent]) -> None:
        """Add events."""
        for event in events:
            match event:
                case Content(text):
                    _extend(self, "content", text)
                case Thoughts(text):
                    _extend(self, "thoughts", text)
                case CallBegin(_, name, call_id):
                    self.calls.append(ToolCall(name, call_id))
                case CallArguments(index, text):
                    _extend(self.calls[index], "arguments", text)


def _extend(owner: AnswerMessage | ToolCall, name: str, text: str) -> None:
    """Append to a string attribute; CPython does it in place if one variable refers to it."""
    whole: str = getattr(owner, name)
    setattr(owner, name, "")
    whole += text
    setattr(owner, name, whole)
