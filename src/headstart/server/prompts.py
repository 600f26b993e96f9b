"""Turns prompts and chat messages into token ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headstart.server.body import MAX_PROMPTS, check_length, is_id
from headstart.server.errors import shorten
from headstart.server.media import MARKER, Media, prompt_media
from headstart.text.toolcalls.reader import Start
from headstart.types import Vocab
from headstart.types.errors import ContextLengthError, RequestError
from headstart.types.media import MediaChunk, MediaPart

MAX_TOKENS = 1 << 24  # unless a lower limit applies


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's tokens and text, and the text that `echo` puts before the answer."""

    tokens: Sequence[int]
    text: str
    echo: str
    media: tuple[tuple[int, MediaChunk], ...] = ()  # chunk and position of each image or sound
    start: Start = "answer"  # how the answer to a chat begins
    may_think: bool = True  # unless the chat's body, or the prompt's end, prevents it


def read_prompts(prompt: Any, vocab: Vocab, context_size: int, media: Media = ()) -> list[Prompt]:
    """Read one prompt or a list of prompts; a list with a token id is one prompt.

    `media`: the parts for the files of all prompts, in order (see `prompt_media`).
    """
    left = iter(media)
    prompts = prompt if isinstance(prompt, list) and not any(map(is_id, prompt)) else [prompt]
    if not prompts:
        raise RequestError("prompt is an empty list; give at least one text or token id")
    check_length("prompt", prompts, MAX_PROMPTS, "prompts")
    return [read_prompt(one, vocab, context_size, left) for one in prompts]


def read_prompt(
    prompt: Any,
    vocab: Vocab,
    limit: int,
    media: Iterator[tuple[MediaPart, ...]],
    field: str = "prompt",
) -> Prompt:
    """Read one prompt with its own files, the next of `media`."""
    if isinstance(prompt, dict):
        own = [next(media) for _ in prompt_media(prompt)]
        prompt = prompt.get("prompt_string", prompt)
        if own and isinstance(prompt, str):
            return tokenize_around(prompt, own, vocab, limit)
    tokens = tokenize_mixed(prompt, vocab, field=field, limit=limit, add_special=True)
    text = prompt if isinstance(prompt, str) else tokens_text(tokens, vocab)
    return Prompt(tokens, text, echo=text)


def tokenize_mixed(
    content: Any,
    vocab: Vocab,
    *,
    field: str,
    add_special: bool,
    parse_special: bool = True,
    limit: int = MAX_TOKENS,
) -> list[int]:
    """Token ids of a text, or of a list of texts and token ids; adds a start token to a first text.

    Raises:
        ContextLengthError: there are more than `limit`.
        RequestError: it is neither.
    """
    parts = content if isinstance(content, list) else [content]
    if len(parts) > 2 * limit and (num_ids := sum(map(is_id, parts))) > limit:
        raise ContextLengthError(num_ids, limit)
    check_length(field, parts, 2 * limit, "texts and tokens")
    tokens: list[int] = []
    for index, part in enumerate(parts):
        if isinstance(part, str):
            has_start = add_special and index == 0
            tokens += vocab.tokenize(part, add_special=has_start, parse_special=parse_special)
        elif is_id(part):
            tokens.append(check_token(part, vocab, field))
        else:
            raise RequestError(
                f"{field} must be a text, token ids, or a list of these; it holds {shorten(part)}"
            )
    if len(tokens) > limit:
        raise ContextLengthError(len(tokens), limit)
    return tokens


def tokenize_around(text: str, media: Media, vocab: Vocab, limit: int) -> Prompt:
    """A prompt whose text has a marker for each of these files.

    Raises:
        ContextLengthError: there are more than `limit` tokens.
        RequestError: there are more markers than files, or fewer.
    """
    pieces = text.split(MARKER)
    if len(pieces) != len(media) + 1:
        raise RequestError(
            f"the prompt has {len(pieces) - 1} places for files (the media_marker of /props) but "
            f"{len(media)} files"
        )
    tokens, chunks = list[int](), list[tuple[int, MediaChunk]]()
    for piece, parts in zip(pieces, [*media, ()], strict=True):
        tokens += vocab.tokenize(piece, add_special=not tokens, parse_special=True)
        for part in parts:
            if isinstance(part, MediaChunk):
                chunks.append((len(tokens), part))
            tokens += part.ids() if isinstance(part, MediaChunk) else part
    if len(tokens) > limit:
        raise ContextLengthError(len(tokens), limit)
    return Prompt(tokens, text, text, tuple(chunks))


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
