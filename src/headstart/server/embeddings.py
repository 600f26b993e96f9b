"""POST /v1/embeddings, /embedding and /rerank: vectors of texts, and scores of documents.

The forms are those of OpenAI and llama-server, and for scores of Jina and TEI:
https://jina.ai/reranker/ and
https://huggingface.github.io/text-embeddings-inference/#/Text%20Embeddings%20Inference/rerank
"""

from __future__ import annotations

import base64
import dataclasses
import re
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.body import MAX_INPUTS, Body, Int, check_length, is_id, off_loop, read_body
from headstart.server.errors import not_supported, shorten, wrong_value
from headstart.server.event_stream import single_event
from headstart.server.media import Media, Source, prompt_media, read_media, take_parts
from headstart.server.prompts import MAX_TOKENS, read_prompt
from headstart.server.routing import Routes, json_response
from headstart.server.service import ServedModel, Service, service_of
from headstart.server.threads import unless_left
from headstart.structures.prefix import packed
from headstart.structures.tenants import caller_of
from headstart.types import Vocab
from headstart.types.errors import NotSupportedError, RequestError
from headstart.types.media import MediaChunk
from headstart.types.report import EmbeddingInfo
from headstart.types.request import EmbeddingEvent, EmbeddingRequest

routes = Routes()
MAX_READ = 1 << 21  # tokens per call
MAX_NUMBERS = 1 << 23  # per answer: some 100 MB of JSON


class EmbeddingBody(Body):
    """POST /v1/embeddings and /embedding."""

    input: Any = Field(
        None,
        description="string, token ids, a mix of both, or a list of these; or objects with "
        "prompt_string and multimodal_data, or with content as parts of a message",
    )
    content: Any = Field(None, description="the same as input; answered as by /embedding")
    model: str | None = None
    encoding_format: Literal["float", "base64"] = Field("float", description="float or base64")
    dimensions: Int | None = Field(
        None, description="number of leading values of each vector to return, rescaled"
    )
    embd_normalize: Int | None = Field(
        None,
        ge=-1,
        description="-1 none, 0 the largest number to 32760, 1 taxicab, 2 Euclidean, above: p-norm",
    )


class RerankBody(Body):
    """POST /rerank."""

    query: Any = None
    documents: Any = Field(None, description="list of strings")
    texts: Any = Field(None, description="the same; the answer is then a list, as TEI's")
    top_n: Int | None = Field(None, ge=0, description="number of best documents to return")
    return_text: bool = Field(False, description="with texts: each result has its text")
    model: str | None = None


@routes.post("/v1/embeddings", body=EmbeddingBody, answer="`data`: a list of vectors; `usage`")
async def embeddings(http: HttpRequest) -> Response:
    """Turn texts into vectors."""
    return await _embed(http, is_openai=True)


@routes.post(
    "/embedding",
    "/embeddings",
    body=EmbeddingBody,
    answer="a list with `index` and `embedding`, a list of vectors",
)
async def embedding(http: HttpRequest) -> Response:
    """Turn texts into vectors; without pooling one for each token."""
    return await _embed(http, is_openai=False)


async def _embed(http: HttpRequest, *, is_openai: bool) -> Response:
    service = service_of(http)
    info = embedding_info(service)
    if is_openai and info.pooling == "none":
        raise RequestError(
            "Pooling type 'none' is not OAI compatible. Please use a different pooling type "
            "(--pooling mean), or /embedding"
        )
    body = await read_body(http, EmbeddingBody)
    if body.input is None and body.content is None:
        raise RequestError('"input" or "content" must be provided')
    if body.dimensions is not None and not 1 <= body.dimensions <= info.size:
        raise wrong_value("dimensions", body.dimensions, f"from 1 to {info.size}, the model's")
    is_openai = is_openai and body.input is not None
    asked = body.content if body.input is None else body.input
    given, sources = await off_loop(http, lambda: take_inputs(asked))
    media = await read_media(http, sources)
    vocab = service.served.vocab
    event = await embed(http, lambda: read_inputs(given, vocab, info, media), media=media)

    def response() -> Response:
        vectors = event.vectors
        if info.pooling != "none":
            usual = service.served.config.embedding.embd_normalize
            kind = usual if body.embd_normalize is None else body.embd_normalize
            vectors = tuple(normalize(one[:, : body.dimensions], kind) for one in vectors)
        if is_openai:
            return json_response(_openai_answer(body, service, event, vectors))
        return json_response([{"index": i, "embedding": written(v)} for i, v in enumerate(vectors)])

    return await service.answer_threads.run_for(http, response)


