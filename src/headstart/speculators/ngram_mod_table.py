"""What followed n tokens: one hash table of constant size for all texts.

An entry is 64 bits: token (32), fingerprint of the n-gram (24), count (8; 0 = empty). The
fingerprint makes a false hit a matter of one in 16 million. A place is never emptied: an entry
gains when the same token follows again, loses half when another does, loses one when another
n-gram wants its place, and is replaced when nothing is left. So what is used stays, what is stale
gives way, and a text that is guessed badly takes nothing from the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headstart.structures.rolling import BASE, KEY_BITS, MASK, keys_of, leaving_factor

MAX_COUNT = 15
_FINGERPRINT = (1 << 24) - 1


def updated(entry: int, token: int, fingerprint: int) -> int:
    """The entry after `token` followed the n-gram with this fingerprint."""
    count = entry & 0xFF
    if count and (entry >> 8) & _FINGERPRINT != fingerprint:
        return entry - 1 if count > 1 else token << 32 | fingerprint << 8 | 1
    if count and entry >> 32 != token:
        return entry - count + count // 2 if count > 1 else token << 32 | fingerprint << 8 | 1
    return token << 32 | fingerprint << 8 | min(count + 1, MAX_COUNT)


class NgramTable:
    """2^bits entries of 8 bytes. Texts of different salts do not see each other."""

    __slots__ = ("_entries", "_factor", "_fingerprint_shift", "_shift", "_view", "n")

    def __init__(self, n: int, bits: int = 22) -> None:
        self.n = n
        self._factor = leaving_factor(n)
        self._shift = KEY_BITS - bits
        self._fingerprint_shift = KEY_BITS - bits - 24
        self._entries = np.zeros(1 << bits, np.uint64)  # untouched pages cost no memory
        self._view = self._entries.data  # reads a scalar four times faster than numpy

    @property
    def num_bytes(self) -> int:
        return self._entries.nbytes

    def learn(self, tokens: Sequence[int], salt: int) -> None:
        """Add what followed every n tokens of a text."""
        if len(tokens) <= self.n:
            return
        text = np.array(tokens, np.int32)
        keys = keys_of(text[:-1], self.n) ^ np.uint64(salt)
        slots = (keys >> np.uint64(self._shift)).astype(np.int64)
        fingerprints = (keys >> np.uint64(self._fingerprint_shift)) & np.uint64(_FINGERPRINT)
        following = text[self.n :].astype(np.uint64)
        # Order matters only within a slot: those that come once are done at once, the rest in
        # order.
        _, inverse, counts = np.unique(slots, return_inverse=True, return_counts=True)
        is_lone = counts[inverse] == 1
        self._learn_lone(slots[is_lone], following[is_lone], fingerprints[is_lone])
        view, rest = self._view, ~is_lone
        for slot, token, mark in zip(
            slots[rest].tolist(), following[rest].tolist(), fingerprints[rest].tolist(), strict=True
        ):
            view[slot] = updated(view[slot], token, mark)

    def _learn_lone(
        self, slots: NDArray[np.int64], tokens: NDArray[np.uint64], fingerprints: NDArray[np.uint64]
    ) -> None:
        """`updated` on arrays; no slot comes twice."""
        one, low = np.uint64(1), np.uint64(0xFF)
        old = self._entries[slots]
        count = old & low
        fresh = tokens << np.uint64(32) | fingerprints << np.uint64(8)
        is_same = (old | low) == (fresh | low)
        is_other_ngram = (old >> np.uint64(8)) & np.uint64(_FINGERPRINT) != fingerprints
        worn = np.where(is_other_ngram, old - one, old - count + count // np.uint64(2))
        kept = np.where(is_same, fresh | np.minimum(count + one, np.uint64(MAX_COUNT)), worn)
        self._entries[slots] = np.where(
            (count <= one) & ~(is_same & (count == one)), fresh | one, kept
        )

    def learn_next(self, key: int, token: int, salt: int) -> None:
        """Add that `token` followed the window with this key."""
        key ^= salt
        slot = key >> self._shift
        mark = (key >> self._fingerprint_shift) & _FINGERPRINT
        self._view[slot] = updated(self._view[slot], token, mark)

    def follow(
        self, key: int, window: list[int], salt: int, count: int
    ) -> tuple[list[int], list[int]]:
        """Walk from a window (the last n tokens) as far as the table knows.

        Returns at most `count` tokens, and for each how often it was seen (1 to MAX_COUNT).
        """
        view, factor, shift, mark_shift = (
            self._view,
            self._factor,
            self._shift,
            self._fingerprint_shift,
        )
        tokens: list[int] = []
        counts: list[int] = []
        window = window[:]
        for i in range(count):
            salted = key ^ salt
            entry = view[salted >> shift]
            if not entry or (entry >> 8) & _FINGERPRINT != (salted >> mark_shift) & _FINGERPRINT:
                break
            token = entry >> 32
            tokens.append(token)
            counts.append(entry & 0xFF)
            window.append(token)
            key = (key - window[i] * factor + token) * BASE & MASK
        return tokens, counts
