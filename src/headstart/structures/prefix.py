"""Common prefixes of token lists and texts, at C speed."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import compress, count
from operator import ne
from typing import AnyStr, TypeVar

Tokens = TypeVar("Tokens", bound=Sequence[object])
_CHUNK = 256


def packed(tokens: Iterable[int]) -> array[int]:
    """Tokens in a compact format: four bytes each. An array is returned as is."""
    return tokens if isinstance(tokens, array) else array("i", tokens)


def common_prefix_length(a: Tokens, b: Tokens, start: int = 0) -> int:
    """Number of equal leading tokens, given that the first `start` are equal.

    Both must have the same type: an array never equals a list.
    """
    limit = min(len(a), len(b))
    if limit <= _CHUNK and not start:
        return next(compress(count(), map(ne, a, b)), limit)
    at, size = min(start, limit), _CHUNK
    while at < limit and a[at : at + size] == b[at : at + size]:
        at, size = min(at + size, limit), 2 * size
    while size > _CHUNK:  # they differ before at + size
        size //= 2
        if a[at : at + size] == b[at : at + size]:
            at = min(at + size, limit)
    end = min(at + _CHUNK, limit)
    return next(compress(count(at), map(ne, a[at:end], b[at:end])), end)


def num_begun(text: AnyStr, marks: Sequence[AnyStr], start: int = 0) -> int:
    """Length of the longest end of text[start:] that is a proper prefix of one of the marks."""
    for length in range(min(len(text) - start, max(map(len, marks), default=0) - 1), 0, -1):
        end = text[len(text) - length :]
        if any(len(mark) > length and mark.startswith(end) for mark in marks):
            return length
    return 0
