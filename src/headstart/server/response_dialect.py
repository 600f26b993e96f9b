"""Bodies of OpenAI's responses API, and its answers: items, with opening and closing events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, ClassVar

import orjson
from pydantic import ConfigDict, Field

from headstart.server import sse
from headstart.server.body import Body, Int, Many, make_body
from headstart.server.dialect import Choice, Chunk, Dialect, Piece, tool_call
from headstart.server.errors import not_supported, shorten, wrong_value
from headstart.server.schemas import ChatBody, shared_fields
from headstart.server.translate import Call
from headstart.text.toolcalls.events import AnswerEvent, CallArguments, Content, Thoughts, ToolCall
from headstart.types.errors import RequestError
from headstart.types.request import ProgressEvent


class ResponsesBody(Body):
    """POST /v1/responses; further fields of chat (top_k, speculative, ...) are accepted too."""

    asks_model: ClassVar[bool] = True
    model_config = ConfigDict(extra="allow")

    input: Any = Field(default=None, description="a text, or a list of items")
    instructions: str | None = Field(
        default=None, description="a system message, of this call only"
    )
    previous_response_id: str | None = Field(
        default=None, description="of a stored response whose conversation continues"
    )
    store: bool = Field(default=True, description="keep the response for GET and for the next one")
    max_output_tokens: Int | None = None
    stream: bool = False
    tools: Many[dict[str, Any]] = Field(
        default_factory=list, description="of type function; others are left out"
    )
    tool_choice: Any = None
    text: dict[str, Any] = Field(
        default_factory=dict, description="{format: {type: text, json_object or json_schema}}"
    )
    reasoning: dict[str, Any] = Field(default_factory=dict, description="{effort}")
    include: Many[str] = Field(
        default_factory=list, description="message.output_text.logprobs has an effect"
    )
    top_logprobs: Int | None = None
    metadata: dict[str, Any] = Field(default_factory=dict, description="comes back")


def chat_body(body: ResponsesBody, history: list[dict[str, Any]]) -> ChatBody:
    """The request as a chat that continues after the items of `history`.

    Raises:
        HeadstartError: an item or a field is not supported.
    """
    extra = body.model_extra or {}
    for name in ("background", "conversation", "prompt"):
        if extra.get(name):
            raise not_supported(f"{name} is not supported; leave it out")
    data = shared_fields(body)
    instructions = [{"role": "system", "content": body.instructions}] if body.instructions else []
    data["messages"] = [*instructions, *input_messages(history), *input_messages(body.input)]
    data["stream"] = body.stream
    if "store" in body.model_fields_set:  # the default concerns GET, not --record-texts
        data["store"] = body.store
    if body.max_output_tokens is not None:
        data["max_tokens"] = body.max_output_tokens
    if "message.output_text.logprobs" in body.include or body.top_logprobs:
        data |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    # Codex sends OpenAI's own tools with every request
    data["tools"] = [_tool(tool) for tool in body.tools if tool.get("type") == "function"]
    if body.tool_choice is not None:
        data["tool_choice"] = body.tool_choice
    if body.text.get("format") is not None:
        data["response_format"] = body.text["format"]
    if effort := body.reasoning.get("effort"):
        if not isinstance(effort, str):
            raise wrong_value("reasoning.effort", effort, "a text")
        data["reasoning_effort"] = effort
    return make_body(ChatBody, data)


def input_messages(given: Any) -> list[dict[str, Any]]:
    """Chat messages of the field `input`.

    Raises:
        HeadstartError: an item is unknown or is not text.
    """
    if given is None:
        raise RequestError("input is required")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise wrong_value("input", given, "a text or a list of items")
    messages: list[dict[str, Any]] = []
    for index, item in enumerate(given):
        _add(messages, item, f"input.{index}")
    return messages


def _add(messages: list[dict[str, Any]], item: Any, where: str) -> None:
    if not isinstance(item, dict):
        raise wrong_value(where, item, "an object")
    kind, role = item.get("type") or "message", item.get("role")
    match kind:
        case "message" if role == "assistant":
            _assistant(messages)["content"] += "".join(_texts(item.get("content"), where))
        case "message" if role in ("user", "system", "developer"):
            parts = list(_parts(item.get("content"), where))
            is_text = len(parts) == 1 and parts[0]["type"] == "text"
            content = parts[0]["text"] if is_text else parts
            messages.append({"role": role, "content": content})
        case "function_call":
            name, arguments = _text(item, "name", where), _text(item, "arguments", where)
            call = tool_call(_text(item, "call_id", where), name, arguments)
            _assistant(messages).setdefault("tool_calls", []).append(call)
        case "function_call_output":
            parts = list(_parts(item.get("output"), where))
            is_text = all(part["type"] == "text" for part in parts)
            content = "".join(part["text"] for part in parts) if is_text else parts
            call_id = _text(item, "call_id", where)
            messages.append({"role": "tool", "content": content, "tool_call_id": call_id})
        case "reasoning":
            if thoughts := _thoughts(item, where):
                message = _assistant(messages)
                message["reasoning_content"] = message.get("reasoning_content", "") + thoughts
        case "message":
            raise wrong_value(f"{where}.role", role, "user, system, developer or assistant")
        case _:
            raise not_supported(f"{where} is of type {shorten(kind)}, which is not supported")


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant message to which the items of an answer belong."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _texts(content: Any, where: str) -> Iterable[str]:
    for part in _parts(content, where):
        if part["type"] != "text":
            raise not_supported(
                f"{where} has an image or a sound, which only users and tools may send"
            )
        yield part["text"]


def _parts(content: Any, where: str) -> Iterable[dict[str, Any]]:
    if isinstance(content, str):
        yield {"type": "text", "text": content}
        return
    if not isinstance(content, list):
        raise RequestError(f"{where} must have a text or a list of parts, not {shorten(content)}")
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal":
            yield {"type": "text", "text": str(part.get("refusal", ""))}
        elif kind == "input_image":
            yield {"type": "image_url", "image_url": {"url": _text(part, "image_url", where)}}
        elif kind == "input_audio":
            yield part
        elif kind not in ("input_text", "output_text", "text"):
            raise not_supported(
                f"{where} has a part of type {shorten(kind)}, which is not supported"
            )
        else:
            yield {"type": "text", "text": _text(part, "text", where)}


def _text(item: dict[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise wrong_value(f"{where}.{name}", value, "a text")
    return value


def _thoughts(item: dict[str, Any], where: str) -> str:
    """The text of a reasoning item; an encrypted one has none."""
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list):
        raise wrong_value(where, parts, "a reasoning item with a list of parts")
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


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
        self._items: list[Chunk] = []
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
        shown = {"id": self.call.id, "object": "response", "status": "in_progress"}
        return [{"type": "response.in_progress", "response": shown} | self.prompt_progress(event)]

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
                part = {"type": "reasoning_text", "text": ""}
                item = _item("rs", "reasoning") | {"summary": [], "content": [part]}
                opened, name = self._open(item), "response.reasoning_text.delta"
                more = {"content_index": 0}
            case ToolCall(_, called, call_id):
                item = _item("fc", "function_call") | {"call_id": call_id, "name": called}
                return [*self._close(), *self._open(item | {"arguments": ""})]
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

    def _open(self, item: Chunk) -> list[Chunk]:
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


def _message() -> Chunk:
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    return _item("msg", "message") | {"role": "assistant", "content": [part]}


def _item(prefix: str, kind: str) -> Chunk:
    return {"id": f"{prefix}_{secrets.token_hex(12)}", "type": kind, "status": "in_progress"}
