"""What may follow each token: a decayed average of the distributions that were seen after it."""

from __future__ import annotations

from math import exp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.structures.topk import top_k

_MAX_TOKENS = 32_768  # with an entry; when there are more, the one seen first is dropped
_MAX_ROWS = 15  # more rows do not make an entry more credible


class _Entry(NamedTuple):
    best: int
    num_rows: int
    probabilities: dict[int, float]  # of each successor; at most `width` of them


class NextTokenTable:
    """Per token its `width` likeliest successors."""

    __slots__ = ("_entries", "_width")

    def __init__(self, width: int) -> None:
        self._width = width
        self._entries: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def learn(self, token: int, logits: NDArray[np.float32]) -> None:
        """Average in one row: what the model expected after `token`, shape (vocab_size,)."""
        ids, scores = top_k(logits, self._width)
        best, *others = scores.tolist()
        weights = [1.0, *[exp(score - best) for score in others]]  # so few are faster without numpy
        old = self._entries.get(token)
        total = sum(weights) if old is None else 2.0 * sum(weights)  # the newest row counts half
        probabilities = dict(zip(ids.tolist(), [weight / total for weight in weights], strict=True))
        num_rows = 1
        if old is None:
            if len(self._entries) >= _MAX_TOKENS:
                del self._entries[next(iter(self._entries))]
        else:
            # after the new ones: ties go to the newest
            for successor, probability in old.probabilities.items():
                probabilities[successor] = probabilities.get(successor, 0.0) + 0.5 * probability
            for successor in sorted(probabilities, key=probabilities.__getitem__, reverse=True)[
                self._width :
            ]:
                del probabilities[successor]
            num_rows = min(old.num_rows + 1, _MAX_ROWS)
        self._entries[token] = _Entry(
            max(probabilities, key=probabilities.__getitem__), num_rows, probabilities
        )

    def likeliest(self, token: int) -> tuple[int, float] | None:
        """The likeliest successor and how far to believe in it; None if the token is unknown."""
        entry = self._entries.get(token)
        if entry is None:
            return None
        return entry.best, entry.probabilities[entry.best] * entry.num_rows / (entry.num_rows + 1)
