"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API, as Claude Code uses it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar

import orjson
from pydantic import ConfigDict, Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server import sse
from headstart.server.body import Body, Int, Many, make_body
from headstart.server.chat import answer_chat, count_chat_tokens
from headstart.server.dialect import Choice, Chunk, Dialect, Piece, call_arguments, tool_call
from headstart.server.errors import not_supported, shorten, wrong_value
from headstart.server.routing import Routes
from headstart.server.schemas import ChatBody, shared_fields, switch_thinking
from headstart.server.translate import Call
from headstart.text.toolcalls.events import AnswerEvent, CallArguments, Content, Thoughts, ToolCall
from headstart.types.errors import RequestError

routes = Routes()


class MessagesBody(Body):
    """POST /v1/messages and /v1/messages/count_tokens; further fields of chat are accepted too."""

    asks_model: ClassVar[bool] = True
    model_config = ConfigDict(extra="allow")

    messages: Many[dict[str, Any]]
    system: Any = Field(default=None, description="a text, or a list of text blocks")
    max_tokens: Int | None = None
    stop_sequences: Many[str] = Field(default_factory=list)
    tools: Many[dict[str, Any]] = Field(default_factory=list)
    tool_choice: dict[str, Any] | None = Field(
        default=None, description="{type: auto, any, none, or tool with a name}"
    )
    thinking: dict[str, Any] | None = Field(
        default=None, description="{type: enabled or disabled, budget_tokens}"
    )
    output_config: dict[str, Any] = Field(
        default_factory=dict, description="{format: {type: json_schema, schema}}"
    )


@routes.post(
    "/v1/messages",
    answer="`content`, a list of blocks, `stop_reason` and `usage`; with `stream` events",
)
async def messages(http: HttpRequest, body: MessagesBody) -> Response:
    """Answer messages."""
    return await answer_chat(http, lambda: chat_body(body), "msg-", MessagesDialect)


@routes.post("/v1/messages/count_tokens", answer="`input_tokens`")
async def count_tokens(http: HttpRequest, body: MessagesBody) -> dict[str, int]:
    """Count the tokens of the prompt that messages become."""
    return {"input_tokens": await count_chat_tokens(http, lambda: chat_body(body))}


def chat_body(body: MessagesBody) -> ChatBody:
    """The request as a chat.

    Raises:
        RequestError: it contains something that is not supported.
    """
    data = shared_fields(body)
    messages = body.messages or [{"role": "user", "content": ""}]
    data["messages"] = [*_system(body.system), *_messages(messages)]
    # 4096 is llama-server's default
    data["max_tokens"] = 4096 if body.max_tokens is None else body.max_tokens
    if body.stop_sequences:
        data["stop"] = body.stop_sequences
    data["tools"] = [_tool(index, tool) for index, tool in enumerate(body.tools)]
    if body.tool_choice:
        data |= _tool_choice(body.tool_choice)
    if wanted := body.output_config.get("format"):  # its effort would make some templates fail
        data["response_format"] = wanted
    if body.thinking:
        is_on = body.thinking.get("type") != "disabled"
        if is_on and body.thinking.get("budget_tokens") is not None:
            data["reasoning_budget_tokens"] = body.thinking["budget_tokens"]
        switch_thinking(data, is_on)
    return make_body(ChatBody, data)


def _system(system: Any) -> list[dict[str, Any]]:
    if system is None:
        return []
    text = system if isinstance(system, str) else _text_of(system, "system")
    # Claude Code's system prompt begins with a stamp that differs in each request, so that no later
    # text would be found in the prompt cache; llama-server changes it to the same
    text = re.sub(r"\A(x-anthropic-billing-header:.*?cch=).{5};", r"\1fffff;", text)
    return [{"role": "system", "content": text}]


