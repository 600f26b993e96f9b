"""Extracts the text of a request, for comparing prefixes, and what its answer says of itself.

The text of the next turn of a conversation begins with that of this turn. It is not what the model
reads (the replica applies the template), but it grows as that does. Knows the bodies of OpenAI's,
Anthropic's, Ollama's and llama-server's paths; of others, nothing.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import orjson

from headstart.gateway.balancer.learned import Timings, block_hashes
from headstart.server.body import read_object

TURN, PART = b"\x1e", b"\x1f"
MAX_TEXT_BYTES = 2**20  # of a conversation; what is longer is known by its beginning
MAX_ANSWER_BYTES = 2**21  # of a line; what is longer is not read


@dataclass(frozen=True, slots=True)
class Asked:
    """The parts of a request that the balancer uses."""

    text: bytes = b""
    blocks: list[int] = field(default_factory=list)  # hashes of the text's blocks
    max_tokens: int | None = None
    conversation: str = ""
    needs: str = ""  # a stored response, which one replica has


def read(body: bytes, namespace: str = "") -> Asked:
    """Read a body; the text is empty if it is not a JSON object of a known form.

    Raises:
        RequestError: it begins as a JSON object, and is damaged or beyond the limits of structure.
    """
    if not body[:64].lstrip().startswith(b"{"):
        return Asked()
    found = read_object(body)
    said = b"".join(_said(found))
    if not said:
        return Asked()
    # most templates write them before the messages, so a change in them is one at the beginning
    names = ("model", "tools", "system", "instructions", "chat_template_kwargs")
    head = b"".join([namespace.encode(), *(_plain(found.get(name)) for name in names)])
    text = (blake2b(head, digest_size=16).digest() + said)[:MAX_TEXT_BYTES]
    known = ("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict")
    limits = [found[name] for name in known if isinstance(found.get(name), int)]
    return Asked(
        text=text,
        blocks=block_hashes(text),
        max_tokens=limits[0] if limits and limits[0] > 0 else None,
        conversation=_name(found, text),
        needs=_text(found.get("previous_response_id")),
    )


def _said(body: Mapping[str, Any]) -> Iterator[bytes]:
    messages = body.get("messages")
    if isinstance(messages, list):
        yield from map(_turn, messages)
        return
    if isinstance(body.get("input"), list):
        yield from map(_turn, body["input"])
        return
    for name in ("input_extra", "input", "input_prefix", "prompt", "input_suffix"):
        yield _plain(body.get(name))


def _turn(message: object) -> bytes:
    if not isinstance(message, dict):
        return TURN + _plain(message)
    role = message.get("role")
    calls = _plain(message.get("tool_calls"))
    said = _plain(message.get("content", message.get("output")))
    return TURN + _plain(role) + PART + said + calls


def _plain(value: object) -> bytes:
    """Encode a value so that values with a common prefix have encodings with a common prefix."""
    match value:
        case None:
            return b""
        case str():
            return value.encode("utf-8", "surrogatepass")
        case list() if value and all(isinstance(one, int) for one in value):
            return b"".join(struct.pack("<q", one & (2**63 - 1)) for one in value)
        case list():
            return b"".join(map(_part, value))
        case _:
            return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)


def _part(part: object) -> bytes:
    """One piece of a message's content; a text counts as if it stood alone."""
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return _plain(part["text"])
    return _plain(part)


def _name(body: Mapping[str, Any], text: bytes) -> str:
    """A hash of the client's name for the conversation, or of its text up to the first answer."""
    for key in ("prompt_cache_key", "session_id"):
        if name := _text(body.get(key)):
            text = name.encode("utf-8", "surrogatepass")
            break
    else:
        text = text.partition(TURN + b"assistant" + PART)[0]
    return blake2b(text, digest_size=12).hexdigest()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


class AnswerFacts:
    """Reads what an answer says of itself while it is relayed."""

    def __init__(self, *, is_stream: bool) -> None:
        self.timings: Timings | None = None
        self.stored_id = ""  # of a response that the replica may have kept
        self._is_stream = is_stream
        self._rest = b""

    def add(self, piece: bytes) -> None:
        """Read the next piece of the body."""
        data = self._rest + piece
        lines: list[bytes] = []
        if self._is_stream:
            *lines, data = data.split(b"\n")
        self._rest = data if len(data) <= MAX_ANSWER_BYTES else b""
        for line in lines:
            self._read(line.removeprefix(b"data: "))

    def end(self) -> None:
        """The body is over."""
        self._read(self._rest)
        self._rest = b""

    def _read(self, data: bytes) -> None:
        # most events of a stream have neither
        if not re.search(rb'"timings"|"object": ?"response"', data):
            return
        try:
            found = orjson.loads(data)
        except orjson.JSONDecodeError:
            return
        if isinstance(found, dict):
            response = found.get("response", found)
            if isinstance(response, dict) and response.get("object") == "response":
                self.stored_id = _text(response.get("id"))
            self.timings = Timings.of(found) or self.timings
