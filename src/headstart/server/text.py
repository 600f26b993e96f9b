"""POST /tokenize, /detokenize, /apply-template: text and tokens without generating."""

from __future__ import annotations

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from headstart.server.model import service_of
from headstart.server.prompts import check_token, render_messages, tokenize_mixed, tokens_text
from headstart.server.routing import Router, post
from headstart.server.schemas import ChatBody, DetokenizeBody, TokenizeBody, read_body
from headstart.text.utf8 import text_or_bytes

router = Router()


@post(router, "/tokenize", body=TokenizeBody, answer="`tokens`: ids, or `id` and `piece`")
async def tokenize(http: HttpRequest) -> Response:
    """Return the token ids of a text, with their pieces on request."""
    body = await read_body(http, TokenizeBody)
    vocab = service_of(http).served.vocab

    def run() -> list[Any]:
        ids = tokenize_mixed(
            body.content,
            vocab,
            field="content",
            add_special=body.add_special,
            parse_special=body.parse_special,
        )
        return (
            [{"id": i, "piece": text_or_bytes(vocab.token_text(i))} for i in ids]
            if body.with_pieces
            else ids
        )

    return JSONResponse({"tokens": await run_in_threadpool(run)})


@post(router, "/detokenize", body=DetokenizeBody, answer="`content`: the text")
async def detokenize(http: HttpRequest) -> Response:
    """Return the text of token ids."""
    body = await read_body(http, DetokenizeBody)
    vocab = service_of(http).served.vocab
    ids = [check_token(token, vocab, "tokens") for token in body.tokens]
    return JSONResponse({"content": tokens_text(ids, vocab)})


@post(router, "/apply-template", body=ChatBody, answer="`prompt`: the text that is tokenized")
async def apply_template(http: HttpRequest) -> Response:
    """Return the prompt that chat messages become."""
    body = await read_body(http, ChatBody)
    chat = await run_in_threadpool(render_messages, body, service_of(http).served)
    return JSONResponse({"prompt": chat.text})
