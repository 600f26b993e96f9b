"""POST /completion: llama-server's own format."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.answer import answer_prompts, new_call
from headstart.server.body import read_body
from headstart.server.dialect import Choice, Chunk, Piece, SingleDialect
from headstart.server.media import read_prompt_media
from headstart.server.native_answer import native_answer
from headstart.server.prompts import Prompt, read_prompts
from headstart.server.routing import Routes
from headstart.server.schemas import NativeBody

routes = Routes()


@routes.post(
    "/completion",
    "/completions",
    body=NativeBody,
    answer="`content`, `timings`, `generation_settings` and why it stopped; with `stream` events",
)
async def completion(http: HttpRequest) -> Response:
    """Continue one prompt or several."""
    body = await read_body(http, NativeBody)
    call = new_call(http, "cmpl-")
    media = await read_prompt_media(http, body.prompt)

    def read() -> list[Prompt]:
        return read_prompts(body.prompt, call.model.vocab, call.info.context_size, media)

    return await answer_prompts(http, call, body, read, NativeDialect)


class NativeDialect(SingleDialect):
    """Flat objects, one per choice; a stream ends with the last `stop: true`."""

    def opening(self, choice: Choice) -> list[Chunk]:
        return [self.delta(choice, Piece(choice.prompt.echo))] if self.body.echo else []

    def delta(self, choice: Choice, piece: Piece) -> Chunk:
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
        return chunk | self.extras(piece)

    def closing(self, choice: Choice) -> list[Chunk]:
        return [self._picked(native_answer(self.call, self.body, choice, "", ()))]

    def whole(self) -> Any:
        finals = []
        for choice in self.choices:
            tokens = choice.tokens if self.body.return_tokens else ()
            final = native_answer(self.call, self.body, choice, self.full_text(choice), tokens)
            final |= self.extras(choice.everything(choice.text))
            if choice.logprobs:
                final["completion_probabilities"] = self.probabilities(choice, choice.logprobs)
            finals.append(self._picked(final))
        return finals if len(finals) > 1 else finals[0]

    def _picked(self, final: Chunk) -> Chunk:
        """The fields that the body selects; "timings/prompt_n" is nested and becomes a flat key."""
        assert isinstance(self.body, NativeBody)
        paths, picked = self.body.response_fields, Chunk()
        for path in paths:
            value: Any = final
            try:
                for key in path.split("/"):
                    value = value[key]
            except (KeyError, TypeError):  # absent
                continue
            picked[path] = value
        return picked if paths else final