def embedding_info(service: Service) -> EmbeddingInfo:
    """Embedding settings of this server.

    Raises:
        NotSupportedError: it does not embed.
    """
    info = service.info.embedding
    if info is None:
        raise NotSupportedError(
            "This server does not support embeddings. Start it with `--embeddings`"
        )
    if info.pooling == "rank":
        raise NotSupportedError(
            "This server ranks and does not support embeddings. Start it with `--embeddings` and "
            "without `--rerank`"
        )
    return info


async def embed(
    http: HttpRequest,
    read: Callable[[], list[Sequence[int]]],
    *,
    media: Media = (),
    prefix: str = "embd",
) -> EmbeddingEvent:
    """Embed the texts that `read` tokenizes, off the event loop; `media`: parts of their files.

    Raises:
        ClientDisconnect: the client disconnected.
        HeadstartError: the texts cannot be read or embedded.
    """
    service, tenant = service_of(http), caller_of(http.scope).tenant
    texts = await service.prompt_threads.run_for(http, read)
    info = service.info.embedding
    assert info is not None
    num_tokens = sum(map(len, texts))
    if num_tokens > MAX_READ:  # they are sent to the engine at once
        raise RequestError(
            f"the texts have {num_tokens} tokens but at most {MAX_READ} are read in one call; send "
            "fewer texts at once"
        )
    num_vectors = num_tokens if info.pooling == "none" else len(texts)
    if num_vectors * info.size > MAX_NUMBERS:
        raise RequestError(
            f"the answer would have {num_vectors} vectors of {info.size} numbers but at most "
            f"{MAX_NUMBERS} numbers are sent; send fewer texts at once"
        )
    request_id = f"{prefix}-{secrets.token_hex(12)}"
    chunks = {p.ids()[0]: p for parts in media for p in parts if isinstance(p, MediaChunk)}
    command = EmbeddingRequest(request_id, tuple(texts), tenant, tuple(chunks.items()))
    event: EmbeddingEvent = await unless_left(http.receive, single_event(service.worker, command))
    if info.pooling != "none":
        return event
    ends = np.cumsum([len(text) for text in texts])[:-1]

    def joined() -> EmbeddingEvent:
        vectors = np.split(np.concatenate(event.vectors), ends)
        return dataclasses.replace(event, vectors=tuple(vectors))

    return await service.answer_threads.run_for(http, joined)


def take_inputs(given: Any) -> tuple[Any, list[Source]]:
    """Inputs with the parts of their contents in prompts, and the files of all inputs.

    Raises:
        RequestError: a part is of another type.
    """
    sources = list[Source]()

    def taken(entry: Any) -> Any:
        if not isinstance(entry, dict) or "content" not in entry:
            sources.extend(prompt_media(entry) if isinstance(entry, dict) else ())
            return entry
        if not isinstance(entry["content"], list):
            raise wrong_value("input.content", entry["content"], "a list of parts")
        own = list[Source]()
        parts = take_parts(entry["content"], own)
        for part in parts:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in ("text", "media_marker") or not isinstance(part.get("text"), str):
                raise not_supported(f"input.content has a part of type {shorten(kind)}")
        sources.extend(own)
        text = "".join(part["text"] for part in parts)
        return {"prompt_string": text, "multimodal_data": [url for _, url in own]}

    return list(map(taken, given)) if isinstance(given, list) else taken(given), sources


def read_inputs(
    given: Any, vocab: Vocab, info: EmbeddingInfo, media: Media = ()
) -> list[Sequence[int]]:
    """Token ids of each text; `media`: the parts of its files.

    Raises:
        RequestError: a text has the wrong type, is empty, or is too long for the model.
    """
    entries = given if isinstance(given, list) and not any(map(is_id, given)) else [given]
    if not entries:
        raise RequestError('"input" must not be empty')
    check_length("input", entries, MAX_INPUTS, "texts")
    name, left = "input {}" if len(entries) > 1 else "input", iter(media)
    texts = []
    for index, entry in enumerate(entries):
        field = name.format(index)
        tokens = read_prompt(entry, vocab, MAX_TOKENS, left, field).tokens
        texts.append(check_size(field, tokens, info))
    return texts


