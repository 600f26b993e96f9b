"""Tokens differ: the brackets of a JSON form are sure, names are not.

Per token drafted, and per token before it, accepted labels (m of n) are compared with those
expected (e) by scores and request; the odds of acceptance are multiplied by

    (m + 1) / (e + 1) * (n - e + 1) / (n - m + 1)

which is 1 without labels. Counts fade. They tell a little of what texts were about, so they are
kept apart by namespace and never saved.
"""

from __future__ import annotations

from collections.abc import Sequence

FADE = 0.97  # of a token's counts, per label
MAX_TOKENS, MAX_TOTAL = 4096, 131_072  # of a speculator in a namespace; of all


class TokenOdds:
    """Odds of one speculator in one namespace, by the token drafted and by the one before it.

    Factors are read from `drafted` and `before`, where a token never seen is missing.
    """

    __slots__ = ("_before_counts", "_drafted_counts", "before", "drafted")

    def __init__(self) -> None:
        self.drafted: dict[int, float] = {}
        self.before: dict[int, float] = {}
        # labels, accepted, expected
        self._drafted_counts: dict[int, tuple[float, float, float]] = {}
        self._before_counts: dict[int, tuple[float, float, float]] = {}

    def __len__(self) -> int:
        return len(self.drafted) + len(self.before)

    def learn(
        self, tokens: Sequence[int], rates: Sequence[float], odds: float, num_matched: int
    ) -> None:
        """Count labels.

        Args:
            tokens: the one before the first label, then those drafted.
            rates: conditional acceptance of each, by its score; `odds` is the request's factor.
            num_matched: of them, from the first on.
        """
        for i, rate in enumerate(rates):
            accepted, right = 1.0 if i < num_matched else 0.0, rate * odds
            for token, factors, counts in (
                (tokens[i + 1], self.drafted, self._drafted_counts),
                (tokens[i], self.before, self._before_counts),
            ):
                expected = right / (1.0 - rate + right)
                if (known := counts.get(token)) is None:
                    n, m, e = 1.0, accepted, expected
                    if len(counts) >= MAX_TOKENS:  # drop the half with the fewest labels
                        for rare in sorted(counts, key=counts.__getitem__)[: MAX_TOKENS // 2]:
                            del counts[rare], factors[rare]
                else:
                    n, m, e = known
                    n, m, e = n * FADE + 1.0, m * FADE + accepted, e * FADE + expected
                counts[token] = (n, m, e)
                factor = (m + 1.0) / (e + 1.0) * (n - e + 1.0) / (n - m + 1.0)
                factors[token] = factor
                right *= factor
