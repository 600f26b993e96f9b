"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API, which Claude Code speaks."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server import sse
from headstart.server.answer import answer
from headstart.server.anthropic_body import MessagesBody, chat_body
from headstart.server.body import read_body
from headstart.server.calls import make_choices, new_call
from headstart.server.dialect import Choice, Dialect, Piece
from headstart.server.model import service_of
from headstart.server.prompts import read_chat, render_messages
from headstart.server.routing import Routes, post
from headstart.server.schemas import ChatBody
from headstart.server.tool_use import prepare_reading
from headstart.server.translate import Call
from headstart.text.toolcalls.events import AnswerEvent, CallArguments, CallBegin, Content, Thoughts

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

router = Routes()


@post(
    router,
    "/v1/messages",
    body=MessagesBody,
    answer="`content`, a list of blocks, `stop_reason` and `usage`; with `stream` events",
)
async def messages(http: HttpRequest) -> Response:
    """Answer messages."""
    service = service_of(http)
    body = chat_body(await read_body(http, MessagesBody))
    call = new_call(http, service, "msg", stop=service.served.template.stop)

    def prepare() -> Dialect:
        size = call.info.context_size
        chat = render_messages(body, call.model, size)
        choices = make_choices(body, [read_chat(chat, call.model, size)], call, None)
        prepare_reading(body, call.model, chat, choices)
        return MessagesDialect(call, body, choices)

    return await answer(http, service, prepare)


@post(router, "/v1/messages/count_tokens", body=MessagesBody, answer="`input_tokens`")
async def count_tokens(http: HttpRequest) -> Response:
    """Count the tokens of the prompt that messages become."""
    service = service_of(http)
    body = chat_body(await read_body(http, MessagesBody))

    def count() -> int:
        model, size = service.served, service.info.context_size
        return len(read_chat(render_messages(body, model, size), model, size).tokens)

    counted = {"input_tokens": await run_in_threadpool(count)}
    return Response(orjson.dumps(counted), media_type="application/json")


class MessagesDialect(Dialect):
    """A message of blocks; a stream opens and closes them one after another."""

    ends_with_done = False

    def __init__(self, call: Call, body: ChatBody, choices: list[Choice]) -> None:
        super().__init__(call, body, choices)
        self._num_blocks = 0
        self._open_block = ""  # its type

    def encode(self, chunk: dict[str, Any]) -> bytes:
        name: str = chunk["type"]
        return b"event: " + name.encode() + b"\n" + sse.event(chunk)

    def encode_error(self, body: dict[str, Any]) -> bytes:
        return self.encode({"type": "error", "error": body["error"]})

    def wants(self, piece: Piece) -> bool:
        return bool(piece.events)

    def opening(self, choice: Choice) -> list[dict[str, Any]]:
        cached = choice.stats.num_cached
        usage = {
            "cache_read_input_tokens": cached,
            "input_tokens": len(choice.request.prompt) - cached,
            "output_tokens": 0,
        }
        message = self._message(choice) | {"content": [], "stop_reason": None, "usage": usage}
        return [{"type": "message_start", "message": message | {"stop_sequence": None}}]

    def deltas(self, choice: Choice, piece: Piece) -> list[dict[str, Any]]:
        return [chunk for event in piece.events for chunk in self._event(event)]

    def _event(self, event: AnswerEvent) -> list[dict[str, Any]]:
        match event:
            case Content(text):
                opened = self._block("text", {"type": "text", "text": ""})
                change = {"type": "text_delta", "text": text}
            case Thoughts(text):
                opened = self._block("thinking", {"type": "thinking", "thinking": ""})
                change = {"type": "thinking_delta", "thinking": text}
            case CallBegin(_, name, call_id):
                block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                return [*self._close(), *self._block("tool_use", block)]
            case CallArguments(_, text):
                opened, change = [], {"type": "input_json_delta", "partial_json": text}
        index = self._num_blocks - 1
        return [*opened, {"type": "content_block_delta", "index": index, "delta": change}]

    def _block(self, kind: str, block: dict[str, Any]) -> list[dict[str, Any]]:
        """Begin a block unless one of this type is open."""
        if self._open_block == kind:
            return []
        closing = self._close()
        self._open_block = kind
        self._num_blocks += 1
        index = self._num_blocks - 1
        return [*closing, {"type": "content_block_start", "index": index, "content_block": block}]

    def _close(self) -> list[dict[str, Any]]:
        if not self._open_block:
            return []
        self._open_block = ""
        return [{"type": "content_block_stop", "index": self._num_blocks - 1}]

    def closing(self, choice: Choice) -> list[dict[str, Any]]:
        ending = {name: self._message(choice)[name] for name in ("stop_reason", "stop_sequence")}
        return [
            *self._close(),
            {"type": "message_delta", "delta": ending, "usage": _usage(choice)},
            {"type": "message_stop"},
        ]

    def whole(self) -> dict[str, Any]:
        (choice,) = self.choices
        found = choice.message
        blocks: list[dict[str, Any]] = []
        if found.thoughts:
            blocks.append({"type": "thinking", "thinking": found.thoughts, "signature": ""})
        if found.content or not (found.thoughts or found.calls):
            blocks.append({"type": "text", "text": found.content})
        for one in found.calls:
            block = {"type": "tool_use", "id": one.call_id, "name": one.name}
            blocks.append(block | {"input": _arguments(one.arguments)})
        return self._message(choice) | {"content": blocks, "usage": _usage(choice)}

    def _message(self, choice: Choice) -> dict[str, Any]:
        reason = STOP_REASONS.get(choice.finish_reason or "")
        word = choice.finish.stopping_word if choice.finish else ""
        return {
            "id": self.call.id,
            "type": "message",
            "role": "assistant",
            "model": self.call.model.alias,
            "stop_reason": "stop_sequence" if word and reason == "end_turn" else reason,
            "stop_sequence": word or None,
        }


def _usage(choice: Choice) -> dict[str, int]:
    stats = choice.stats
    return {
        "cache_read_input_tokens": stats.num_cached,
        "input_tokens": stats.num_prompt - stats.num_cached,
        "output_tokens": stats.num_emitted,
    }


def _arguments(text: str) -> Any:
    """What a call's arguments say; an answer that was cut short may end in the middle."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
