"""Which beginnings of texts a replica has read, as hashes of their blocks.

Bytes and not tokens, because the balancer has no vocabulary: it compares the text of prompts and
answers before any template (`conversation.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

BLOCK_BYTES = 128  # some 32 tokens
MAX_BYTES = 2**25  # of text that a replica is at first, and at most, believed to keep


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

    def __init__(self, capacity_bytes: float = MAX_BYTES) -> None:
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
        self._shrink()

    def judge(self, num_expected: float, num_cached: float) -> None:
        """Trust a replica with more text or less, after it was asked for some of it.

        Args:
            num_expected, num_cached: tokens that it was believed to have cached, and had.
        """
        if num_cached < num_expected / 2:
            self.capacity_bytes = max(2**16, 0.7 * self.capacity_bytes)
        else:
            self.capacity_bytes = min(MAX_BYTES, 1.05 * self.capacity_bytes)
        self._shrink()

    def clear(self) -> None:
        """Forget everything: the replica was restarted."""
        self._blocks.clear()

    def _shrink(self) -> None:
        while self.num_bytes > self.capacity_bytes:
            self._blocks.popitem(last=False)
