"""A subset of Ollama's API: /api/chat, /api/generate, /api/embed, and what they are asked with.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from __future__ import annotations

import functools
import time
from typing import Any

import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.answer import answer
from headstart.server.body import make_body, read_body
from headstart.server.calls import make_choices, new_call
from headstart.server.dialect import Dialect
from headstart.server.embeddings import embed, embedding_info, normalize, read_inputs, tokenize_text
from headstart.server.errors import CLIENT_GONE, ApiError, error_body, log_failure, shorten
from headstart.server.infill import fill_in
from headstart.server.limits import MAX_INPUTS, check_length
from headstart.server.model import Service, service_of
from headstart.server.ollama_body import (
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaGenerateBody,
    OllamaShowBody,
    chat_body,
    chat_of_prompt,
    refuse,
    text_fields,
)
from headstart.server.ollama_dialect import (
    OllamaChatDialect,
    OllamaGenerateDialect,
    nanoseconds,
    now,
)
from headstart.server.ollama_models import (
    OLLAMA_VERSION,
    listed_model,
    loaded_model,
    model_details,
    written_time,
)
from headstart.server.prompts import Prompt, read_chat, read_prompts, render_messages
from headstart.server.routing import Handler, Routes, get, post
from headstart.server.schemas import ChatBody, NativeBody
from headstart.server.threads import ClientGoneError
from headstart.server.tool_use import prepare_reading
from headstart.server.translate import Call
from headstart.types import Vocab
from headstart.types.errors import HeadstartError
from headstart.types.report import EmbeddingInfo
from headstart.types.request import EmbeddingEvent

router = Routes()


def _in_its_form(handler: Handler) -> Handler:
    """Errors as Ollama's clients read them: {"error": message}."""

    @functools.wraps(handler)
    async def guarded(http: HttpRequest) -> Response:
        try:
            return await handler(http)
        except (ApiError, HeadstartError) as error:
            log_failure(error)
            said = error_body(error)["error"]
            headers = {"Retry-After": "1"} if said["code"] == 503 else None
            return _json({"error": said["message"]}, said["code"], headers)

    return guarded


@get(router, "/api/version", answer="`version`: of the Ollama whose API this is a subset of")
async def ollama_version(http: HttpRequest) -> Response:
    """Tell clients of Ollama what they talk to."""
    return _json({"version": OLLAMA_VERSION})


@get(router, "/api/tags", answer="`models`: a list with the model")
async def ollama_tags(http: HttpRequest) -> Response:
    """List the one model as Ollama lists those on disk."""
    return _json({"models": [_model(service_of(http))]})


@get(router, "/api/ps", answer="`models`: a list with the model")
async def ollama_ps(http: HttpRequest) -> Response:
    """List the one model as Ollama lists those in memory."""
    service = service_of(http)
    return _json({"models": [loaded_model(_model(service), service.info.context_size)]})


@post(router, "/api/show", body=OllamaShowBody, answer="`details`, `model_info`, `capabilities`")
@_in_its_form
async def ollama_show(http: HttpRequest) -> Response:
    """Describe the model."""
    await read_body(http, OllamaShowBody)
    service = service_of(http)
    target = service.info.target
    facts = {
        "general.parameter_count": target.num_params,
        f"{target.architecture}.context_length": target.train_context_size,
        f"{target.architecture}.embedding_length": target.embedding_size,
        f"{target.architecture}.block_count": target.num_layers,
    }
    return _json(
        {
            "modelfile": f"FROM {service.served.alias}\n",
            "parameters": f"num_ctx {service.info.context_size}",
            "template": service.served.template.source,
            "details": _details(service),
            "model_info": dict(target.metadata) | facts,
            "capabilities": _capabilities(service),
            "modified_at": written_time(service.started_at),
        }
    )


@post(
    router, "/api/chat", body=OllamaChatBody,
    answer="lines of JSON with `message`; the last has `done` and the durations",
)  # fmt: skip
@_in_its_form
async def ollama_chat(http: HttpRequest) -> Response:
    """Answer messages."""
    service = service_of(http)
    asked = await read_body(http, OllamaChatBody)
    call = new_call(http, service, "ollama", stop=service.served.template.stop)
    if not asked.messages:
        return _loaded(asked.model or call.model.alias, OllamaChatDialect.empty)
    body = chat_body(asked)

    def prepare() -> Dialect:
        return OllamaChatDialect(call, body, _chat_choices(body, call), asked.model)

    return await answer(http, service, prepare)


@post(
    router, "/api/generate", body=OllamaGenerateBody,
    answer="lines of JSON with `response`; the last has `done` and the durations",
)  # fmt: skip
@_in_its_form
async def ollama_generate(http: HttpRequest) -> Response:
    """Answer a prompt, continue it (`raw`), or fill in before a `suffix`."""
    service = service_of(http)
    asked = await read_body(http, OllamaGenerateBody)
    refuse(asked)
    is_plain = asked.raw or asked.suffix is not None
    stop = () if is_plain else service.served.template.stop
    call = new_call(http, service, "ollama", stop=stop)
    if not asked.prompt and asked.suffix is None:
        return _loaded(asked.model or call.model.alias, OllamaGenerateDialect.empty)
    body = _plain_body(asked) if is_plain else chat_of_prompt(asked)

    def prepare() -> Dialect:
        if isinstance(body, ChatBody):
            choices = _chat_choices(body, call)
        else:
            choices = make_choices(body, [_plain_prompt(asked, call)], call, None)
        return OllamaGenerateDialect(call, body, choices, asked.model)

    return await answer(http, service, prepare)


