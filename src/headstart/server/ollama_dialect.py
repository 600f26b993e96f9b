"""Writes answers in Ollama's format: one line of JSON per piece, durations in nanoseconds."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from pydantic import ConfigDict, Field

from headstart.server.body import Body, Int, Many, make_body
from headstart.server.dialect import Choice, Chunk, Dialect, Piece, call_arguments
from headstart.server.errors import not_supported, wrong_value
from headstart.server.schemas import ChatBody, GenerationBody, shared_fields, switch_thinking
from headstart.server.translate import Call
from headstart.text.toolcalls.events import (
    AnswerMessage,
    CallArguments,
    Content,
    Thoughts,
    ToolCall,
)

# Ollama's option -> field of chat
OPTIONS = {
    name: name
    for name in (
        "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_last_n", "repeat_penalty",
        "presence_penalty", "frequency_penalty", "seed", "stop", "mirostat",
    )
} | {
    "num_predict": "n_predict", "num_keep": "n_keep", "draft_num_predict": "speculative.n_max"
}  # fmt: skip


class OllamaBody(Body):
    """POST /api/show, and fields of all requests."""

    model: str | None = Field(  # repeated in each line of the answer
        default=None, max_length=1024, description="any name: there is one model"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="temperature, num_predict, ...; those of loading: ignored"
    )


class OllamaTextBody(OllamaBody):
    """Fields of requests for text; further fields of chat are accepted too."""

    model_config = ConfigDict(extra="allow")

    stream: bool = True
    format: Any = Field(default=None, description="json, or a JSON schema")
    think: Any = Field(default=None, description="true, false, or low, medium, high")
    logprobs: bool = False
    top_logprobs: Int = Field(default=0, description="alternatives per token, with logprobs")


class OllamaChatBody(OllamaTextBody):
    """POST /api/chat."""

    messages: Many[dict[str, Any]] = Field(default_factory=list)
    tools: list[Any] = Field(default_factory=list)


class OllamaGenerateBody(OllamaTextBody):
    """POST /api/generate."""

    prompt: str = ""
    suffix: str = Field(default="", description="what comes after the text to fill in")
    system: str | None = None
    raw: bool = Field(default=False, description="the prompt as it is, without the chat template")
    images: list[Any] = Field(default_factory=list, description="base64")
    template: str | None = Field(default=None, description="refused")
    context: Many[Int] = Field(default_factory=list, description="refused")


class OllamaEmbedBody(OllamaBody):
    """POST /api/embed and /api/embeddings."""

    prompt: str = Field(default="", description="of /api/embeddings, the text")
    input: Any = Field(default=None, description="a text or a list of texts")
    truncate: bool = Field(default=True, description="cut what is too long, rather than refuse it")
    dimensions: Int | None = None


def text_fields(body: OllamaTextBody) -> dict[str, Any]:
    """The common fields of text bodies, under chat's names.

    Raises:
        RequestError: `format` is neither json nor a schema.
    """
    data = shared_fields(body) | {"stream": body.stream}
    data |= {OPTIONS[name]: value for name, value in body.options.items() if name in OPTIONS}
    if isinstance(limit := data.get("n_predict"), int) and limit < -1:
        data["n_predict"] = -1  # -2 means until the context is full
    match body.format:
        case None | "":
            pass
        case "json":
            data["response_format"] = {"type": "json_object"}
        case dict():
            data["json_schema"] = body.format
        case _:
            raise wrong_value("format", body.format, "json or a JSON schema")
    return data


def chat_body(body: OllamaChatBody) -> ChatBody:
    """The request as a chat.

    Raises:
        HeadstartError: it contains something that is not supported.
    """
    data = _chat_fields(body)
    messages = [_message(i, message) for i, message in enumerate(body.messages)]
    return make_body(ChatBody, data | {"messages": messages, "tools": body.tools})


def chat_of_prompt(body: OllamaGenerateBody) -> ChatBody:
    """A prompt as one message of a chat."""
    system = [{"role": "system", "content": body.system}] if body.system else []
    messages = [*system, {"role": "user", "content": _content(body.prompt, body.images)}]
    return make_body(ChatBody, _chat_fields(body) | {"messages": messages})


def refuse(body: OllamaGenerateBody) -> None:
    """Raise ApiError for fields that are not supported."""
    for name in ("template", "context"):
        if getattr(body, name):
            raise not_supported(f"{name} is not supported; leave it out")
    if body.images and (body.raw or body.suffix):
        raise not_supported("images with raw or a suffix are not supported; leave out one of them")
    if body.system and body.raw:
        raise not_supported("system with raw is not supported; put it into the prompt")


def _chat_fields(body: OllamaTextBody) -> dict[str, Any]:
    data = text_fields(body)
    if body.logprobs:
        data |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    match body.think:
        case None:
            pass
        case bool():
            switch_thinking(data, body.think)
        case str():
            data["reasoning_effort"] = body.think
        case _:
            raise wrong_value("think", body.think, "true, false, low, medium or high")
    return data


def _message(index: int, message: dict[str, Any]) -> dict[str, Any]:
    """A message in OpenAI's form, which names some fields differently."""
    converted = {name: message[name] for name in ("role", "tool_calls") if message.get(name)}
    images = message.get("images") or []
    if not isinstance(images, list):
        raise wrong_value(f"messages.{index}.images", images, "a list of base64 texts")
    converted["content"] = _content(message.get("content") or "", images)
    if thoughts := message.get("thinking"):
        converted["reasoning_content"] = thoughts
    if name := message.get("tool_name"):
        converted |= {"name": name, "tool_call_id": name}
    return converted


