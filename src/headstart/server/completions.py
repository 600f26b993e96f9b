"""POST /v1/completions: OpenAI's text completion, with llama-server's extra fields."""

from __future__ import annotations

import math
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.answer import answer
from headstart.server.body import read_body
from headstart.server.calls import make_choices, new_call
from headstart.server.dialect import Choice, Dialect, OpenAIDialect, Piece
from headstart.server.errors import ApiError, not_supported, shorten
from headstart.server.infill import fill_in
from headstart.server.model import service_of
from headstart.server.prompts import Prompt, read_prompts
from headstart.server.results import legacy_logprobs
from headstart.server.routing import Routes, post
from headstart.server.schemas import CompletionBody
from headstart.server.translate import Call, check_num_logprobs
from headstart.types.request import TokenLogprob

router = Routes()


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
        prompts = _read(body, call)
        return CompletionDialect(
            call, body, make_choices(body, prompts, call, _num_logprobs(body, call))
        )

    return await answer(http, service, prepare)


def _refuse(body: CompletionBody) -> None:
    if body.echo and body.post_sampling_probs:
        raise not_supported(
            "echo with post_sampling_probs is not supported: nothing of the prompt was sampled"
        )


def _read(body: CompletionBody, call: Call) -> list[Prompt]:
    """The prompts; with a suffix those that ask to fill in before it."""
    vocab, info = call.model.vocab, call.info
    prompts = read_prompts(body.prompt, vocab, info.context_size)
    if not body.suffix:
        return prompts
    return [fill_in((prompt.text, body.suffix), vocab, info) for prompt in prompts]


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
        if not self.body.echo:
            return []
        return [self.delta(choice, Piece(choice.prompt.echo, logprobs=_prompt_logprobs(choice)))]

    def entry(self, choice: Choice, piece: Piece, *, is_whole: bool) -> dict[str, Any]:
        logprobs, told = None, list(piece.logprobs)
        if is_whole and self.body.echo:
            told = [*_prompt_logprobs(choice), *told]
        if told:
            content = self.probabilities(choice, told)
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


def _prompt_logprobs(choice: Choice) -> list[TokenLogprob]:
    """Of all tokens of the prompt, where they were asked for; the first follows nothing."""
    if not choice.request.wants_prompt_scores:
        return []
    first = TokenLogprob(choice.request.prompt[0], math.nan, ())
    return [first, *choice.prompt_logprobs]
