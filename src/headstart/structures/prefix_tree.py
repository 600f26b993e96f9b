"""Token lists in a compressed trie: what has the longest common prefix with a text is found in the
time of comparing that prefix, however many there are.

An edge is a part of the token list of some item below it, so that no tokens are copied.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from headstart.structures.prefix import common_prefix_length

Item = TypeVar("Item")


def packed(tokens: Iterable[int]) -> array[int]:
    """Tokens as the tree compares them: four bytes each."""
    return array("i", tokens)


class _Node(Generic[Item]):
    """The texts that begin with tokens[:length]; its edge begins where its parent's ends."""

    __slots__ = ("children", "items", "length", "tokens")

    def __init__(self, tokens: array[int], length: int) -> None:
        self.tokens, self.length = tokens, length
        self.children: dict[int, _Node[Item]] = {}  # by the first token of their edge
        self.items: list[Item] = []  # whose tokens these are


class PrefixTree(Generic[Item]):
    """Items by their tokens, see `packed`; not thread-safe."""

    def __init__(self) -> None:
        self._root: _Node[Item] = _Node(packed(()), 0)

    @property
    def is_empty(self) -> bool:
        return not self._root.children and not self._root.items

    def add(self, tokens: array[int], item: Item) -> None:
        """O(tokens). The tokens must not be changed afterwards."""
        *_, (node, shared) = self._path(tokens)
        if shared < node.length:  # in the middle of an edge: split it
            parent = self._parent(node, tokens)
            middle: _Node[Item] = _Node(node.tokens, shared)
            middle.children[node.tokens[shared]] = node
            parent.children[node.tokens[parent.length]] = middle
            node = middle
        if shared < len(tokens):
            leaf: _Node[Item] = _Node(tokens, len(tokens))
            node.children[tokens[shared]] = node = leaf
        node.items.append(item)

    def remove(self, tokens: array[int], item: Item) -> None:
        """Remove an item that was added with these tokens. O(tokens)."""
        path = [node for node, _ in self._path(tokens)]
        path[-1].items.remove(item)
        # what no item needs any more goes: ends without items, and nodes between two edges
        while len(path) > 1 and not (node := path.pop()).items and len(node.children) < 2:
            above = path[-1].children
            key = node.tokens[path[-1].length]
            if node.children:
                (above[key],) = node.children.values()
            else:
                del above[key]
        self._renew(tokens)

    def find(self, tokens: array[int]) -> tuple[Item | None, int]:
        """An item with the longest common prefix, and its length; None and 0 if there is none.
        O(that length).
        """
        *_, (node, shared) = self._path(tokens)
        if not shared:
            return None, 0
        while not node.items:
            node = next(iter(node.children.values()))
        return node.items[-1], shared

    def beginnings(self, tokens: array[int]) -> list[Item]:
        """All items whose tokens these begin with, the shortest first. O(tokens)."""
        return [
            item for node, shared in self._path(tokens) if shared == node.length
            for item in node.items
        ]  # fmt: skip

    def _path(self, tokens: array[int]) -> Iterator[tuple[_Node[Item], int]]:
        """Nodes from the root on whose edges the text follows, and how far it does."""
        node, shared = self._root, 0
        yield node, shared
        while shared == node.length < len(tokens):
            child = node.children.get(tokens[shared])
            if child is None:
                return
            shared = min(child.length, common_prefix_length(child.tokens, tokens, shared))
            node = child
            yield node, shared

    def _parent(self, child: _Node[Item], tokens: array[int]) -> _Node[Item]:
        *_, parent, _ = (node for node, _ in self._path(tokens))
        return parent

    def _renew(self, tokens: array[int]) -> None:
        """Let no edge on the way keep the tokens of an item that is gone."""
        for node, _ in list(self._path(tokens)):
            if node.tokens is tokens and node.length:
                below = node
                while not below.items:
                    below = next(iter(below.children.values()))
                node.tokens = below.tokens
