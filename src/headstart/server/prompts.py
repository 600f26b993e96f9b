"""Prompts as token ids: the shapes that `prompt` may have, and chat messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headstart.server.errors import ApiError, not_supported, shorten
from headstart.server.limits import MAX_PROMPTS
from headstart.server.model import ServedModel
from headstart.server.schemas import ChatBody
from headstart.text.chat_template import content_text
from headstart.types import Vocab


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads, and the text that `echo` puts before the answer."""

    tokens: Sequence[int]
    text: str
    echo: str


def read_prompts(prompt: Any, vocab: Vocab) -> list[Prompt]:
    """Read one prompt or a list of prompts.

    A list is one prompt if it holds a token id, else a list of prompts.
    """
    if isinstance(prompt, list) and not any(_is_id(part) for part in prompt):
        if not prompt:
            raise ApiError(400, "prompt is an empty list; give at least one text or token id")
        if len(prompt) > MAX_PROMPTS:
            raise ApiError(
                400,
                f"prompt is a list of {len(prompt)} prompts but one call takes at most "
                f"{MAX_PROMPTS}",
            )
        return [_read_prompt(part, vocab) for part in prompt]
    return [_read_prompt(prompt, vocab)]


def _read_prompt(prompt: Any, vocab: Vocab) -> Prompt:
    if isinstance(prompt, dict):
        if prompt.get("multimodal_data"):
            raise not_supported("multimodal_data is not supported: this server reads text only")
        prompt = prompt.get("prompt_string")
    tokens = tokenize_mixed(prompt, vocab, field="prompt", add_special=True)
    return _prompt(tokens, prompt if isinstance(prompt, str) else tokens_text(tokens, vocab))


def _prompt(tokens: list[int], text: str, echo: str | None = None) -> Prompt:
    if not tokens:
        raise ApiError(
            400, "the prompt is empty and this model has no start token; give it some text"
        )
    return Prompt(tokens, text, text if echo is None else echo)


def tokenize_mixed(
    content: Any, vocab: Vocab, *, field: str, add_special: bool, parse_special: bool = True
) -> list[int]:
    """Token ids of a text, or of a list of texts and token ids; only a leading text gets a start
    token.
    """
    parts = content if isinstance(content, list) else [content]
    tokens: list[int] = []
    for index, part in enumerate(parts):
        if isinstance(part, str):
            tokens += vocab.tokenize(
                part, add_special=add_special and index == 0, parse_special=parse_special
            )
        elif _is_id(part):
            tokens.append(check_token(part, vocab, field))
        else:
            raise ApiError(
                400,
                f"{field} must be a text, token ids, or a list of these; it holds {shorten(part)}",
            )
    return tokens


def check_token(token: int, vocab: Vocab, field: str) -> int:
    """Return the token id if the vocabulary has it."""
    if not 0 <= token < vocab.size:
        raise ApiError(
            400, f"{field} holds token id {token} but this vocabulary has ids 0 to {vocab.size - 1}"
        )
    return token


def tokens_text(tokens: Sequence[int], vocab: Vocab) -> str:
    """The text of tokens, markers spelled out."""
    return b"".join(vocab.token_text(token) for token in tokens).decode("utf-8", "replace")


def read_chat(body: ChatBody, model: ServedModel) -> Prompt:
    """Render and tokenize the messages."""
    text, prefill = render_chat(body, model)
    return _prompt(model.vocab.tokenize(text, add_special=True, parse_special=True), text, prefill)


def render_chat(body: ChatBody, model: ServedModel) -> tuple[str, str]:
    """The prompt text, and the beginning of the answer that the last message fixes.

    Without the start token if tokenizing adds it.
    """
    _refuse_tools(body)
    messages = [_check_message(index, message) for index, message in enumerate(body.messages)]
    if not messages:
        raise ApiError(400, "messages is empty; give at least one message")
    prefill = ""
    if is_continued := _continues(body):
        prefill = content_text(messages.pop().get("content"))
    template = model.template
    text = template.render(
        messages,
        add_generation_prompt=is_continued or body.add_generation_prompt is not False,
        arguments=_template_arguments(body),
    )
    if model.vocab.add_bos and template.bos_token:
        text = text.removeprefix(template.bos_token)
    return text + prefill, prefill


def _refuse_tools(body: ChatBody) -> None:
    if body.tools and body.tool_choice != "none":
        raise not_supported(
            'tools are not supported yet; leave them out or set "tool_choice": "none"'
        )


def _check_message(index: int, message: dict[str, Any]) -> dict[str, Any]:
    """Return the message if it has a role and nothing but text."""
    where, role, content = f"messages.{index}", message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise ApiError(400, f"{where}.role is required and must be a text, for instance user")
    if content is None and role != "assistant":
        raise ApiError(400, f"{where}.content is required")
    if content is None or isinstance(content, str):
        return message
    if not isinstance(content, list):
        raise ApiError(
            400, f"{where}.content must be a text or a list of parts, not {shorten(content)}"
        )
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise not_supported(
                f"{where}.content has a part of type {shorten(kind)}: this server reads text only"
            )
        if not isinstance(part.get("text"), str):
            raise ApiError(400, f"{where}.content has a text part without a text")
    return message


def _continues(body: ChatBody) -> bool:
    """Whether the answer goes on where the last message ends."""
    wish = body.continue_final_message
    if wish not in (None, True, False, "content"):
        raise not_supported(
            f"continue_final_message is {shorten(wish)} but must be true, false or content"
        )
    roles = [message.get("role") for message in body.messages]
    if wish and roles[-1:] != ["assistant"]:
        raise ApiError(400, "continue_final_message needs a last message of role assistant")
    if wish and body.add_generation_prompt:
        raise ApiError(
            400,
            "add_generation_prompt and continue_final_message exclude each other; set one of them",
        )
    if wish is False or roles[-1:] != ["assistant"]:
        return False
    if roles[-2:] == ["assistant", "assistant"]:
        raise ApiError(400, "the last two messages are both of role assistant; join them")
    if body.messages[-1].get("tool_calls"):
        raise ApiError(400, "an assistant message with tool_calls cannot be continued")
    return True


def _template_arguments(body: ChatBody) -> dict[str, Any]:
    arguments = dict(body.chat_template_kwargs)
    if body.reasoning_effort == "none":
        arguments["enable_thinking"] = False
    elif body.reasoning_effort:
        arguments["reasoning_effort"] = body.reasoning_effort
    return arguments


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
