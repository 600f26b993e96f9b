"""Limits on the sizes of fields, beyond which a request could stall or end the server.

Each error names the field, its size, the limit and the remedy.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from headstart.types.errors import RequestError

MAX_PROMPTS = 256  # answers per call
MAX_INPUTS = 2048  # texts to embed or rank per call, as in OpenAI's API
MAX_NAMES = 64  # of speculators, of fields of the answer
MAX_TOLD = 1 << 24  # characters of prompts and constraints repeated in several answers

# Of the whole body: parsing blocks all threads, and small JSON can become large objects.
MAX_FIELDS = 256
MAX_ENTRIES = 32_768  # of a list whose entries are objects or texts
ANY_LENGTH = frozenset(
    {"prompt", "tokens", "content", "input", "logit_bias", "input_prefix", "input_suffix"}
)


def check_structure(body: bytes) -> None:
    """Refuse a body of very many small parts before parsing it.

    Counts bytes, so brackets inside texts count too.

    Raises:
        RequestError: there are too many.
    """
    for what, count, limit in (
        ("texts and keys", (body.count(b'"') - body.count(b'\\"')) // 2, 100_000),
        ("lists and objects", body.count(b"[") + body.count(b"{"), 400_000),
    ):
        if count > limit:
            raise RequestError(
                f"the body holds {count} {what} but at most {limit} are read; send fewer"
            )


def check_length(field: str, value: Sized, limit: int, what: str = "entries") -> None:
    """Raise RequestError if the value is longer than the limit."""
    if len(value) > limit:
        raise RequestError(
            f"{field} holds {len(value)} {what} but at most {limit} are taken; send fewer"
        )


def is_id(value: Any) -> bool:
    """Whether a value of a body is an integer, as token ids are."""
    return isinstance(value, int) and not isinstance(value, bool)
