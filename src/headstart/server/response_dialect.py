"""Writes an answer as an OpenAI response: items, with opening and closing events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import orjson

from headstart.server import sse
from headstart.server.dialect import Choice, Chunk, Dialect, Piece
from headstart.server.responses_body import ResponsesBody
from headstart.server.schemas import ChatBody
from headstart.server.stored_responses import Item
from headstart.server.translate import Call
from headstart.text.toolcalls.events import AnswerEvent, CallArguments, CallBegin, Content, Thoughts
from headstart.types.request import ProgressEvent


class ResponsesDialect(Dialect):
    """One response; a stream opens and closes its items one after another."""

    def __init__(
        self,
        request: ResponsesBody,
        keep: Callable[[dict[str, Any]], None],
        call: Call,
        body: ChatBody,
        choices: list[Choice],
    ) -> None:
        """`keep` is called with the finished response."""
        super().__init__(call, body, choices)
        self._request = request
        self._is_parallel = body.parallel_tool_calls is not False
        self._keep = keep
        self._logprobs: list[Any] = []  # of tokens with withheld text; written once
        self._items: list[Item] = []
        self._texts: list[str] = []  # of the last item
        self._is_open = False  # the last item
        self._num_events = 0

    def encode(self, chunk: Chunk) -> bytes:
        """A chunk as a server-sent event with a number."""
        numbered = chunk | {"sequence_number": self._num_events}
        self._num_events += 1
        return sse.event(numbered, chunk["type"])

    def encode_error(self, body: Chunk) -> bytes:
        error = body["error"]
        return self.encode(
            {"type": "error", "code": error["type"], "message": error["message"], "param": None}
        )

    def opening(self, choice: Choice) -> list[Chunk]:
        response = self._response(choice, "in_progress")
        kinds = ("response.created", "response.in_progress")
        return [{"type": kind, "response": response} for kind in kinds]

    def progress(self, choice: Choice, event: ProgressEvent) -> list[Chunk]:
        # without the request's fields, which may be megabytes, in every progress event
        response = {"id": self.call.id, "object": "response", "status": "in_progress"}
        added = {"type": "response.in_progress", "response": response}
        return [added | self.prompt_progress(event)]

    def deltas(self, choice: Choice, piece: Piece) -> list[Chunk]:
        found = self.probabilities(choice, piece.logprobs)
        self._logprobs += [orjson.Fragment(orjson.dumps(one)) for one in found]
        return [chunk for event in piece.events for chunk in self._chunks(event)]

    def _chunks(self, event: AnswerEvent) -> list[Chunk]:
        opened, more = list[Chunk](), dict[str, Any]()
        match event:
            case Content():
                opened, name = self._open(_message()), "response.output_text.delta"
                more = {"content_index": 0, "logprobs": self._take_logprobs()}
            case Thoughts():
                opened, name = self._open(_reasoning()), "response.reasoning_text.delta"
                more = {"content_index": 0}
            case CallBegin(_, called, call_id):
                return [*self._close(), *self._open(_function_call(called, call_id))]
            case CallArguments():
                name = "response.function_call_arguments.delta"
        self._texts.append(event.text)
        return [*opened, {"type": name, **self._place(), "delta": event.text, **more}]

    def _take_logprobs(self) -> list[Any]:
        """Move what was collected to the open message."""
        logprobs, self._logprobs = self._logprobs, []
        self._items[-1]["content"][0]["logprobs"] += logprobs
        return logprobs

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _open(self, item: Item) -> list[Chunk]:
        """Events that open an item, unless one of its kind is open."""
        if self._is_open and self._items[-1]["type"] == item["type"]:
            return []
        closing = self._close()
        self._items.append(item)
        self._texts, self._is_open = [], True
        index = len(self._items) - 1
        shown = item | {"content": []} if "content" in item else dict(item)
        added = {"type": "response.output_item.added", "output_index": index, "item": shown}
        if "content" not in item:
            return [*closing, added]
        part = deepcopy(item["content"][0])  # which grows before this is written
        place = {**self._place(), "content_index": 0}
        return [*closing, added, {"type": "response.content_part.added", **place, "part": part}]

    def _close(self) -> list[Chunk]:
        """Events that close the open item."""
        if not self._is_open:
            return []
        self._is_open = False
        item, place, text = self._items[-1], self._place(), "".join(self._texts)
        item["status"] = "completed"
        done = {"type": "response.output_item.done", "item": item}
        done["output_index"] = place["output_index"]
        if item["type"] == "function_call":
            item["arguments"] = text
            added = {"name": item["name"], "arguments": text}
            return [{"type": "response.function_call_arguments.done", **place, **added}, done]
        part, place = item["content"][0], place | {"content_index": 0}
        part["text"] = text
        ended: Chunk = {"type": f"response.{part['type']}.done", **place, "text": text}
        if "logprobs" in part:
            self._take_logprobs()
            ended["logprobs"] = part["logprobs"]
        return [ended, {"type": "response.content_part.done", **place, "part": part}, done]

    def closing(self, choice: Choice) -> list[Chunk]:
        opened = [] if self._items else self._open(_message())
        closed = [*opened, *self._close()]
        response = self._finish(choice)
        end = {"type": f"response.{response['status']}", "response": response}
        return [*closed, end | self.numbers()]

    def whole(self) -> dict[str, Any]:
        (choice,) = self.choices
        message, at = choice.message, 0
        ends = [*message.starts[1:], len(choice.tokens)]
        for event, end in zip(message.events or [Content("")], ends, strict=True):
            self.deltas(choice, Piece(logprobs=choice.logprobs[at:end], events=[event]))
            at = end
        self._close()
        return self._finish(choice) | self.numbers()

    def _finish(self, choice: Choice) -> dict[str, Any]:
        """Keep and return the finished response."""
        is_cut = choice.finish_reason == "length"
        if is_cut:
            self._items[-1]["status"] = "incomplete"
        response = self._response(choice, "incomplete" if is_cut else "completed")
        self._keep(response)
        return response

    def _response(self, choice: Choice, status: str) -> dict[str, Any]:
        request, sampling = self._request, choice.request.sampling
        is_over = status != "in_progress"
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.call.id,
            "object": "response",
            "created_at": self.call.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": reason,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata,
            "model": self.call.model.alias,
            "output": list(self._items) if is_over else [],
            "parallel_tool_calls": self._is_parallel,
            "previous_response_id": request.previous_response_id,
            "reasoning": {"effort": request.reasoning.get("effort"), "summary": None},
            "store": request.store,
            "temperature": sampling.temperature,
            "text": request.text or {"format": {"type": "text"}},
            "tool_choice": request.tool_choice or "auto",
            "tools": request.tools,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": self._usage(choice) if is_over else None,
        }

    def _usage(self, choice: Choice) -> dict[str, Any]:
        stats, vocab = choice.stats, self.call.model.vocab
        thoughts = choice.message.thoughts
        num_thoughts = len(vocab.tokenize(thoughts, add_special=False, parse_special=False))
        return {
            "input_tokens": stats.num_prompt,
            "input_tokens_details": {"cached_tokens": stats.num_cached},
            "output_tokens": stats.num_emitted,
            "output_tokens_details": {"reasoning_tokens": min(num_thoughts, stats.num_emitted)},
            "total_tokens": stats.num_prompt + stats.num_emitted,
        }


def _message() -> Item:
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    return _item("msg", "message") | {"role": "assistant", "content": [part]}


def _reasoning() -> Item:
    part = {"type": "reasoning_text", "text": ""}
    return _item("rs", "reasoning") | {"summary": [], "content": [part]}


def _function_call(name: str, call_id: str) -> Item:
    return _item("fc", "function_call") | {"call_id": call_id, "name": name, "arguments": ""}


def _item(prefix: str, kind: str) -> Item:
    return {"id": f"{prefix}_{secrets.token_hex(12)}", "type": kind, "status": "in_progress"}
