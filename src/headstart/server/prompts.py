"""Turns prompts and chat messages into token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headstart.server.conversation import RenderedChat, render_chat
from headstart.server.errors import ApiError, not_supported, shorten
from headstart.server.limits import MAX_PROMPTS, check_fits, check_length, is_id
from headstart.server.model import ServedModel
from headstart.server.schemas import ChatBody
from headstart.structures.interruption import progress, watched
from headstart.text.time_limit import TimeLimitError, run_within
from headstart.types import Vocab
from headstart.types.errors import ContextLengthError, RequestError

TEMPLATE_SECONDS = 5.0  # for one conversation
WINDOW = 1 << 16  # characters counted at once


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's tokens and text, and the text that `echo` puts before the answer."""

    tokens: Sequence[int]
    text: str
    echo: str


def read_prompts(prompt: Any, vocab: Vocab, context_size: int) -> list[Prompt]:
    """Read one prompt or a list of prompts; a list with a token id is one prompt."""
    if isinstance(prompt, list) and not any(is_id(part) for part in prompt):
        if not prompt:
            raise RequestError("prompt is an empty list; give at least one text or token id")
        if len(prompt) > MAX_PROMPTS:
            raise RequestError(
                f"prompt is a list of {len(prompt)} prompts but one call takes at most "
                f"{MAX_PROMPTS}"
            )
        return [_read_prompt(part, vocab, context_size) for part in prompt]
    return [_read_prompt(prompt, vocab, context_size)]


def _read_prompt(prompt: Any, vocab: Vocab, context_size: int) -> Prompt:
    if isinstance(prompt, dict):
        if prompt.get("multimodal_data"):
            raise not_supported("multimodal_data is not supported: this server reads text only")
        prompt = prompt.get("prompt_string", prompt)
    tokens = tokenize_mixed(prompt, vocab, field="prompt", limit=context_size, add_special=True)
    return _prompt(tokens, prompt if isinstance(prompt, str) else tokens_text(tokens, vocab))


def _prompt(tokens: list[int], text: str, echo: str | None = None) -> Prompt:
    if not tokens:
        raise RequestError(
            "the prompt is empty and this model has no start token; give it some text"
        )
    return Prompt(tokens, text, text if echo is None else echo)


def tokenize_mixed(
    content: Any,
    vocab: Vocab,
    *,
    field: str,
    limit: int,
    add_special: bool,
    parse_special: bool = True,
) -> list[int]:
    """Token ids of a text, or of a list of texts and token ids; adds a start token to a first text.

    Raises:
        RequestError: it is something else, or is clearly longer than `limit` tokens.
    """
    parts = content if isinstance(content, list) else [content]
    if len(parts) > 2 * limit and (num_ids := sum(map(is_id, parts))) > limit:
        raise ContextLengthError(num_ids, limit)
    check_length(field, parts, 2 * limit, "texts and tokens")
    check_fits(sum(len(part) for part in parts if isinstance(part, str)), limit)
    tokens: list[int] = []
    for index, part in enumerate(parts):
        if isinstance(part, str):
            tokens += tokenize_within(
                limit,
                part,
                vocab,
                add_special=add_special and index == 0,
                parse_special=parse_special,
            )
        elif is_id(part):
            tokens.append(check_token(part, vocab, field))
        else:
            raise RequestError(
                f"{field} must be a text, token ids, or a list of these; it holds {shorten(part)}"
            )
    return tokens


def tokenize_within(
    limit: int, text: str, vocab: Vocab, *, add_special: bool, parse_special: bool
) -> list[int]:
    """Token ids of a text; stops early at a text of more than `limit` tokens.

    Raises:
        ApiError, ContextLengthError: there are more.
    """

    def watch(num_tokens: int) -> None:
        if num_tokens > limit:
            raise ContextLengthError(num_tokens, limit)

    check_fits(len(text), limit)
    with watched(watch):
        if len(text) > 6 * limit:  # probably too long
            _estimate(text, vocab)
        return vocab.tokenize(text, add_special=add_special, parse_special=parse_special)


def _estimate(text: str, vocab: Vocab) -> None:
    """Report a text's tokens, counted in windows, whose borders may add a few."""
    num_tokens = 0
    for start in range(0, len(text), WINDOW):
        window = text[start : start + WINDOW]
        num_tokens += len(vocab.tokenize(window, add_special=False, parse_special=True))
        progress(num_tokens - 2 * (start // WINDOW) - num_tokens // 64)


def check_token(token: int, vocab: Vocab, field: str) -> int:
    """Return the token id if the vocabulary has it."""
    if not 0 <= token < vocab.size:
        raise RequestError(
            f"{field} holds token id {token} but this vocabulary has ids 0 to {vocab.size - 1}"
        )
    return token


def tokens_text(tokens: Sequence[int], vocab: Vocab) -> str:
    """The text of tokens, special tokens spelled out."""
    return b"".join(vocab.token_text(token) for token in tokens).decode("utf-8", "replace")


def read_chat(chat: RenderedChat, model: ServedModel, context_size: int) -> Prompt:
    """Tokenize rendered messages."""
    tokens = tokenize_within(
        context_size, chat.text, model.vocab, add_special=True, parse_special=True
    )
    return _prompt(tokens, chat.text, chat.content)


def render_messages(body: ChatBody, model: ServedModel, context_size: int) -> RenderedChat:
    """The prompt text, without the start token if tokenizing adds it.

    Raises:
        HeadstartError: the messages cannot fit the context, or the template takes too long.
    """
    if len(body.messages) > context_size:  # each takes at least a token
        raise ApiError(
            400,
            f"messages holds {len(body.messages)} messages but the context only {context_size} "
            "tokens; send fewer, or start with a larger --context",
            type="exceed_context_size_error",
        )
    check_fits(sum(_num_bytes(message.get("content")) for message in body.messages), context_size)
    try:
        return run_within(
            TEMPLATE_SECONDS,
            lambda: render_chat(body, model.template, model.chat, adds_bos=model.vocab.add_bos),
        )
    except TimeLimitError as error:
        raise RequestError(
            f"the chat template took longer than {TEMPLATE_SECONDS:g} s for these messages; send "
            "less, or start with another --chat-template-file"
        ) from error


def _num_bytes(content: Any) -> int:
    """Characters of a message, a lower bound of its bytes."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return sum(len(text) for text in parts if isinstance(text, str))
    return len(content) if isinstance(content, str) else 0