def _messages(messages: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    for index, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            yield from _blocks(message.get("role"), content, f"messages.{index}.content")
        else:
            yield message


def _blocks(role: Any, blocks: list[Any], where: str) -> Iterable[dict[str, Any]]:
    """A message of role tool for each result among the blocks, then one of the others."""
    texts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    thoughts = ""
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        match kind:
            case "text":
                texts.append({"type": "text", "text": str(block.get("text", ""))})
            case "thinking":
                thoughts += str(block.get("thinking", ""))
            case "redacted_thinking":
                continue
            case "tool_use":
                arguments = orjson.dumps(block.get("input") or {}).decode()
                call_id, name = (str(block.get(field, "")) for field in ("id", "name"))
                calls.append(tool_call(call_id, name, arguments))
            case "tool_result":
                results.append(_result(block, where))
            case "image":
                texts.append(_image(block, where))
            case "document":
                raise not_supported(f"{where}: documents are not supported; send their text")
            case _:
                raise RequestError(
                    f"{where} has a block of type {shorten(kind)}, which is not known here"
                )
    yield from results  # first, as the API demands
    if texts or calls or thoughts:
        text_message: dict[str, Any] = {"role": role, "content": texts or ""}
        yield (
            text_message
            | ({"tool_calls": calls} if calls else {})
            | ({"reasoning_content": thoughts} if thoughts else {})
        )


def _result(block: dict[str, Any], where: str) -> dict[str, Any]:
    found: Any = block.get("content") or []
    if isinstance(found, list) and any(_is_image(part) for part in found):
        found = [
            _image(part, where)
            if _is_image(part)
            else {"type": "text", "text": _text_of([part], where)}
            for part in found
        ]
    elif not isinstance(found, str):
        found = _text_of(found, where)
    return {"role": "tool", "tool_call_id": str(block.get("tool_use_id", "")), "content": found}


def _is_image(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "image"


def _image(block: dict[str, Any], where: str) -> dict[str, Any]:
    """An image as a part of a chat message: a data URL, or its own URL."""
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    url = source.get("url")
    if source.get("type") == "base64":
        url = f"data:{source.get('media_type', 'image/png')};base64,{source.get('data')}"
    if not isinstance(url, str):
        raise RequestError(f"{where}: an image has a source of type base64, with data, or url")
    return {"type": "image_url", "image_url": {"url": url}}


def _text_of(blocks: Any, where: str) -> str:
    if not isinstance(blocks, list):
        raise RequestError(f"{where} must be a text or a list of blocks, not {shorten(blocks)}")
    texts = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind != "text":
            raise RequestError(f"{where} has a block of type {shorten(kind)} but must have text")
        texts.append(str(block.get("text", "")))
    return "".join(texts)


def _tool(index: int, tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as a function; those of the API have a name alone, and take any arguments."""
    if not isinstance(tool.get("name"), str):
        raise wrong_value(f"tools.{index}.name", tool.get("name"), "a text")
    # templates read the properties
    any_arguments = {"type": "object", "properties": {}, "additionalProperties": True}
    function = {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "parameters": tool.get("input_schema") or any_arguments,
    }
    return {"type": "function", "function": function}


def _tool_choice(choice: dict[str, Any]) -> dict[str, Any]:
    wanted: Any
    match choice.get("type"):
        case "tool":
            wanted = {"type": "function", "function": {"name": choice.get("name")}}
        case "any":
            wanted = "required"
        case "auto" | "none" as wanted:
            pass
        case kind:
            raise wrong_value("tool_choice.type", kind, "auto, any, tool or none")
    data: dict[str, Any] = {"tool_choice": wanted}
    if choice.get("disable_parallel_tool_use"):
        data["parallel_tool_calls"] = False
    return data


class MessagesDialect(Dialect):
    """A message of blocks; a stream opens and closes them one after another."""

    def __init__(self, call: Call, body: ChatBody, choices: list[Choice]) -> None:
        super().__init__(call, body, choices)
        self._num_blocks = 0
        self._open: type[AnswerEvent] | None = None  # kind of the open block

    def encode(self, chunk: Chunk) -> bytes:
        return sse.event(chunk, chunk["type"])

    def opening(self, choice: Choice) -> list[Chunk]:
        usage = _usage(choice) | {"output_tokens": 0}
        begun: Chunk = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return [{"type": "message_start", "message": self._message(choice) | begun}]

    def deltas(self, choice: Choice, piece: Piece) -> list[Chunk]:
        return [chunk for event in piece.events for chunk in self._event(event)]

    def _event(self, event: AnswerEvent) -> list[Chunk]:
        match event:
            case Content(text):
                change = {"type": "text_delta", "text": text}
            case Thoughts(text):
                change = {"type": "thinking_delta", "thinking": text}
            case CallArguments(_, text):
                return [self._delta({"type": "input_json_delta", "partial_json": text})]
            case ToolCall():
                return self._begin(event)
        begun = [] if self._open is type(event) else self._begin(event)
        return [*begun, self._delta(change)]

    def _delta(self, change: Chunk) -> Chunk:
        return {"type": "content_block_delta", "index": self._num_blocks - 1, "delta": change}

    def _begin(self, event: AnswerEvent) -> list[Chunk]:
        closed = self._close()
        self._open = type(event)
        begun = {"type": "content_block_start", "index": self._num_blocks}
        self._num_blocks += 1
        return [*closed, begun | {"content_block": _block(event, "")}]

    def _close(self) -> list[Chunk]:
        kind, self._open = self._open, None
        if kind is None:
            return []
        signed = [self._delta({"type": "signature_delta", "signature": ""})]
        stop = {"type": "content_block_stop", "index": self._num_blocks - 1}
        return [*(signed if kind is Thoughts else ()), stop]

    def closing(self, choice: Choice) -> list[Chunk]:
        begun = [] if self._num_blocks else self._begin(Content(""))
        message = self._message(choice)
        ending = {name: message[name] for name in ("stop_reason", "stop_sequence")}
        return [
            *begun,
            *self._close(),
            {"type": "message_delta", "delta": ending, "usage": _usage(choice)},
            {"type": "message_stop"},
        ]

    def whole(self) -> Chunk:
        (choice,) = self.choices
        blocks = list[Chunk]()
        for event in choice.message.events or [Content("")]:
            if isinstance(event, CallArguments):
                blocks[-1]["input"] = call_arguments(event.text)
            else:
                blocks.append(_block(event, "" if isinstance(event, ToolCall) else event.text))
        return self._message(choice) | {"content": blocks, "usage": _usage(choice)}

    def _message(self, choice: Choice) -> Chunk:
        reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
        reason = reasons.get(choice.finish_reason or "")
        word = choice.finish.stopping_word if choice.finish else ""
        if word not in (self.body.stop or ()):  # the template's, or a flag's
            word = ""
        return {
            "id": self.call.id,
            "type": "message",
            "role": "assistant",
            "model": self.call.model.alias,
            "stop_reason": "stop_sequence" if word and reason == "end_turn" else reason,
            "stop_sequence": word or None,
        }


def _block(event: AnswerEvent, text: str) -> Chunk:
    match event:
        case Thoughts():
            return {"type": "thinking", "thinking": text, "signature": ""}
        case ToolCall(_, name, call_id):
            return {"type": "tool_use", "id": call_id, "name": name, "input": {}}
    return {"type": "text", "text": text}


def _usage(choice: Choice) -> dict[str, int]:
    stats = choice.stats
    return {
        "cache_read_input_tokens": stats.num_cached,
        "input_tokens": stats.num_prompt - stats.num_cached,
        "output_tokens": stats.num_emitted,
    }
