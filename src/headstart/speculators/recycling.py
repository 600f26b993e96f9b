"""Token recycling as a chain: draft what the model itself last thought would follow.

Every row the target computes, rejected drafts included, says what may follow its token. Per token
an average over those rows of the eight likeliest successors is kept, the newest row counting half;
a draft follows the likeliest one from token to token. It needs no match in the text, so it fills
in where the others find nothing. Score: the running product of those averaged probabilities, times
r / (r + 1) for a token seen in r rows.

Source: Luo et al. 2024, "Turning Trash into Treasure", https://arxiv.org/abs/2408.08696
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.config import option
from headstart.speculators.base import Speculator, register
from headstart.structures.topk import top_k
from headstart.types import Capability, Decoded, Draft, DraftRequest
from headstart.types.errors import ConfigError

_MAX_TOKENS = 32_768  # with an entry; when there are more, the one seen first is dropped


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
            # more rows do not make an entry more credible
            num_rows = min(old.num_rows + 1, 15)
        self._entries[token] = _Entry(
            max(probabilities, key=probabilities.__getitem__), num_rows, probabilities
        )

    def likeliest(self, token: int) -> tuple[int, float] | None:
        """The likeliest successor and how far to believe in it; None if the token is unknown."""
        entry = self._entries.get(token)
        if entry is None:
            return None
        return entry.best, entry.probabilities[entry.best] * entry.num_rows / (entry.num_rows + 1)


@register
class RecyclingSpeculator(Speculator):
    """Chains each token's likeliest successor."""

    name = "recycling"
    scores_are_probabilities = True
    needs = frozenset({Capability.LOGITS})

    @dataclass(frozen=True, slots=True)
    class Options:
        """Counts in tokens."""

        width: int = option(8, "likely successors kept per token")
        n_max: int = option(8, "longest draft, in tokens", limits_draft=True)
        min_share: float = option(0.1, "a draft ends before its score (0 to 1) falls below this")

        def __post_init__(self) -> None:
            if not 1 <= self.width <= 64 or self.n_max < 1 or not 0.0 <= self.min_share < 1.0:
                raise ConfigError(
                    "recycling needs width from 1 to 64, n-max >= 1 and min-share in [0, 1), got "
                    f"{self.width}, {self.n_max} and {self.min_share}"
                )

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or self.Options()
        self._tables: dict[str, NextTokenTable] = {}  # by namespace, least recently begun first
        self._sequences: dict[int, NextTokenTable] = {}

    def begin(self, seq_id: int, prompt: Sequence[int], namespace: str = "") -> None:
        table = self._tables.pop(namespace, None) or NextTokenTable(self._options.width)
        self._tables[namespace] = self._sequences[seq_id] = table
        if len(self._tables) > 16:
            del self._tables[next(iter(self._tables))]

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(request) for request in requests]

    def _draft(self, request: DraftRequest) -> Draft:
        table = self._sequences.get(request.seq_id)
        if table is None:
            self.begin(request.seq_id, request.tokens, request.namespace)
            table = self._sequences[request.seq_id]
        tokens: list[int] = []
        scores: list[float] = []
        token, survival = request.tokens[-1], 1.0
        for _ in range(min(request.max_tokens, self._options.n_max)):
            guess = table.likeliest(token)
            if guess is None:
                break
            token, share = guess
            survival *= share
            if survival < self._options.min_share:
                break
            tokens.append(token)
            scores.append(share)
        return Draft(tokens, scores, self.name, "" if tokens else "no likely successor")

    def observe(self, decoded: Decoded) -> None:
        for row, (seq_id, token) in enumerate(
            zip(decoded.seq_ids.tolist(), decoded.tokens.tolist(), strict=True)
        ):
            table = self._sequences.get(seq_id)
            if table is not None:
                table.learn(token, decoded.logits[row])

    def end(self, seq_id: int) -> None:
        self._sequences.pop(seq_id, None)

    def describe(self) -> dict[str, Any]:
        return {"tokens_known": sum(map(len, self._tables.values()))}
