"""Texts of namespaces in sorted order: the entry with the longest common prefix with a text is next
to the text's place, so few are compared.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Generic, TypeVar

from headstart.structures.prefix import common_prefix_length
from headstart.structures.tenants import namespace_id

Item = TypeVar("Item")


def packed(tokens: Iterable[int]) -> array[int]:
    """Tokens in the compared format: four bytes each. An array is returned as is."""
    return tokens if isinstance(tokens, array) else array("i", tokens)


class PrefixIndex(Generic[Item]):
    """Items by their namespace and tokens, see `packed`; not thread-safe."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []  # sorted
        self._items: list[Item] = []  # items of these texts

    def add(self, namespace: str, tokens: array[int], item: Item) -> None:
        """Add an item; among items with equal tokens the last one is found first."""
        text = _text_of(namespace, tokens)
        at = bisect_right(self._texts, text)
        self._texts.insert(at, text)
        self._items.insert(at, item)

    def remove(self, namespace: str, tokens: array[int], item: Item) -> None:
        """Remove an item that was added with these tokens."""
        at = self._items.index(item, bisect_left(self._texts, _text_of(namespace, tokens)))
        del self._texts[at], self._items[at]

    def find(self, namespace: str, tokens: array[int]) -> tuple[Item | None, int]:
        """An item with the longest common prefix, and its length; None and 0 if there is none."""
        best: Item | None = None
        text, most = _text_of(namespace, tokens), 0
        at = bisect_right(self._texts, text)
        for near in range(max(0, at - 1), min(at + 1, len(self._texts))):
            num_common = common_prefix_length(self._texts[near], text)
            length = (num_common - _START) // tokens.itemsize
            if length > most:
                best, most = self._items[near], length
        return best, most

    def beginnings(self, namespace: str, tokens: array[int]) -> list[Item]:
        """All items whose tokens are a prefix of these."""
        text, found = _text_of(namespace, tokens), list[Item]()
        at = bisect_right(self._texts, text)
        while at:
            at -= 1
            length = common_prefix_length(self._texts[at], text)
            if length == len(self._texts[at]):
                found.append(self._items[at])
            else:  # entries in between agree at least as far
                at = bisect_right(self._texts, text[:length], 0, at)
        return found


_START = len(namespace_id(""))  # of the tokens


def _text_of(namespace: str, tokens: array[int]) -> bytes:
    return namespace_id(namespace) + tokens.tobytes()
