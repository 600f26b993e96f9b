"""POST /v1/completions: OpenAI's text completion, with llama-server's extra fields."""

from __future__ import annotations

import math

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.answer import answer_prompts, new_call
from headstart.server.answer_numbers import legacy_logprobs, token_probabilities
from headstart.server.body import read_body
from headstart.server.dialect import Choice, Chunk, OpenAIDialect, Piece
from headstart.server.errors import not_supported
from headstart.server.infill import fill_in
from headstart.server.media import read_prompt_media
from headstart.server.prompts import Prompt, read_prompts
from headstart.server.routing import Routes
from headstart.server.schemas import CompletionBody
from headstart.server.translate import num_choices
from headstart.types.request import TokenLogprob

routes = Routes()


@routes.post(
    "/v1/completions",
    body=CompletionBody,
    answer="`text_completion`; with `stream` the same in events",
)
async def completions(http: HttpRequest) -> Response:
    """Continue one prompt or several."""
    body = await read_body(http, CompletionBody)
    call = new_call(http, "cmpl-")
    media = await read_prompt_media(http, body.prompt)

    def read() -> list[Prompt]:
        if media and (body.echo or body.suffix):
            raise not_supported(
                "images and sounds with echo or a suffix are not supported; leave out one"
            )
        if body.echo and body.post_sampling_probs:
            raise not_supported(
                "echo with post_sampling_probs is not supported: nothing of the prompt was sampled"
            )
        if body.best_of > (number := num_choices(body, call.info)):
            raise not_supported(
                f"best_of is {body.best_of} but no more than n, {number}, answers are written; "
                "leave it out, or send a larger n"
            )
        vocab, info = call.model.vocab, call.info
        prompts = read_prompts(body.prompt, vocab, info.context_size, media)
        if not body.suffix:
            return prompts
        return [fill_in((prompt.text, body.suffix), vocab, info) for prompt in prompts]

    return await answer_prompts(http, call, body, read, CompletionDialect)


class CompletionDialect(OpenAIDialect):
    """text_completion."""

    chunk_kind = whole_kind = "text_completion"

    def opening(self, choice: Choice) -> list[Chunk]:
        if not self.body.echo:
            return []
        return [self.delta(choice, Piece(choice.prompt.echo, logprobs=_prompt_logprobs(choice)))]

    def entry(self, choice: Choice, piece: Piece, *, is_whole: bool) -> Chunk:
        shown, logprobs = None, list(piece.logprobs)
        if is_whole and self.body.echo:
            logprobs = [*_prompt_logprobs(choice), *logprobs]
        if logprobs:
            vocab, is_post_sampling = self.call.model.vocab, choice.request.post_sampling_probs
            content = token_probabilities(logprobs, vocab, is_post_sampling=is_post_sampling)
            shown = {"content": content}
            if not choice.request.post_sampling_probs:
                shown |= legacy_logprobs(content, choice.scored)
        entry = {
            "index": choice.index,
            "text": piece.text,
            "logprobs": shown,
            "finish_reason": None,
        }
        return entry | self.extras(piece)

    def closing(self, choice: Choice) -> list[Chunk]:
        """As in llama-server, the last chunk of any stream has the usage."""
        *others, last = super().closing(choice)
        return [*others, last | {"usage": self.usage()} if "timings" in last else last]


def _prompt_logprobs(choice: Choice) -> list[TokenLogprob]:
    """Log probabilities of all prompt tokens, if requested; the first token has none."""
    if not (choice.request.wants_prompt_scores and choice.request.prompt):
        return []
    first = TokenLogprob(choice.request.prompt[0], math.nan)
    return [first, *choice.prompt_logprobs]
