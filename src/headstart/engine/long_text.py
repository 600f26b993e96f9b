"""Where a long text may be cut so that its parts give the tokens of the whole.

libllama first cuts the markers of a vocabulary out of a text, in a time that grows with the square
of their number; 40,000 chat messages took 13 s. What lies between markers is tokenized on its own.
So a text may be cut before any marker that cannot overlap with another one: each part is then as
quick as its length, and between two parts one can stop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headstart.engine.library import api

PART_BYTES = 1 << 14  # parts are at least so long
FEW_MARKERS = 1000  # with no more than these in it a text is left whole


class Markers:
    """The markers of a vocabulary that a text may be cut at."""

    def __init__(self, handle: Any, size: int) -> None:
        controls: list[bytes] = []
        others: list[bytes] = []
        lstripped: set[bytes] = set()
        control = api.LLAMA_TOKEN_ATTR_CONTROL | api.LLAMA_TOKEN_ATTR_UNKNOWN
        for token in range(size):
            attributes = api.llama_vocab_get_attr(handle, token)
            if not attributes & (control | api.LLAMA_TOKEN_ATTR_USER_DEFINED):
                continue
            text = api.llama_vocab_get_text(handle, token)
            if not text:
                continue
            (controls if attributes & control else others).append(text)
            if attributes & api.LLAMA_TOKEN_ATTR_LSTRIP:
                lstripped.add(text)
        apart = _not_overlapping([*controls, *others]) - lstripped
        self._others = [text for text in others if text in apart]
        self._all = [text for text in controls if text in apart] + self._others
        self._first_bytes = frozenset(text[:1] for text in self._all)
        self._last = b""  # the marker that was found last is probably the next one too

    def parts(self, raw: bytes, *, parse_special: bool) -> Iterator[bytes]:
        """The text, cut where that changes nothing."""
        markers = self._all if parse_special else self._others
        if (
            len(raw) < 2 * PART_BYTES
            or sum(map(raw.count, self._first_bytes)) <= FEW_MARKERS
            or not markers
        ):
            yield raw
            return
        start, search = 0, PART_BYTES
        while search < len(raw) - PART_BYTES:
            cut = self._find(raw, search, markers)
            if cut < 0:
                search += PART_BYTES
                continue
            yield raw[start:cut]
            start, search = cut, cut + PART_BYTES
        yield raw[start:]

    def _find(self, raw: bytes, start: int, markers: list[bytes]) -> int:
        """Where a marker begins, not far after `start`; -1 if none does."""
        end = start + PART_BYTES
        if self._last in markers and (found := raw.find(self._last, start, end)) >= 0:
            return found
        for marker in markers:
            if (found := raw.find(marker, start, end)) >= 0:
                self._last = marker
                return found
        return -1


def _not_overlapping(texts: list[bytes]) -> set[bytes]:
    """Those that no other one can share a byte with in any text; none has white space at an end."""
    known = set(texts)
    heads = {text[:end] for text in known for end in range(1, len(text) + 1)}
    overlapping, shared_heads = set(), set()
    for text in known:
        for start in range(1, len(text)):
            if text[start:] in heads:  # it may end where another one has begun
                overlapping.add(text)
                shared_heads.add(text[start:])
        for start in range(len(text)):
            ends = range(start + 1, len(text) + bool(start))
            overlapping.update(part for end in ends if (part := text[start:end]) in known)
    return {
        text
        for text in known - overlapping
        if text.strip() == text
        and not any(text[:end] in shared_heads for end in range(1, len(text) + 1))
    }
