"""POST /tokenize, /detokenize, /apply-template: text and tokens without generating."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.body import check_length
from headstart.server.conversation import render_chat
from headstart.server.media import take_media
from headstart.server.prompts import check_token, tokenize_mixed, tokens_text
from headstart.server.routing import Routes, json_response
from headstart.server.schemas import DetokenizeBody, TemplateBody, TokenizeBody
from headstart.server.service import Service, service_of
from headstart.text.utf8 import text_or_bytes

routes = Routes()


@routes.post("/tokenize", answer="`tokens`: ids, or `id` and `piece`")
async def tokenize(http: HttpRequest, body: TokenizeBody) -> Response:
    """Return the token ids of a text, with their pieces on request."""
    service = service_of(http)
    vocab = service.served.vocab

    def run() -> dict[str, Any]:
        ids = tokenize_mixed(
            body.content,
            vocab,
            field="content",
            limit=_limit(service),
            add_special=body.add_special,
            parse_special=body.parse_special,
        )
        if not body.with_pieces:
            return {"tokens": ids}
        pieces = [{"id": i, "piece": text_or_bytes(vocab.token_text(i))} for i in ids]
        return {"tokens": pieces}

    return await _in_thread(http, run)


@routes.post("/detokenize", answer="`content`: the text")
async def detokenize(http: HttpRequest, body: DetokenizeBody) -> Response:
    """Return the text of token ids."""
    service = service_of(http)
    vocab = service.served.vocab

    def run() -> dict[str, Any]:
        check_length("tokens", body.tokens, _limit(service))
        ids = [check_token(token, vocab, "tokens") for token in body.tokens]
        return {"content": tokens_text(ids, vocab)}

    return await _in_thread(http, run)


@routes.post("/apply-template", answer="`prompt`: the text that is tokenized")
async def apply_template(http: HttpRequest, body: TemplateBody) -> Response:
    """Return the prompt that chat messages become."""
    service = service_of(http)

    def run() -> dict[str, Any]:
        return {"prompt": render_chat(take_media(body)[0], service.served).text}

    return await _in_thread(http, run)


def _limit(service: Service) -> int:
    """Maximum number of tokens to count or show."""
    return max(service.info.context_size, 131_072)


async def _in_thread(http: HttpRequest, run: Callable[[], Any]) -> Response:
    return await service_of(http).text_threads.run_for(http, lambda: json_response(run()))
