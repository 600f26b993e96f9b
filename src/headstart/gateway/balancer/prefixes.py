"""Which beginnings of texts a replica has read, as hashes of their blocks.

Bytes and not tokens, because the balancer has no vocabulary: it compares the text of prompts and
answers before any template (`conversation.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

BLOCK_BYTES = 128  # some 32 tokens


def block_hashes(text: bytes, known: Sequence[int] = ()) -> list[int]:
    """For each whole block, a hash of the text up to its end.

    Args:
        known: the hashes of a text that this one continues.
    """
    found = list(known)
    last = found[-1] if found else 0
    for at in range(len(found) * BLOCK_BYTES, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        last = hash((last, text[at : at + BLOCK_BYTES]))
        found.append(last)
    return found


class Prefixes:
    """Beginnings of texts; the least recently used are forgotten first."""

    def __init__(self, capacity_bytes: int) -> None:
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
        self.shrink()

    def shrink(self) -> None:
        """Forget the oldest texts until the rest fits the capacity."""
        while self.num_bytes > self.capacity_bytes:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Forget everything: the replica was restarted."""
        self._blocks.clear()
