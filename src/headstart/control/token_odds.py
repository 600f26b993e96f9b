"""Tokens differ: the brackets of a JSON form are sure, names are not.

Per token drafted, and per token before it, accepted labels (m of n) are compared with those
expected (e) by scores and request; the odds of acceptance are multiplied by

    (m + 1) / (e + 1) * (n - e + 1) / (n - m + 1)

which is 1 without labels. Counts fade. They tell a little of what texts were about, so they are
kept apart by namespace and never saved.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

FADE = 0.97  # of a token's counts, per label
MAX_TOKENS, MAX_TOTAL = 4096, 131_072  # of a speculator in a namespace; of all


class TokenOdds:
    """Factors of the odds by token id. A factor is read from `factors`, where a token never seen is
    missing.
    """

    __slots__ = ("counts", "factors")

    def __init__(self) -> None:
        self.factors: dict[int, float] = {}
        self.counts: dict[int, tuple[float, float, float]] = {}  # labels, accepted, expected

    def forget(self) -> None:
        """Drop the half of the tokens with the fewest labels."""
        by_labels = sorted(self.counts, key=lambda token: self.counts[token][0])
        for token in by_labels[: MAX_TOKENS // 2]:
            del self.counts[token], self.factors[token]


class TokenPair:
    """Odds of one speculator in one namespace: by the token drafted, and by the one before it."""

    __slots__ = ("before", "drafted")

    def __init__(self) -> None:
        self.drafted, self.before = TokenOdds(), TokenOdds()

    def learn(
        self, tokens: Sequence[int], rates: Sequence[float], odds: float, num_matched: int
    ) -> None:
        """Count labels.

        Args:
            tokens: the one before the first label, then those drafted.
            rates: conditional acceptance of each, by its score; `odds` is the request's factor.
            num_matched: of them, from the first on.
        """
        before, drafted = self.before, self.drafted
        for i, rate in enumerate(rates):
            accepted, right = 1.0 if i < num_matched else 0.0, rate * odds
            for table, token in ((drafted, tokens[i + 1]), (before, tokens[i])):
                expected, counts = right / (1.0 - rate + right), table.counts
                if (known := counts.get(token)) is None:
                    n, m, e = 1.0, accepted, expected
                    if len(counts) >= MAX_TOKENS:
                        table.forget()
                else:
                    n, m, e = known
                    n, m, e = n * FADE + 1.0, m * FADE + accepted, e * FADE + expected
                counts[token] = (n, m, e)
                factor = (m + 1.0) / (e + 1.0) * (n - e + 1.0) / (n - m + 1.0)
                table.factors[token] = factor
                right *= factor


class TokenTables:
    """The pairs of all speculators and namespaces."""

    def __init__(self) -> None:
        self._pairs: OrderedDict[str, dict[str, TokenPair]] = OrderedDict()

    def of(self, namespace: str, speculator: str) -> TokenPair:
        """The pair to read and to teach."""
        pairs = self._pairs.setdefault(namespace, {})
        self._pairs.move_to_end(namespace)
        pair = pairs.get(speculator)
        if pair is None:
            pair = pairs[speculator] = TokenPair()
        return pair

    def trim(self) -> None:
        """Forget the namespaces used longest ago, until few enough tokens are left; call it now and
        then. O(namespaces).
        """
        sizes = {
            namespace: 1
            + sum(len(p.before.factors) + len(p.drafted.factors) for p in pairs.values())
            for namespace, pairs in self._pairs.items()
        }
        total = sum(sizes.values())
        for namespace in list(sizes)[:-1]:
            if total <= MAX_TOTAL:
                break
            total -= sizes[namespace]
            del self._pairs[namespace]
