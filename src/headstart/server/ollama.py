"""A subset of Ollama's API: /api/chat, /api/generate, /api/embed and the lists of models.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.answer import answer, new_call
from headstart.server.body import MAX_INPUTS, check_length, make_body
from headstart.server.chat import answer_chat
from headstart.server.embeddings import embed, embedding_info, normalize, read_inputs, written
from headstart.server.errors import wrong_value
from headstart.server.infill import fill_in
from headstart.server.media import Media
from headstart.server.ollama_dialect import (
    OLLAMA_VERSION,
    OllamaBody,
    OllamaChatBody,
    OllamaDialect,
    OllamaEmbedBody,
    OllamaGenerateBody,
    chat_body,
    chat_fields,
    chat_of_prompt,
    generate_fields,
    listed_model,
    loaded_model,
    nanoseconds,
    refuse,
    text_fields,
    written_time,
)
from headstart.server.prompts import Prompt, read_prompts
from headstart.server.routing import Routes, json_response
from headstart.server.schemas import CompletionBody
from headstart.server.service import Service, service_of
from headstart.types import Vocab
from headstart.types.errors import RequestError
from headstart.types.report import EmbeddingInfo
from headstart.types.request import EmbeddingEvent

routes = Routes()


@routes.get("/api/version", answer="`version`: of the Ollama whose API this is a subset of")
async def ollama_version(http: HttpRequest) -> dict[str, Any]:
    """Return the version of Ollama's API."""
    return {"version": OLLAMA_VERSION}


@routes.get("/api/tags", answer="`models`: a list with the model")
async def ollama_tags(http: HttpRequest) -> dict[str, Any]:
    """List the one model as Ollama lists those on disk."""
    return {"models": [ollama_model(service_of(http))]}


@routes.get("/api/ps", answer="`models`: a list with the model")
async def ollama_ps(http: HttpRequest) -> dict[str, Any]:
    """List the one model as Ollama lists those in memory."""
    service = service_of(http)
    return {"models": [loaded_model(ollama_model(service), service.info.context_size)]}


@routes.post("/api/show", answer="`details`, `model_info`, `capabilities`")
async def ollama_show(http: HttpRequest, body: OllamaBody) -> dict[str, Any]:
    """Describe the model."""
    service = service_of(http)
    target = service.info.target
    facts = {
        "general.parameter_count": target.num_params,
        f"{target.architecture}.context_length": target.train_context_size,
        f"{target.architecture}.embedding_length": target.embedding_size,
        f"{target.architecture}.block_count": target.num_layers,
    }
    return {
        "modelfile": f"FROM {service.served.alias}\n",
        "parameters": f"num_ctx {service.info.context_size}",
        "template": service.served.template.source,
        "details": ollama_model(service)["details"],
        "model_info": dict(target.metadata) | facts,
        "capabilities": _capabilities(service),
        "modified_at": written_time(service.started_at),
    }


@routes.post(
    "/api/chat", answer="lines of JSON with `message`; the last has `done` and the durations"
)
async def ollama_chat(http: HttpRequest, request: OllamaChatBody) -> Response | dict[str, Any]:
    """Answer messages."""
    if not request.messages:
        return _loaded(http, request.model, chat_fields())
    dialect = partial(OllamaDialect, chat_fields, request.model)
    return await answer_chat(http, lambda: chat_body(request), "ollama-", dialect)


@routes.post(
    "/api/generate", answer="lines of JSON with `response`; the last has `done` and the durations"
)
async def ollama_generate(
    http: HttpRequest, request: OllamaGenerateBody
) -> Response | dict[str, Any]:
    """Answer a prompt, continue it (`raw`), or fill in before a `suffix`."""
    refuse(request)
    if not (request.prompt or request.suffix):
        return _loaded(http, request.model, generate_fields())
    dialect = partial(OllamaDialect, generate_fields, request.model)
    if not (request.raw or request.suffix):
        return await answer_chat(http, lambda: chat_of_prompt(request), "ollama-", dialect)
    num_logprobs = request.top_logprobs if request.logprobs else None
    own = {"prompt": request.prompt, "logprobs": num_logprobs}
    body = make_body(CompletionBody, text_fields(request) | own)
    call = new_call(http, "ollama-")

    def read(_: Media) -> list[Prompt]:
        vocab, info = call.model.vocab, call.info
        if request.suffix:
            return [fill_in((request.prompt, request.suffix), vocab, info)]
        return read_prompts(request.prompt, vocab, info.context_size)

    return await answer(http, call, body, read, dialect)