@post(router, "/api/embed", body=OllamaEmbedBody, answer="`embeddings`: a list of vectors")
@_in_its_form
async def ollama_embed(http: HttpRequest) -> Response:
    """Turn texts into vectors of length 1."""
    started = time.monotonic()
    service = service_of(http)
    asked = await read_body(http, OllamaEmbedBody)
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ApiError(400, f"input is {shorten(asked.input)} but must be a text or a list of them")
    size = _embedding_info(service).size
    if asked.dimensions is not None and not 1 <= asked.dimensions <= size:
        raise ApiError(400, f"dimensions is {asked.dimensions} but must be from 1 to {size}")
    try:
        event = await _embed(http, service, texts, truncates=asked.truncate) if texts else None
    except ClientGoneError:
        return Response(status_code=CLIENT_GONE)
    vectors = [normalize(v[:, : asked.dimensions], 2)[0] for v in event.vectors] if event else []
    return _json(
        {
            "model": asked.model or service.served.alias,
            "embeddings": vectors,
            "total_duration": nanoseconds(time.monotonic() - started),
            "load_duration": 0,
            "prompt_eval_count": event.num_tokens if event else 0,
        }
    )


@post(router, "/api/embeddings", body=OllamaEmbeddingsBody, answer="`embedding`: a vector")
@_in_its_form
async def ollama_embeddings(http: HttpRequest) -> Response:
    """Turn a text into a vector, as it was computed."""
    service = service_of(http)
    asked = await read_body(http, OllamaEmbeddingsBody)
    _embedding_info(service)
    if not asked.prompt:
        return _json({"embedding": []})
    try:
        event = await _embed(http, service, [asked.prompt], truncates=True)
    except ClientGoneError:
        return Response(status_code=CLIENT_GONE)
    return _json({"embedding": event.vectors[0][0]})


def _chat_choices(body: ChatBody, call: Call) -> list[Any]:
    size = call.info.context_size
    rendered = render_messages(body, call.model, size)
    choices = make_choices(body, [read_chat(rendered, call.model, size)], call, None)
    prepare_reading(body, call.model, rendered, choices)
    return choices


def _plain_body(asked: OllamaGenerateBody) -> NativeBody:
    return make_body(NativeBody, text_fields(asked) | {"prompt": asked.prompt})


def _plain_prompt(asked: OllamaGenerateBody, call: Call) -> Prompt:
    vocab, info = call.model.vocab, call.info
    if asked.suffix is None:
        return read_prompts(asked.prompt, vocab, info.context_size)[0]
    return fill_in((asked.prompt, asked.suffix), vocab, info)


def _loaded(model: str, said: dict[str, Any]) -> Response:
    """The answer to a request without a prompt, which asks to load the model."""
    return _json({"model": model, "created_at": now(), **said, "done": True, "done_reason": "load"})


def _embedding_info(service: Service) -> EmbeddingInfo:
    info = embedding_info(service)
    if info.pooling == "none":
        raise ApiError(400, "this server does not pool vectors; start with --pooling mean")
    return info


async def _embed(
    http: HttpRequest, service: Service, texts: list[str], *, truncates: bool
) -> EmbeddingEvent:
    info, vocab = _embedding_info(service), service.served.vocab
    check_length("input", texts, MAX_INPUTS, "texts")

    def read() -> list[list[int]]:
        if not truncates:
            return read_inputs(texts, vocab, info)
        return [_cut(text, vocab, info) for text in texts]

    return await embed(http, service, read)


def _cut(text: str, vocab: Vocab, info: EmbeddingInfo) -> list[int]:
    """The tokens that fit; the last one of all may be a marker and stays."""
    shortened = text[: 8 * info.max_tokens]
    tokens = tokenize_text("input", shortened, vocab, info, add_special=True)
    if not tokens:
        raise ApiError(400, "Input content cannot be empty")
    if len(tokens) > info.max_tokens:
        return [*tokens[: info.max_tokens - 1], tokens[-1]]
    return tokens


def _model(service: Service) -> dict[str, Any]:
    target = service.info.target
    return listed_model(
        service.served.alias,
        target.path,
        target.size_bytes,
        service.started_at,
        _details(service),
    )


def _details(service: Service) -> dict[str, Any]:
    target = service.info.target
    return model_details(target.architecture, target.num_params, target.file_type)


def _capabilities(service: Service) -> list[str]:
    found, info = service.served.answer_format, service.info
    fim = service.served.vocab.fim
    return [
        name
        for name, is_there in (
            ("completion", not info.why_no_text),
            ("tools", found.calls is not None and not info.why_no_text),
            ("thinking", found.thinking is not None and not info.why_no_text),
            ("insert", None not in (fim.prefix, fim.suffix, fim.middle)),
            ("embedding", info.embedding is not None),
        )
        if is_there
    ]


def _json(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    return Response(body, status, headers, media_type="application/json")
