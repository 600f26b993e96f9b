"""Writes answers in Ollama's form: a line of JSON for each piece, durations in nanoseconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from headstart.server.dialect import Choice, Dialect, Piece, call_arguments
from headstart.server.ollama_models import written_time
from headstart.server.schemas import GenerationBody
from headstart.server.translate import Call
from headstart.text.toolcalls.events import CallBegin, Content, Thoughts, ToolCall

Line = dict[str, Any]


def chat_fields(content: str = "", thoughts: str = "", calls: Sequence[ToolCall] = ()) -> Line:
    """A part of a message, for /api/chat."""
    message: Line = {"role": "assistant", "content": content}
    if thoughts:
        message["thinking"] = thoughts
    if calls:
        message["tool_calls"] = [
            {"id": one.call_id, "function": {"name": one.name, "arguments": call_arguments(one)}}
            for one in calls
        ]
    return {"message": message}


def generate_fields(content: str = "", thoughts: str = "", calls: Sequence[ToolCall] = ()) -> Line:
    """A part of a text, for /api/generate, whose requests have no tools."""
    return {"response": content} | ({"thinking": thoughts} if thoughts else {})


class OllamaDialect(Dialect):
    """Lines of /api/chat or /api/generate; `model` is the name in the request."""

    media_type = "application/x-ndjson"
    can_ping = False  # its clients read each line as JSON

    def __init__(
        self,
        fields: Callable[..., Line],
        model: str | None,
        call: Call,
        body: GenerationBody,
        choices: list[Choice],
    ) -> None:
        """`fields` is `chat_fields` or `generate_fields`."""
        super().__init__(call, body, choices)
        self._fields = fields
        self._model = model or call.model.alias
        self._num_calls_sent = 0

    def encode(self, chunk: Line) -> bytes:
        return orjson.dumps(chunk) + b"\n"

    def encode_error(self, body: Line) -> bytes:
        return self.encode({"error": body["error"]["message"]})

    def deltas(self, choice: Choice, piece: Piece) -> list[Line]:
        if choice.parser is None:
            return [self._line(self._fields(piece.text), is_done=False)] if piece.text else []
        lines = []
        for event in piece.events:
            match event:
                case Content(text):
                    lines.append(self._line(self._fields(text), is_done=False))
                case Thoughts(text):
                    lines.append(self._line(self._fields(thoughts=text), is_done=False))
                case CallBegin(index):  # so the calls before it are complete
                    lines += self._calls(choice, index)
        return lines

    def closing(self, choice: Choice) -> list[Line]:
        calls = self._calls(choice, len(choice.message.calls))
        return [*calls, self._line(self._fields(), is_done=True) | self._end(choice)]

    def whole(self) -> Line:
        (choice,) = self.choices
        found = choice.message
        content = choice.text if choice.parser is None else found.content
        fields = self._fields(content, found.thoughts, found.calls)
        return self._line(fields, is_done=True) | self._end(choice)

    def _calls(self, choice: Choice, end: int) -> list[Line]:
        """A line with the complete calls that were not sent yet."""
        calls = choice.message.calls[self._num_calls_sent : end]
        self._num_calls_sent = max(self._num_calls_sent, end)
        return [self._line(self._fields(calls=calls), is_done=False)] if calls else []

    def _line(self, fields: Line, *, is_done: bool) -> Line:
        return {
            "model": self._model,
            "created_at": written_time(time.time()),
            **fields,
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


def nanoseconds(seconds: float) -> int:
    """Seconds as Ollama counts them."""
    return int(seconds * 1e9)