@routes.post("/api/embed", answer="`embeddings`: a list of vectors")
async def ollama_embed(http: HttpRequest, request: OllamaEmbedBody) -> Response:
    """Turn texts into vectors of length 1."""
    started = time.monotonic()
    service = service_of(http)
    texts = [request.input] if isinstance(request.input, str) else request.input
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise wrong_value("input", request.input, "a text or a list of them")
    size = _embedding_info(service).size
    if request.dimensions is not None and not 1 <= request.dimensions <= size:
        raise wrong_value("dimensions", request.dimensions, f"from 1 to {size}")
    event = await _embed(http, texts, truncates=request.truncate) if texts else None

    def response() -> Response:
        vectors = event.vectors if event else ()
        return json_response(
            {
                "model": request.model or service.served.alias,
                "embeddings": [
                    written(normalize(v[:, : request.dimensions], 2)[0]) for v in vectors
                ],
                "total_duration": nanoseconds(time.monotonic() - started),
                "load_duration": 0,
                "prompt_eval_count": event.num_tokens if event else 0,
            }
        )

    return await service.answer_threads.run_for(http, response)


@routes.post("/api/embeddings", answer="`embedding`: a vector")
async def ollama_embeddings(http: HttpRequest, request: OllamaEmbedBody) -> dict[str, Any]:
    """Turn a text into a vector that is not normalized."""
    service = service_of(http)
    _embedding_info(service)
    if not request.prompt:
        return {"embedding": []}
    event = await _embed(http, [request.prompt], truncates=True)
    return {"embedding": event.vectors[0][0]}


def _loaded(http: HttpRequest, model: str | None, fields: dict[str, Any]) -> dict[str, Any]:
    """Answer a request without a prompt, which loads the model."""
    call = new_call(http, "ollama-")
    named = {"model": model or call.model.alias, "created_at": written_time(time.time())}
    return {**named, **fields, "done": True, "done_reason": "load"}


def _embedding_info(service: Service) -> EmbeddingInfo:
    info = embedding_info(service)
    if info.pooling == "none":
        raise RequestError("this server does not pool vectors; start with --pooling mean")
    return info


async def _embed(http: HttpRequest, texts: list[str], *, truncates: bool) -> EmbeddingEvent:
    service = service_of(http)
    info, vocab = _embedding_info(service), service.served.vocab
    check_length("input", texts, MAX_INPUTS, "texts")

    def read() -> list[Sequence[int]]:
        if not truncates:
            return read_inputs(texts, vocab, info)
        return [_cut(text, vocab, info) for text in texts]

    return await embed(http, read)


def _cut(text: str, vocab: Vocab, info: EmbeddingInfo) -> list[int]:
    """Truncate to the limit of tokens; the last one stays, as it may be an end marker."""
    shortened = text[: 8 * info.max_tokens]
    tokens = vocab.tokenize(shortened, add_special=True, parse_special=True)
    if not tokens:
        raise RequestError("Input content cannot be empty")
    if len(tokens) > info.max_tokens:
        return [*tokens[: info.max_tokens - 1], tokens[-1]]
    return tokens


def ollama_model(service: Service) -> dict[str, Any]:
    """The model as Ollama lists it."""
    target = service.info.target
    meta = {"size": target.size_bytes, "n_params": target.num_params, "ftype": target.file_type}
    alias, since = service.served.alias, service.started_at
    return listed_model(alias, target.path, since, meta, target.architecture)


def _capabilities(service: Service) -> list[str]:
    found, info = service.served.answer_format, service.info
    fim = service.served.vocab.fim
    return [
        name
        for name, is_there in (
            ("completion", not info.why_no_text),
            ("tools", found.calls is not None and not info.why_no_text),
            ("thinking", found.thinking is not None and not info.why_no_text),
            ("vision", "image" in info.modalities),
            ("insert", None not in (fim.prefix, fim.suffix, fim.middle)),
            ("embedding", info.embedding is not None),
        )
        if is_there
    ]
