"""What one replica has read: texts as a radix tree over bytes, the least recently used go first.

Bytes and not tokens, because a router has no vocabulary: what it compares is the text of prompts
and answers before any template (`conversation.py`).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from headstart.structures.prefix import common_prefix_length

NODE_BYTES = 256  # what a node takes besides its text, about


@dataclass(slots=True, eq=False)
class _Node:
    """A piece of text behind its parent's; `children` by their first byte."""

    text: bytes
    parent: _Node | None
    used: int = 0  # the tree's clock when it was last part of a text that was added
    is_live: bool = True
    children: dict[int, _Node] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return len(self.text) + NODE_BYTES


class PrefixTree:
    """Texts, of which the longest common beginning with another is found in O(its length)."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.num_bytes = 0
        self._clock = 0
        self._root = _Node(b"", None)
        self._leaves: list[tuple[int, int, _Node]] = []  # a heap; entries may be out of date

    def match(self, text: bytes) -> int:
        """Length of the longest beginning of `text` that was added."""
        node, at = self._root, 0
        while at < len(text) and (child := node.children.get(text[at])) is not None:
            shared = common_prefix_length(child.text, text[at : at + len(child.text)])
            at += shared
            if shared < len(child.text):
                break
            node = child
        return at

    def add(self, text: bytes) -> None:
        """Remember a text as the newest; forget the oldest ones until all fit."""
        self._clock += 1
        node, at = self._root, 0
        while at < len(text):
            child = node.children.get(text[at])
            if child is None:
                child = self._attach(node, text[at:])
            else:
                shared = common_prefix_length(child.text, text[at : at + len(child.text)])
                if shared < len(child.text):
                    child = self._split(child, shared)
            child.used = self._clock
            at += len(child.text)
            node = child
        if node is not self._root and not node.children:
            self._push(node)
        self.make_room()

    def make_room(self) -> None:
        """Forget the oldest texts until the rest fits the capacity."""
        while self.num_bytes > self.capacity_bytes and self._leaves:
            used, _, leaf = heapq.heappop(self._leaves)
            if leaf.is_live and not leaf.children and leaf.used == used:
                self._remove(leaf)

    def clear(self) -> None:
        """Forget everything: the replica was restarted."""
        self._root = _Node(b"", None)
        self._leaves.clear()
        self.num_bytes = 0

    def _attach(self, parent: _Node, text: bytes) -> _Node:
        node = _Node(text, parent)
        parent.children[text[0]] = node
        self.num_bytes += node.num_bytes
        return node

    def _split(self, node: _Node, length: int) -> _Node:
        """Put a new node before `node` that has the first `length` bytes of it."""
        assert node.parent is not None
        head = _Node(node.text[:length], node.parent)
        node.parent.children[head.text[0]] = head
        node.text, node.parent = node.text[length:], head
        head.children[node.text[0]] = node
        self.num_bytes += NODE_BYTES
        return head

    def _push(self, leaf: _Node) -> None:
        heapq.heappush(self._leaves, (leaf.used, id(leaf), leaf))
        if len(self._leaves) > 64 + self.num_bytes // NODE_BYTES:  # mostly out of date
            self._leaves = [
                entry
                for entry in self._leaves
                if entry[2].is_live and not entry[2].children and entry[2].used == entry[0]
            ]
            heapq.heapify(self._leaves)

    def _remove(self, leaf: _Node) -> None:
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.text[0]]
        leaf.is_live = False
        self.num_bytes -= leaf.num_bytes
        if not parent.children and parent is not self._root:
            self._push(parent)
