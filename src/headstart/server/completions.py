"""POST /v1/completions: OpenAI's text completion, with llama-server's extra fields."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.answer import answer
from headstart.server.calls import make_choices, new_call
from headstart.server.dialect import Choice, Dialect, OpenAIDialect, Piece
from headstart.server.errors import ApiError, not_supported, shorten
from headstart.server.model import service_of
from headstart.server.prompts import read_prompts
from headstart.server.results import legacy_logprobs
from headstart.server.routing import Router, post
from headstart.server.schemas import CompletionBody, read_body
from headstart.server.translate import Call, check_num_logprobs

router = Router()


@post(
    router,
    "/v1/completions",
    body=CompletionBody,
    answer="`text_completion`; with `stream` the same in events",
)
async def completions(http: HttpRequest) -> Response:
    """Continue one prompt or several."""
    service = service_of(http)
    body = await read_body(http, CompletionBody)
    call = new_call(http, service, "cmpl")

    def prepare() -> Dialect:
        _refuse(body)
        prompts = read_prompts(body.prompt, call.model.vocab, call.info.context_size)
        return CompletionDialect(
            call, body, make_choices(body, prompts, call, _num_logprobs(body, call))
        )

    return await answer(http, service, prepare)


def _refuse(body: CompletionBody) -> None:
    if body.suffix:
        raise not_supported("suffix is not supported; leave it out")
    if body.echo and body.logprobs not in (None, False):
        raise not_supported(
            "echo with logprobs is not supported: prompt tokens have no log probabilities here"
        )


def _num_logprobs(body: CompletionBody, call: Call) -> int | None:
    """`logprobs: 0` asks for the chosen token alone, as at OpenAI; n_probs 0 for nothing, as at
    llama-server.
    """
    if body.logprobs is None or body.logprobs is False:
        return check_num_logprobs("n_probs", body.n_probs or None, call.model.vocab)
    if isinstance(body.logprobs, bool) or not isinstance(body.logprobs, int):
        raise ApiError(400, f"logprobs is {shorten(body.logprobs)} but must be a whole number")
    return check_num_logprobs("logprobs", body.logprobs, call.model.vocab)


class CompletionDialect(OpenAIDialect):
    """text_completion."""

    chunk_kind = whole_kind = "text_completion"

    def opening(self, choice: Choice) -> list[dict[str, Any]]:
        return [self.delta(choice, Piece(choice.prompt.echo))] if self.body.echo else []

    def entry(self, choice: Choice, piece: Piece, *, is_whole: bool) -> dict[str, Any]:
        logprobs = None
        if piece.logprobs:
            content = self.probabilities(choice, piece.logprobs)
            logprobs = {"content": content}
            if not choice.request.post_sampling_probs:
                logprobs |= legacy_logprobs(content, 0 if is_whole else choice.num_chars_sent)
        said = {
            "index": choice.index,
            "text": piece.text,
            "logprobs": logprobs,
            "finish_reason": None,
        }
        return said | self.extras(piece)
