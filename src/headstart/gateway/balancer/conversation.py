"""Extracts the text of a request, compares beginnings of texts, and reads an answer's timings.

The text is the request's messages as JSON without the last bracket, so that each turn's text is a
prefix of the next turn's. It is not the model's prompt, but grows in the same way. Knows the bodies
of OpenAI's, Anthropic's, Ollama's and llama-server's paths only.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import takewhile
from typing import Any, NamedTuple

import orjson

from headstart.server.body import read_object

BLOCK_BYTES = 128  # some 32 tokens


@dataclass(frozen=True, slots=True)
class Asked:
    """The parts of a request that the balancer uses."""

    text: bytes = b""
    blocks: list[int] = field(default_factory=list)  # hashes of the text's blocks
    max_tokens: int | None = None
    conversation: str = ""
    needs: str = ""  # what one replica has: a stored response, or a running answer
    stream: object = None  # whether the client wants a stream, if it says so


def read(body: bytes, tenant: str = "") -> Asked:
    """Read a body; the text is empty if it is not a JSON object of a known form.

    Raises:
        RequestError: it begins as a JSON object, and is damaged or beyond the limits of structure.
    """
    if not body[:64].lstrip().startswith(b"{"):
        return Asked()
    found = read_object(body)
    texts = ("messages", "input_extra", "input", "input_prefix", "prompt", "input_suffix")
    said = b"".join(orjson.dumps(found[name])[:-1] for name in texts if found.get(name))
    # in lines or not
    base64 = rb'"(?:data:[\w/.+-]+;base64,)?([\w+/\\-]{4096,}+={0,2}[\\rn]{0,4})"'
    said = re.sub(base64, _digest, said)
    if not said:
        return Asked()
    # most templates write them before the messages, so a change in them is one at the beginning
    names = ("model", "tools", "system", "instructions", "chat_template_kwargs")
    head = orjson.dumps([tenant, *map(found.get, names)])
    # a longer conversation is known by its beginning
    text = (blake2b(head, digest_size=16).digest() + said)[: 2**20]
    known = ("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict")
    limits = [found[name] for name in known if isinstance(found.get(name), int)]
    return Asked(
        text=text,
        blocks=block_hashes(text),
        max_tokens=limits[0] if limits and limits[0] > 0 else None,
        conversation=_name(found, text),
        needs=_text(found.get("previous_response_id")),
        stream=found.get("stream"),
    )


def _digest(file: re.Match[bytes]) -> bytes:
    """In place of a file's base64, 1024 bytes: its tokens are a few hundred, whatever its size."""
    return 8 * blake2b(file[1]).hexdigest().encode()


def _name(body: Mapping[str, Any], text: bytes) -> str:
    """A hash of the client's name for the conversation, or of its text up to the first answer."""
    turns = body.get("messages") or body.get("input")
    if isinstance(turns, str):
        turns = [{"content": turns}]
    if name := _text(body.get("prompt_cache_key")) or _text(body.get("session_id")):
        text = name.encode()
    elif isinstance(turns, list) and turns and isinstance(turns[0], dict):
        asked = takewhile(lambda turn: not _is_answer(turn), turns)
        text = text[:16] + b"\0".join(map(_said, asked))
    return blake2b(text, digest_size=12).hexdigest()


def _said(turn: object) -> bytes:
    """A turn or a part of it, without what clients change later: its form and cache marks."""
    match turn:
        case {"content": str(text)} | {"text": str(text)}:
            return text.encode()
        case {"content": [*parts]}:
            return b"\0".join(map(_said, parts))
        case _:
            return orjson.dumps(turn)


def _is_answer(turn: object) -> bool:
    return isinstance(turn, dict) and (
        turn.get("role") == "assistant" or turn.get("type") in ("function_call", "reasoning")
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


class Timings(NamedTuple):
    """Numbers of an answer, in llama-server's terms: tokens and milliseconds."""

    cache_n: float = 0
    prompt_n: float = 0  # cached ones excluded
    prompt_ms: float = 0
    predicted_n: float = 0
    predicted_ms: float = 0


def timings_of(body: bytes) -> Timings | None:
    """The last timings in the end of an answer's body; None without any.

    They are searched for as bytes: within a text of JSON their quotes would be escaped.
    """
    found = re.findall(rb'"timings": ?(\{[^{}]*\})', body)
    try:
        said = orjson.loads(found[-1]) if found else {}
    except orjson.JSONDecodeError:
        said = {}
    values = [said.get(name, 0) for name in Timings._fields]
    is_valid = bool(said) and all(isinstance(one, int | float) and one >= 0 for one in values)
    return Timings(*values) if is_valid else None


def block_hashes(text: bytes) -> list[int]:
    """For each whole block, a hash of the text up to its end."""
    found, last = list[int](), 0
    for at in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        last = hash((last, text[at : at + BLOCK_BYTES]))
        found.append(last)
    return found


class Prefixes:
    """Beginnings of texts that a replica has read; the least recently used are forgotten first.

    Bytes and not tokens, because the balancer has no vocabulary: it compares the text of prompts
    before any template. A replica is believed to keep `capacity_bytes`.
    """

    def __init__(self, capacity_bytes: float = 2**25) -> None:
        self.capacity_bytes = capacity_bytes
        # oldest first; a block is never newer than the one before it in its text
        self._blocks: OrderedDict[int, None] = OrderedDict()

    @property
    def num_bytes(self) -> int:
        return len(self._blocks) * BLOCK_BYTES

    def match(self, blocks: Sequence[int]) -> int:
        """Bytes of the longest beginning of a text, in whole blocks, that was added."""
        unknown = (i for i, block in enumerate(blocks) if block not in self._blocks)
        return next(unknown, len(blocks)) * BLOCK_BYTES

    def add(self, blocks: Sequence[int]) -> None:
        """Remember a text as the newest; forget the oldest ones until all fit."""
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while self.num_bytes > self.capacity_bytes:
            self._blocks.popitem(last=False)
