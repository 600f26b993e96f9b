"""How much of prompts a replica's cache keeps, by the beginnings of their texts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

BLOCK_BYTES = 128  # some 32 tokens


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
    before any template (`conversation.py`). A replica is believed to keep `capacity_bytes`.
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