def _content(text: Any, images: list[Any]) -> Any:
    """Content of a chat message: images precede the text, as in Ollama."""
    if not images:
        return text
    parts = [{"type": "image_url", "image_url": {"url": image}} for image in images]
    return [*parts, {"type": "text", "text": text}]


OLLAMA_VERSION = "0.12.6"  # some clients reject older ones


def listed_model(
    name: str, path: str, since: float, meta: Mapping[str, Any], architecture: str = ""
) -> dict[str, Any]:
    """An entry of the list of models on disk; `path` makes the digest unique.

    `meta`: facts of the file, as /v1/models names them; empty where unknown.
    """
    size_bytes, billions = meta.get("size", 0), meta.get("n_params", 0) / 1e9
    parameters = f"{billions:.1f}B" if billions >= 1 else f"{1000 * billions:.2f}M"
    return {
        "name": name,
        "model": name,
        "modified_at": written_time(since),
        "size": size_bytes,
        "digest": hashlib.sha256(f"{path}\0{size_bytes}".encode()).hexdigest(),
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": architecture,
            "families": [architecture] if architecture else [],
            "parameter_size": parameters if billions else "",
            "quantization_level": meta.get("ftype", ""),
        },
    }


def loaded_model(listed: dict[str, Any], context_size: int) -> dict[str, Any]:
    """An entry of the list of models in memory."""
    stays = "2318-01-01T00:00:00Z"
    return listed | {"expires_at": stays, "size_vram": 0, "context_length": context_size}


def written_time(seconds: float) -> str:
    """A time in Ollama's format."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def chat_fields(content: str = "", thoughts: str = "", calls: Sequence[ToolCall] = ()) -> Chunk:
    """A part of a message, for /api/chat."""
    message: Chunk = {"role": "assistant", "content": content}
    if thoughts:
        message["thinking"] = thoughts
    if calls:
        message["tool_calls"] = [
            {
                "id": one.call_id,
                "function": {"name": one.name, "arguments": call_arguments(one.arguments)},
            }
            for one in calls
        ]
    return {"message": message}


def generate_fields(content: str = "", thoughts: str = "", calls: Sequence[ToolCall] = ()) -> Chunk:
    """A part of a text, for /api/generate, whose requests have no tools."""
    return {"response": content} | ({"thinking": thoughts} if thoughts else {})


class OllamaDialect(Dialect):
    """Lines of /api/chat or /api/generate; `model` is the name in the request."""

    media_type = "application/x-ndjson"

    def __init__(
        self,
        fields: Callable[..., Chunk],
        model: str | None,
        call: Call,
        body: GenerationBody,
        choices: list[Choice],
    ) -> None:
        """`fields` is `chat_fields` or `generate_fields`."""
        super().__init__(call, body, choices)
        self._fields = fields
        self._model = model or call.model.alias
        self._call = AnswerMessage()  # with the call that has begun, if any
        self._logprobs: list[Chunk] = []  # for the next line

    def encode(self, chunk: Chunk) -> bytes:
        return orjson.dumps(chunk) + b"\n"

    def deltas(self, choice: Choice, piece: Piece) -> list[Chunk]:
        self._logprobs += self.probabilities(choice, piece.logprobs)
        lines = []
        for event in piece.events:
            match event:
                case Content(text):
                    lines.append(self._line(self._fields(text), is_done=False))
                case Thoughts(text):
                    lines.append(self._line(self._fields(thoughts=text), is_done=False))
                case ToolCall():  # the call before it is complete
                    lines += self._take_call()
                    self._call.add([event])
                case CallArguments():
                    self._call.add([event])
        return lines

    def closing(self, choice: Choice) -> list[Chunk]:
        last = self._line(self._fields(), is_done=True) | self._end(choice)
        return [*self._take_call(), last]

    def whole(self) -> Chunk:
        (choice,) = self.choices
        found = choice.message
        fields = self._fields(found.content, found.thoughts, found.calls)
        self._logprobs = self.probabilities(choice, choice.logprobs)
        return self._line(fields, is_done=True) | self._end(choice)

    def _take_call(self) -> list[Chunk]:
        """A line with the call not sent yet, if there is one."""
        calls, self._call = self._call.calls, AnswerMessage()
        return [self._line(self._fields(calls=calls), is_done=False)] if calls else []

    def _line(self, fields: Chunk, *, is_done: bool) -> Chunk:
        logprobs, self._logprobs = self._logprobs, []
        return {
            "model": self._model,
            "created_at": written_time(time.time()),
            **fields,
            **({"logprobs": logprobs} if logprobs else {}),
            "done": is_done,
        }

    def _end(self, choice: Choice) -> Chunk:
        stats = choice.stats
        total = stats.queue_seconds + stats.prompt_seconds + stats.generation_seconds
        return {
            "done_reason": "length" if choice.finish_reason == "length" else "stop",
            "total_duration": nanoseconds(total),
            "load_duration": 0,
            "prompt_eval_count": stats.num_prompt,
            "prompt_eval_duration": nanoseconds(stats.prompt_seconds),
            "eval_count": stats.num_emitted,
            "eval_duration": nanoseconds(stats.generation_seconds),
        }


def nanoseconds(seconds: float) -> int:
    """Convert seconds to Ollama's unit."""
    return int(seconds * 1e9)