def check_size(field: str, tokens: Sequence[int], info: EmbeddingInfo) -> Sequence[int]:
    """Return the tokens, packed while the event loop does not wait for it, if there are any and the
    model can process them in one decode.
    """
    if not tokens:
        raise RequestError("Input content cannot be empty")
    if len(tokens) > info.max_tokens:
        raise RequestError(
            f"{field} ({len(tokens)} tokens) is too large to process. increase the physical batch "
            f"size (current batch size: {info.max_tokens}): shorten it, or start with a larger "
            "--ubatch if the model knows so many"
        )
    return packed(tokens)


def normalize(vectors: NDArray[np.float32], kind: int) -> NDArray[np.float32]:
    """Scale each row as llama-server does; zero rows are unchanged."""
    if kind == -1:
        return vectors
    wide = np.abs(vectors.astype(np.float64))
    if kind == 0:
        norms = wide.max(axis=1, keepdims=True) / 32760.0
    else:
        norms = (wide**kind).sum(axis=1, keepdims=True) ** (1.0 / kind)
    factors = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    scaled: NDArray[np.float32] = (vectors * factors).astype(np.float32)
    return scaled


def written(vectors: NDArray[np.float32]) -> orjson.Fragment:
    """Serialize the vectors of one text; all at once would block the interpreter."""
    numbers = np.ascontiguousarray(vectors)
    return orjson.Fragment(orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY))


def _openai_answer(
    body: EmbeddingBody,
    service: Service,
    event: EmbeddingEvent,
    vectors: Sequence[NDArray[np.float32]],
) -> dict[str, Any]:
    data: list[dict[str, Any]] = []
    for index, rows in enumerate(vectors):
        entry: dict[str, Any] = {"embedding": "", "index": index, "object": "embedding"}
        if body.encoding_format == "base64":
            vector = rows[0].astype("<f4")
            entry["embedding"] = base64.b64encode(vector.tobytes()).decode()
            entry["encoding_format"] = "base64"
        else:
            entry["embedding"] = written(rows[0])
        data.append(entry)
    usage = {"prompt_tokens": event.num_tokens, "total_tokens": event.num_tokens}
    model = body.model or service.served.alias
    return {"model": model, "object": "list", "usage": usage, "data": data}


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
    query, documents = _query_and_documents(body)

    def tokenize() -> list[Sequence[int]]:
        return [
            check_size(
                f"document {i} with the query", _pair_tokens(service.served, query, one), info
            )
            for i, one in enumerate(documents)
        ]

    event = await embed(http, tokenize, prefix="rank")
    return _scores(body, documents, event, service.served.alias)


def _pair_tokens(model: ServedModel, query: str, document: str) -> list[int]:
    if model.pair_template is not None:
        pair = {"query": query, "document": document}
        text = re.sub(r"\{(query|document)\}", lambda one: pair[one[1]], model.pair_template)
        return model.vocab.tokenize(text, add_special=False, parse_special=True)
    first, second = (
        model.vocab.tokenize(text, add_special=False, parse_special=False)
        for text in (query, document)
    )
    start, middle, end = model.pair_marks
    return [*start, *first, *middle, *second, *end]


def _query_and_documents(body: RerankBody) -> tuple[str, list[str]]:
    if body.query is None:
        raise RequestError('"query" must be provided')
    if not isinstance(body.query, str):
        raise RequestError(f'"query" must be a string, not {shorten(body.query)}')
    documents = body.texts if body.documents is None else body.documents
    is_texts = isinstance(documents, list) and all(isinstance(one, str) for one in documents)
    if not is_texts or not documents:
        raise RequestError('"documents" must be a non-empty string array')
    check_length("documents", documents, MAX_INPUTS, "texts")
    return body.query, documents


def _scores(body: RerankBody, documents: list[str], event: EmbeddingEvent, alias: str) -> Any:
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
