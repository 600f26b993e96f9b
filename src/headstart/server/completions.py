"""POST /v1/completions, /completion and /infill: text completion in the forms of OpenAI and of
llama-server.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.answer import answer, new_call
from headstart.server.answer_numbers import legacy_logprobs, native_answer, token_probabilities
from headstart.server.body import off_loop
from headstart.server.dialect import Choice, Chunk, Dialect, OpenAIDialect, Piece
from headstart.server.errors import not_supported
from headstart.server.infill import fill_in, infill_prompt
from headstart.server.media import Media, prompt_media
from headstart.server.prompts import Prompt, read_prompts, tokens_text
from headstart.server.routing import Routes
from headstart.server.schemas import CompletionBody, InfillBody, NativeBody
from headstart.types.request import TokenLogprob

routes = Routes()


@routes.post("/v1/completions", answer="`text_completion`; with `stream` the same in events")
async def completions(http: HttpRequest, body: CompletionBody) -> Response:
    """Continue one prompt or several."""
    call = new_call(http, "cmpl-")
    sources = await off_loop(http, lambda: prompt_media(body.prompt))

    def read(media: Media) -> list[Prompt]:
        if media and (body.echo or body.suffix):
            raise not_supported(
                "images and sounds with echo or a suffix are not supported; leave out one"
            )
        if body.echo and body.post_sampling_probs:
            raise not_supported(
                "echo with post_sampling_probs is not supported: nothing of the prompt was sampled"
            )
        vocab, info = call.model.vocab, call.info
        prompts = read_prompts(body.prompt, vocab, info.context_size, media)
        if body.suffix:
            prompts = [fill_in((prompt.text, body.suffix), vocab, info) for prompt in prompts]
        return prompts

    return await answer(http, call, body, read, CompletionDialect, sources)


@routes.post(
    "/completion",
    "/completions",
    answer="`content`, `timings`, `generation_settings` and why it stopped; with `stream` events",
)
async def completion(http: HttpRequest, body: NativeBody) -> Response:
    """Continue one prompt or several."""
    call = new_call(http, "cmpl-")
    sources = await off_loop(http, lambda: prompt_media(body.prompt))

    def read(media: Media) -> list[Prompt]:
        return read_prompts(body.prompt, call.model.vocab, call.info.context_size, media)

    return await answer(http, call, body, read, NativeDialect, sources)


@routes.post("/infill", answer="as `/completion`")
async def infill(http: HttpRequest, body: InfillBody) -> Response:
    """Fill in the text between a prefix and a suffix."""
    call = new_call(http, "infill-")

    def read(_: Media) -> list[Prompt]:
        tokens = infill_prompt(body, call.model.vocab, call.info)
        return [Prompt(tokens, tokens_text(tokens, call.model.vocab), echo="")]

    return await answer(http, call, body, read, NativeDialect)


class CompletionDialect(OpenAIDialect):
    """text_completion."""

    chunk_kind = "text_completion"

    def opening(self, choice: Choice) -> list[Chunk]:
        if not self.body.echo:
            return []
        return self.deltas(choice, Piece(choice.prompt.echo, logprobs=_prompt_logprobs(choice)))

    def entry(self, choice: Choice, piece: Piece, *, is_whole: bool) -> Chunk:
        shown, logprobs = None, list(piece.logprobs)
        if is_whole and self.body.echo:
            logprobs = [*_prompt_logprobs(choice), *logprobs]
        if logprobs:
            vocab, is_post_sampling = self.call.model.vocab, choice.request.post_sampling_probs
            content = token_probabilities(logprobs, vocab, is_post_sampling=is_post_sampling)
            shown = {"content": content}
            if not choice.request.post_sampling_probs:
                shown |= legacy_logprobs(content, choice.offset_of)
        entry = {
            "index": choice.index,
            "text": piece.text,
            "logprobs": shown,
            "finish_reason": None,
        }
        return entry | self.extras(piece) if self.has_extras else entry

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


class NativeDialect(Dialect):
    """Flat objects, one per choice; a stream ends with the last `stop: true`."""

    def deltas(self, choice: Choice, piece: Piece) -> list[Chunk]:
        chunk = {
            "index": choice.index,
            "content": piece.text,
            "tokens": list(piece.tokens),
            "stop": False,
            "id_slot": choice.slot_id,
            "tokens_predicted": len(choice.tokens),
            "tokens_evaluated": len(choice.request.prompt),
        }
        if piece.logprobs:
            chunk["completion_probabilities"] = self.probabilities(choice, piece.logprobs)
        return [chunk | self.extras(piece) if self.has_extras else chunk]

    def closing(self, choice: Choice) -> list[Chunk]:
        return [self._picked(native_answer(self.call, self.body, choice, "", ()))]

    def whole(self) -> Any:
        finals = []
        for choice in self.choices:
            tokens = choice.tokens if self.body.return_tokens else ()
            final = native_answer(self.call, self.body, choice, choice.text, tokens)
            final |= self.extras(choice)
            if choice.logprobs:
                final["completion_probabilities"] = self.probabilities(choice, choice.logprobs)
            finals.append(self._picked(final))
        return finals if len(finals) > 1 else finals[0]

    def _picked(self, final: Chunk) -> Chunk:
        """The fields that the body selects; "timings/prompt_n" is nested and becomes a flat key."""
        picked = Chunk()
        for path, keys in self._paths.items():
            value: Any = final
            try:
                for key in keys:
                    value = value[key]
            except (KeyError, TypeError):  # absent
                continue
            picked[path] = value
        return picked if self._paths else final

    @cached_property
    def _paths(self) -> dict[str, list[str]]:
        assert isinstance(self.body, NativeBody)
        return {path: path.split("/") for path in self.body.response_fields}
