"""POST /rerank: how well documents answer a query, in Jina's form and in that of TEI.

Sources: https://jina.ai/reranker/ and
https://huggingface.github.io/text-embeddings-inference/#/Text%20Embeddings%20Inference/rerank
"""

from __future__ import annotations

from typing import Any

from pydantic import Field
from starlette.requests import Request as HttpRequest

from headstart.server.body import Body, Int, read_body
from headstart.server.embeddings import check_size, embed, tokenize_text
from headstart.server.errors import ApiError, shorten
from headstart.server.limits import MAX_INPUTS, check_length
from headstart.server.model import RerankForm, service_of
from headstart.server.routing import Routes
from headstart.types import Vocab
from headstart.types.errors import NotSupportedError
from headstart.types.report import EmbeddingInfo
from headstart.types.request import EmbeddingEvent

routes = Routes()


class RerankBody(Body):
    """POST /rerank."""

    query: Any = None
    documents: Any = Field(default=None, description="list of strings")
    texts: Any = Field(default=None, description="the same; the answer is then a list, as TEI's")
    top_n: Int | None = Field(default=None, description="only the best so many")
    return_text: bool = Field(default=False, description="with texts: each result has its text")
    model: str | None = None


@routes.post(
    "/v1/rerank",
    "/rerank",
    "/reranking",
    "/v1/reranking",
    body=RerankBody,
    answer="`results`: a list with `index` and `relevance_score`, the best first; `usage`",
)
async def rerank(http: HttpRequest) -> Any:
    """Order documents by how well they answer a query."""
    service = service_of(http)
    info = service.info.embedding
    if info is None or info.pooling != "rank":
        raise NotSupportedError(
            "This server does not support reranking. Start it with `--reranking`"
        )
    body = await read_body(http, RerankBody)
    query, documents = _read(body)
    vocab, form = service.served.vocab, service.served.rerank

    def tokenize() -> list[list[int]]:
        return [
            check_size(
                f"document {i} with the query", _prompt(form, (query, text), vocab, info), info
            )
            for i, text in enumerate(documents)
        ]

    event = await embed(http, service, tokenize, prefix="rank")
    return _answer(body, documents, event, service.served.alias)


def _prompt(
    form: RerankForm, pair: tuple[str, str], vocab: Vocab, info: EmbeddingInfo
) -> list[int]:
    """Token ids of a query and a document."""
    if form.template is not None:
        text = form.template.replace("{query}", pair[0]).replace("{document}", pair[1])
        return tokenize_text("documents", text, vocab, info, add_special=False)
    first, second = (
        tokenize_text(field, text, vocab, info, add_special=False, parse_special=False)
        for field, text in zip(("query", "documents"), pair, strict=True)
    )
    return [*form.start, *first, *form.middle, *second, *form.end]


def _read(body: RerankBody) -> tuple[str, list[str]]:
    if body.query is None:
        raise ApiError(400, '"query" must be provided')
    if not isinstance(body.query, str):
        raise ApiError(400, f'"query" must be a string, not {shorten(body.query)}')
    documents = body.texts if body.documents is None else body.documents
    is_texts = isinstance(documents, list) and all(isinstance(one, str) for one in documents)
    if not is_texts or not documents:
        raise ApiError(400, '"documents" must be a non-empty string array')
    check_length("documents", documents, MAX_INPUTS, "texts")
    if body.top_n is not None and body.top_n < 0:
        raise ApiError(400, f"top_n is {body.top_n} but must be 0 or more")
    return body.query, documents


def _answer(body: RerankBody, documents: list[str], event: EmbeddingEvent, alias: str) -> Any:
    is_tei = body.texts is not None
    name = "score" if is_tei else "relevance_score"
    results: list[dict[str, Any]] = [
        {"index": index, name: float(vectors[0, 0])} for index, vectors in enumerate(event.vectors)
    ]
    if is_tei and body.return_text:
        results = [one | {"text": documents[one["index"]]} for one in results]
    results.sort(key=lambda one: -one[name])
    results = results[: body.top_n]
    if is_tei:
        return results
    return {
        "model": body.model or alias,
        "object": "list",
        "usage": {"prompt_tokens": event.num_tokens, "total_tokens": event.num_tokens},
        "results": results,
    }
