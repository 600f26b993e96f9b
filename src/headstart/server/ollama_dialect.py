"""Writes answers as Ollama does: a line of JSON for each piece, durations in nanoseconds."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import orjson

from headstart.server.dialect import Choice, Dialect, Piece, call_arguments
from headstart.server.ollama_models import written_time
from headstart.server.schemas import GenerationBody
from headstart.server.translate import Call
from headstart.text.toolcalls.events import AnswerEvent, CallBegin, Content, Thoughts, ToolCall

Line = dict[str, Any]


class OllamaDialect(Dialect):
    """Common parts of chat and generate; `model` is the name in the request."""

    media_type = "application/x-ndjson"
    can_ping = False  # its clients read each line as JSON

    def __init__(
        self, model: str | None, call: Call, body: GenerationBody, choices: list[Choice]
    ) -> None:
        super().__init__(call, body, choices)
        self._model = model or call.model.alias
        self._num_calls_sent = 0

    def encode(self, chunk: Line) -> bytes:
        return orjson.dumps(chunk) + b"\n"

    def encode_error(self, body: dict[str, Any]) -> bytes:
        return self.encode({"error": body["error"]["message"]})

    def deltas(self, choice: Choice, piece: Piece) -> list[Line]:
        lines = []
        for event in piece.events:
            if isinstance(event, CallBegin):  # so the calls before it are complete
                lines += self._calls(choice, event.index)
            elif said := self.said(event):
                lines.append(self._line(said, is_done=False))
        return lines

    @abstractmethod
    def said(self, event: AnswerEvent) -> Line | None:
        """The fields for an event; None if it is not sent alone."""

    @abstractmethod
    def said_calls(self, calls: Sequence[ToolCall]) -> Line:
        """The fields for complete calls."""

    @abstractmethod
    def said_whole(self, choice: Choice) -> Line:
        """The fields of an answer that is not streamed."""

    empty: ClassVar[Line]  # fields of the last line of a stream

    def closing(self, choice: Choice) -> list[Line]:
        calls = self._calls(choice, len(choice.message.calls))
        return [*calls, self._line(self.empty, is_done=True) | self._end(choice)]

    def whole(self) -> Line:
        (choice,) = self.choices
        return self._line(self.said_whole(choice), is_done=True) | self._end(choice)

    def _calls(self, choice: Choice, end: int) -> list[Line]:
        calls = choice.message.calls[self._num_calls_sent : end]
        self._num_calls_sent = max(self._num_calls_sent, end)
        return [self._line(self.said_calls(calls), is_done=False)] if calls else []

    def _line(self, said: Line, *, is_done: bool) -> Line:
        return {
            "model": self._model,
            "created_at": written_time(time.time()),
            **said,
            "done": is_done,
        }

    def _end(self, choice: Choice) -> Line:
        stats = choice.stats
        total = stats.queue_seconds + stats.prompt_seconds + stats.generation_seconds
        return {
            "done_reason": "length" if choice.finish_reason == "length" else "stop",
            "total_duration": nanoseconds(total),
            "load_duration": 0,
            "prompt_eval_count": stats.num_prompt,
            "prompt_eval_duration": nanoseconds(stats.prompt_seconds),
            "eval_count": stats.num_emitted,
            "eval_duration": nanoseconds(stats.generation_seconds),
        }


class OllamaChatDialect(OllamaDialect):
    """/api/chat: pieces of a message."""

    empty: ClassVar[Line] = {"message": {"role": "assistant", "content": ""}}

    def said(self, event: AnswerEvent) -> Line | None:
        match event:
            case Content(text):
                return _message(text)
            case Thoughts(text):
                return _message("", {"thinking": text})
        return None

    def said_calls(self, calls: Sequence[ToolCall]) -> Line:
        return _message("", {"tool_calls": [_call(one) for one in calls]})

    def said_whole(self, choice: Choice) -> Line:
        found = choice.message
        more: Line = {"thinking": found.thoughts} if found.thoughts else {}
        if found.calls:
            more["tool_calls"] = [_call(one) for one in found.calls]
        return _message(found.content, more)


class OllamaGenerateDialect(OllamaDialect):
    """/api/generate: pieces of a text."""

    empty: ClassVar[Line] = {"response": ""}

    def deltas(self, choice: Choice, piece: Piece) -> list[Line]:
        if choice.parser is None:
            text = piece.text
            return [self._line({"response": text}, is_done=False)] if text else []
        return super().deltas(choice, piece)

    def said(self, event: AnswerEvent) -> Line | None:
        match event:
            case Content(text):
                return {"response": text}
            case Thoughts(text):
                return {"response": "", "thinking": text}
        return None

    def said_calls(self, calls: Sequence[ToolCall]) -> Line:
        return dict(self.empty)  # without tools there are no calls

    def said_whole(self, choice: Choice) -> Line:
        found = choice.message
        if choice.parser is None:
            return {"response": choice.text}
        return {"response": found.content} | (
            {"thinking": found.thoughts} if found.thoughts else {}
        )


def nanoseconds(seconds: float) -> int:
    """Seconds as Ollama counts them."""
    return int(seconds * 1e9)


def _message(content: str, more: Line | None = None) -> Line:
    return {"message": {"role": "assistant", "content": content} | (more or {})}


def _call(call: ToolCall) -> Line:
    function = {"name": call.name, "arguments": call_arguments(call)}
    return {"id": call.call_id, "function": function}
