"""POST /v1/chat/completions: OpenAI's chat, with llama-server's extra fields.

`answer_chat` also serves the other APIs with messages: each makes its own `ChatBody` and has its
own dialect.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.answer import answer, new_call
from headstart.server.body import Body, off_loop
from headstart.server.conversation import read_chat
from headstart.server.dialect import Choice, Chunk, Dialect, OpenAIDialect, Piece, tool_call
from headstart.server.errors import wrong_value
from headstart.server.event_stream import single_event
from headstart.server.media import Media, read_media, take_media
from headstart.server.prompts import Prompt
from headstart.server.routing import Routes
from headstart.server.schemas import ChatBody, TemplateBody
from headstart.server.service import service_of
from headstart.server.translate import Call
from headstart.structures.tenants import caller_of
from headstart.text.toolcalls.events import AnswerEvent, CallArguments, Content, Thoughts, ToolCall
from headstart.types.request import ThoughtsEnd

routes = Routes()


@routes.post(
    "/v1/chat/completions",
    "/chat/completions",
    answer="`chat.completion`; with `stream` events of `chat.completion.chunk`",
)
async def chat_completions(http: HttpRequest, body: ChatBody) -> Response:
    """Answer chat messages."""
    if not body.messages:  # unlike Anthropic's and Ollama's, where an empty list means something
        raise wrong_value("messages", [], "a list with at least one message")
    return await answer_chat(http, lambda: body, "chatcmpl-", ChatDialect)


@routes.post(
    "/v1/chat/completions/input_tokens", "/chat/completions/input_tokens", answer="`input_tokens`"
)
async def input_tokens(http: HttpRequest, body: TemplateBody) -> dict[str, Any]:
    """Count the tokens of the prompt that chat messages become."""
    number = await count_chat_tokens(http, lambda: body)
    return {"object": "response.input_tokens", "input_tokens": number}


class ControlBody(Body):
    """POST /v1/chat/completions/control."""

    id: str = Field(description="of the answer, as its chunks have it")
    action: Literal["reasoning_end"] = Field(description="reasoning_end")


@routes.post(
    "/v1/chat/completions/control",
    "/chat/completions/control",
    answer="`success`, and else `message`",
)
async def control(http: HttpRequest, body: ControlBody) -> dict[str, Any]:
    """End the thoughts of an answer that was requested with `reasoning_control`."""
    tenant = caller_of(http.scope).tenant
    command = ThoughtsEnd(f"control-{secrets.token_hex(12)}", body.id, tenant)
    why_not = await single_event(service_of(http).worker, command)
    return {"success": False, "message": why_not} if why_not else {"success": True}


async def answer_chat(
    http: HttpRequest,
    make: Callable[[], ChatBody],
    prefix: str,
    dialect: Callable[[Call, ChatBody, list[Choice]], Dialect],
) -> Response:
    """Answer the chat body that `make` returns, off the event loop if it is long, in the form of
    `dialect`; the call's id begins with `prefix`.
    """
    call = new_call(http, prefix)
    body, sources = await off_loop(http, lambda: take_media(make()))

    def read(media: Media) -> list[Prompt]:
        return [read_chat(body, call.model, call.info.context_size, media)]

    return await answer(http, call, body, read, dialect, sources)


async def count_chat_tokens(http: HttpRequest, make: Callable[[], TemplateBody]) -> int:
    """Number of tokens of the prompt that messages become."""
    service = service_of(http)
    body, sources = await off_loop(http, lambda: take_media(make()))
    media = await read_media(http, sources)

    def count() -> int:
        model, size = service.served, service.info.context_size
        return len(read_chat(body, model, size, media).tokens)

    return await service.text_threads.run_for(http, count)


class ChatDialect(OpenAIDialect):
    """chat.completion and chat.completion.chunk."""

    chunk_kind = "chat.completion.chunk"

    def opening(self, choice: Choice) -> list[Chunk]:
        role = {
            "index": choice.index,
            "delta": {"role": "assistant", "content": None},
            "finish_reason": None,
        }
        chunks = [self.head | {"choices": [role]}]
        if self.body.echo and choice.prompt.echo:
            echo = Content(choice.prompt.echo)
            chunks += self.deltas(choice, Piece(echo.text, events=(echo,)))
        return chunks

    def deltas(self, choice: Choice, piece: Piece) -> list[Chunk]:
        """Reasoning has chunks of its own: many clients look for the one or the other."""
        thoughts = tuple(event for event in piece.events if isinstance(event, Thoughts))
        others = tuple(event for event in piece.events if not isinstance(event, Thoughts))
        if not (thoughts and others):
            return super().deltas(choice, piece)
        rest = replace(piece, events=others)
        return super().deltas(choice, Piece(events=thoughts)) + super().deltas(choice, rest)

    def entry(self, choice: Choice, piece: Piece, *, is_whole: bool) -> Chunk:
        entry: Chunk = {"index": choice.index}
        if is_whole:
            echo = choice.prompt.echo if self.body.echo else ""
            entry |= {"message": chat_message(choice, echo), "logprobs": None}
        else:
            entry["delta"] = _delta(piece.events)
        if piece.logprobs:
            entry["logprobs"] = {"content": self.probabilities(choice, piece.logprobs)}
        extras = self.extras(piece) if self.has_extras else {}
        return entry | {"finish_reason": None, **extras}


def chat_message(choice: Choice, echo: str) -> dict[str, Any]:
    """The answer as a message of a chat."""
    found = choice.message
    message: dict[str, Any] = {"role": "assistant", "content": echo + found.content}
    if found.thoughts:
        message["reasoning_content"] = found.thoughts
    if found.calls:
        message["content"] = message["content"] or None
        message["tool_calls"] = [
            tool_call(one.call_id, one.name, one.arguments) for one in found.calls
        ]
    return message


def _delta(events: Sequence[AnswerEvent]) -> Chunk:
    delta: Chunk = {}
    calls: dict[int, Chunk] = {}
    for event in events:
        match event:
            case Content(text):
                delta["content"] = delta.get("content", "") + text
            case Thoughts(text):
                delta["reasoning_content"] = delta.get("reasoning_content", "") + text
            case ToolCall(index, name, call_id):
                calls[index] = {"index": index, **tool_call(call_id, name, "")}
            case CallArguments(index, text):
                call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                call["function"]["arguments"] += text
    return delta | ({"tool_calls": list(calls.values())} if calls else {})
