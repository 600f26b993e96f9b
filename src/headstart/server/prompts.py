"""Prompts as token ids: the shapes that `prompt` may have, and chat messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headstart.server.conversation import RenderedChat, render_chat
from headstart.server.errors import ApiError, not_supported, shorten
from headstart.server.limits import MAX_PROMPTS
from headstart.server.model import ServedModel
from headstart.server.schemas import ChatBody
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


def read_chat(chat: RenderedChat, model: ServedModel) -> Prompt:
    """Tokenize rendered messages."""
    tokens = model.vocab.tokenize(chat.text, add_special=True, parse_special=True)
    return _prompt(tokens, chat.text, chat.content)


def render_messages(body: ChatBody, model: ServedModel) -> RenderedChat:
    """The prompt text, without the start token if tokenizing adds it."""
    return render_chat(body, model.template, model.chat, adds_bos=model.vocab.add_bos)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
