"""Finds tokens by prefix in a sorted array."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class ByteTrie:
    """Tokens sorted by their bytes, so that those with a common prefix are one range."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        """Sort the tokens that have bytes."""
        with_bytes = [token for token, piece in enumerate(pieces) if piece]
        order = sorted(with_bytes, key=pieces.__getitem__)
        self._order = np.array(order, np.int32)
        self._sorted = [pieces[token] for token in order]

    def continuations(self, prefix: bytes) -> NDArray[np.int32]:
        """Ids of the tokens that start with `prefix`, sorted by bytes. A view."""
        stem = prefix.rstrip(b"\xff")  # no byte follows 0xff: the range ends where the stem's does
        first = bisect_left(self._sorted, prefix)
        if not stem:
            return self._order[first:]
        return self._order[
            first : bisect_left(self._sorted, stem[:-1] + bytes([stem[-1] + 1]), first)
        ]

    def prefixes_of(self, text: bytes) -> NDArray[np.int32]:
        """Ids of the tokens that are proper prefixes of `text`, shortest first."""
        found = []
        low = 0
        for length in range(1, len(text)):
            low = bisect_left(self._sorted, text[:length], low)
            while low < len(self._sorted) and self._sorted[low] == text[:length]:
                found.append(self._order[low])
                low += 1
        return np.array(found, np.int32)

    def allowed(self, pending: bytes) -> NDArray[np.int32]:
        """Ids of tokens that start with `pending` or are a prefix of it."""
        return np.concatenate([self.continuations(pending), self.prefixes_of(pending)])
