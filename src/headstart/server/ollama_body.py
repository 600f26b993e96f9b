"""Bodies of Ollama's API, and how they become chat bodies."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from headstart.server.body import Body, Int, make_body
from headstart.server.errors import not_supported, wrong_value
from headstart.server.schemas import ChatBody

# Ollama's option -> field of chat
OPTIONS = {
    name: name
    for name in (
        "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_last_n", "repeat_penalty",
        "presence_penalty", "frequency_penalty", "seed", "stop", "mirostat",
    )
} | {"num_predict": "n_predict", "draft_num_predict": "speculative.n_max"}  # fmt: skip
NO_LIMIT = -1


class OllamaBody(Body):
    """Fields of all requests."""

    model: str | None = Field(default=None, description="any name: there is one model")
    options: dict[str, Any] = Field(
        default_factory=dict, description="temperature, num_predict, ...; those of loading: ignored"
    )
    keep_alive: Any = Field(default=None, description="ignored: the model stays loaded")


class OllamaTextBody(OllamaBody):
    """Fields of requests for text."""

    stream: bool = True
    format: Any = Field(default=None, description="json, or a JSON schema")
    think: Any = Field(default=None, description="true, false, or low, medium, high")


class OllamaChatBody(OllamaTextBody):
    """POST /api/chat."""

    messages: list[dict[str, Any]] = Field(default_factory=list)
    tools: list[Any] = Field(default_factory=list)


class OllamaGenerateBody(OllamaTextBody):
    """POST /api/generate."""

    prompt: str = ""
    suffix: str | None = Field(default=None, description="what comes after the text to fill in")
    system: str | None = None
    raw: bool = Field(default=False, description="the prompt as it is, without the chat template")
    images: list[Any] = Field(default_factory=list, description="base64")
    template: str | None = Field(default=None, description="refused")
    context: list[Int] = Field(default_factory=list, description="refused")


class OllamaEmbedBody(OllamaBody):
    """POST /api/embed."""

    input: Any = Field(default=None, description="a text or a list of texts")
    truncate: bool = Field(default=True, description="cut what is too long, rather than refuse it")
    dimensions: Int | None = None


class OllamaEmbeddingsBody(OllamaBody):
    """POST /api/embeddings."""

    prompt: str = ""


class OllamaShowBody(Body):
    """POST /api/show."""

    model: str | None = None
    name: str | None = Field(default=None, description="the same as model")


def text_fields(body: OllamaTextBody) -> dict[str, Any]:
    """The fields that all bodies for text share, under chat's names.

    Raises:
        RequestError: `format` is neither json nor a schema.
    """
    options = body.options
    data = {OPTIONS[name]: value for name, value in options.items() if name in OPTIONS}
    if isinstance(limit := data.get("n_predict"), int) and limit < NO_LIMIT:
        data["n_predict"] = NO_LIMIT  # -2 means until the context is full
    match body.format:
        case None | "":
            pass
        case "json":
            data["response_format"] = {"type": "json_object"}
        case dict():
            data["json_schema"] = body.format
        case _:
            raise wrong_value("format", body.format, "json or a JSON schema")
    return data | {"stream": body.stream}


def chat_body(body: OllamaChatBody) -> ChatBody:
    """The request as a chat.

    Raises:
        HeadstartError: it contains something that is not supported.
    """
    data = _chat_fields(body)
    data["messages"] = [_message(i, message) for i, message in enumerate(body.messages)]
    if body.tools:
        data["tools"] = body.tools
    return make_body(ChatBody, data)


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
    if body.images and (body.raw or body.suffix is not None):
        raise not_supported("images with raw or a suffix are not supported; leave out one of them")


def _chat_fields(body: OllamaTextBody) -> dict[str, Any]:
    data = text_fields(body)
    match body.think:
        case None:
            pass
        case bool():
            data["chat_template_kwargs"] = {"enable_thinking": body.think}
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
    """Of a chat message: images come before the text, as at Ollama."""
    if not images:
        return text
    parts = [{"type": "image_url", "image_url": {"url": image}} for image in images]
    return [*parts, {"type": "text", "text": text}]
