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
from typing import Any

from headstart.config import option
from headstart.speculators.base import Speculator, register
from headstart.speculators.recycling_table import NextTokenTable
from headstart.types import Capability, Decoded, Draft, DraftRequest
from headstart.types.errors import ConfigError

_MAX_NAMESPACES = 16


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
        if len(self._tables) > _MAX_NAMESPACES:
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
