"""POST /v1/chat/completions: OpenAI's chat, with llama-server's extra fields."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.answer import answer
from headstart.server.calls import make_choices, new_call
from headstart.server.dialect import END, Choice, Dialect, OpenAIDialect, Piece
from headstart.server.errors import ApiError, not_supported
from headstart.server.model import service_of
from headstart.server.prompts import read_chat
from headstart.server.routing import Router, post
from headstart.server.schemas import ChatBody, read_body
from headstart.server.translate import Call, check_num_logprobs

DEFAULT_TOP_LOGPROBS = 20  # llama-server's

router = Router()


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
    _refuse_tools(body)
    call = new_call(http, service, "chatcmpl", stop=service.served.template.stop)

    def prepare() -> Dialect:
        prompts = [read_chat(body, call.model, call.info.context_size)]
        return ChatDialect(call, body, make_choices(body, prompts, call, _num_logprobs(body, call)))

    return await answer(http, service, prepare)


def _refuse_tools(body: ChatBody) -> None:
    if body.tools and body.tool_choice != "none":
        raise not_supported(
            'tools are not supported yet; leave them out or set "tool_choice": "none"'
        )


def _num_logprobs(body: ChatBody, call: Call) -> int | None:
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
            chunks.append(self.delta(choice, Piece(choice.prompt.echo)))
        return chunks

    def entry(self, choice: Choice, piece: Piece, *, is_whole: bool) -> dict[str, Any]:
        if is_whole:
            said: dict[str, Any] = {
                "message": {"role": "assistant", "content": piece.text},
                "logprobs": None,
            }
        else:
            said = {"delta": {} if piece is END else {"content": piece.text}}
        if piece.logprobs:
            said["logprobs"] = {"content": self.probabilities(choice, piece.logprobs)}
        return {
            "index": choice.index,
            **said,
            "finish_reason": None,
            **self.extras(piece),
        }
