"""POST /v1/chat/completions: OpenAI's chat, with llama-server's extra fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from headstart.server.answer import answer
from headstart.server.body import read_body
from headstart.server.calls import make_choices, new_call
from headstart.server.dialect import Choice, Dialect, OpenAIDialect, Piece
from headstart.server.errors import ApiError
from headstart.server.model import service_of
from headstart.server.prompts import read_chat, render_messages
from headstart.server.routing import Routes, post
from headstart.server.schemas import ChatBody
from headstart.server.tool_use import prepare_reading
from headstart.server.translate import Call, check_num_logprobs
from headstart.text.toolcalls.events import AnswerEvent, CallArguments, CallBegin, Content, Thoughts

DEFAULT_TOP_LOGPROBS = 20  # llama-server's

router = Routes()


@post(
    router,
    "/v1/chat/completions",
    "/chat/completions",
    body=ChatBody,
    answer="`chat.completion`; with `stream` events of `chat.completion.chunk`",
)
async def chat_completions(http: HttpRequest) -> Response:
    """Answer chat messages."""
    service = service_of(http)
    body = await read_body(http, ChatBody)
    call = new_call(http, service, "chatcmpl", stop=service.served.template.stop)

    def prepare() -> Dialect:
        size = call.info.context_size
        chat = render_messages(body, call.model, size)
        prompts = [read_chat(chat, call.model, size)]
        choices = make_choices(body, prompts, call, num_logprobs(body, call))
        prepare_reading(body, call.model, chat, choices)
        return ChatDialect(call, body, choices)

    return await answer(http, service, prepare)


@post(
    router,
    "/v1/chat/completions/input_tokens",
    "/chat/completions/input_tokens",
    body=ChatBody,
    answer="`input_tokens`",
)
async def input_tokens(http: HttpRequest) -> Response:
    """Count the tokens of the prompt that chat messages become."""
    service = service_of(http)
    body = await read_body(http, ChatBody)

    def count() -> int:
        model, size = service.served, service.info.context_size
        return len(read_chat(render_messages(body, model, size), model, size).tokens)

    return JSONResponse({"input_tokens": await run_in_threadpool(count)})


def num_logprobs(body: ChatBody, call: Call) -> int | None:
    """Alternatives to show per token; None for no log probabilities.

    Raises:
        ApiError: they cannot be shown.
    """
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true")
    if body.logprobs:
        wanted = DEFAULT_TOP_LOGPROBS if body.top_logprobs is None else body.top_logprobs
        return check_num_logprobs("top_logprobs", wanted, call.model.vocab)
    return check_num_logprobs("n_probs", body.n_probs or None, call.model.vocab)


class ChatDialect(OpenAIDialect):
    """chat.completion and chat.completion.chunk."""

    chunk_kind = "chat.completion.chunk"
    whole_kind = "chat.completion"

    def opening(self, choice: Choice) -> list[dict[str, Any]]:
        role = {
            "index": choice.index,
            "delta": {"role": "assistant", "content": None},
            "finish_reason": None,
        }
        chunks = [self.frame(self.chunk_kind, [role])]
        if self.body.echo and choice.prompt.echo:
            echo = Content(choice.prompt.echo)
            chunks.append(self.delta(choice, Piece(echo.text, events=(echo,))))
        return chunks

    def wants(self, piece: Piece) -> bool:
        """Whether a piece is worth a chunk: what it says may still be held back."""
        return bool(piece.events) or self.wants_tokens(piece)

    def entry(self, choice: Choice, piece: Piece, *, is_whole: bool) -> dict[str, Any]:
        if is_whole:
            said: dict[str, Any] = {
                "message": self._message(choice),
                "logprobs": None,
            }
        else:
            said = {"delta": _delta(piece.events)}
        if piece.logprobs:
            said["logprobs"] = {"content": self.probabilities(choice, piece.logprobs)}
        return {
            "index": choice.index,
            **said,
            "finish_reason": None,
            **self.extras(piece),
        }

    def _message(self, choice: Choice) -> dict[str, Any]:
        found = choice.message
        echo = choice.prompt.echo if self.body.echo else ""
        message: dict[str, Any] = {"role": "assistant", "content": echo + found.content}
        if found.thoughts:
            message["reasoning_content"] = found.thoughts
        if found.calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [
                {
                    "id": one.call_id,
                    "type": "function",
                    "function": {"name": one.name, "arguments": one.arguments},
                }
                for one in found.calls
            ]
        return message


def _delta(events: Sequence[AnswerEvent]) -> dict[str, Any]:
    """What a chunk adds to the message."""
    delta: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        match event:
            case Content(text):
                delta["content"] = delta.get("content", "") + text
            case Thoughts(text):
                delta["reasoning_content"] = delta.get("reasoning_content", "") + text
            case CallBegin(index, name, call_id):
                calls[index] = {
                    "index": index,
                    "id": call_id,
                    "type": "function",
                    "function": {"name": name, "arguments": ""},
                }
            case CallArguments(index, text):
                call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                call["function"]["arguments"] += text
    return delta | ({"tool_calls": list(calls.values())} if calls else {})
