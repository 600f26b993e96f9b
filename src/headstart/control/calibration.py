"""Acceptance, the first of control's three instruments: what a speculator's score is worth.

In: a draft's scores. Out: for each of its tokens the probability that it and all before it are
accepted (survival), in tokens. Learned from every draft whose text is known, verified or not.

Conditional acceptance a = P(token i accepted | tokens before it accepted) is counted per
(speculator, confidence bucket, position bucket). Counts fade: n <- d n + 1. A cell with few counts
leans on its parents (K pseudo-counts at each level):

    speculator = (m + K prior) / (n + K)
    parent     = (m_confidence + m_position + K speculator) / (n_confidence + n_position + K)
    cell       = (m_cell + K parent) / (n_cell + K)

Where scores are probabilities, 0.1 + 0.8 score stands for `speculator` in the second line.

A request whose text is unlike the average gets a shift b of the log-odds, odds' = odds e^b, from a
one-dimensional extended Kalman filter (p = predicted, y = 1 if accepted):

    V <- V + drift;   V <- V / (1 + V p (1 - p));   b <- pull b + V (y - p)

So do the tokens themselves (see `token_odds`). Survival is the running product of all this. Labels
stop at the first disagreement and at the end of the draft, so a fully accepted draft says nothing
about the token after it (censored).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from math import exp
from typing import Any

from headstart.control.codec import Fields, Number, Table, Values, YesNo, check_parts
from headstart.control.token_odds import TokenPair, TokenTables
from headstart.control.values import Outcome

PROBABILITY_EDGES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
COUNT_EDGES = (1.5, 2.5, 3.5, 4.5, 6.5, 8.5, 12.5, 16.5, 24.5, 32.5, 64.5)
EDGES = PROBABILITY_EDGES + COUNT_EDGES  # scores up to 1 are shares, above 1 lengths or counts
NUM_CONFIDENCES = len(EDGES) + 1
# position in the draft -> bucket; later ones share the last
POSITIONS = (0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7)
NUM_POSITIONS = POSITIONS[-1] + 1
LAST = len(POSITIONS) - 1

PRIOR = 0.4  # acceptance of a speculator never seen: low, because labels come without verifying
MODEL_PRIOR = 0.75  # of a draft model: somebody chose it, and its labels cost time
SPECULATOR_WEIGHT, PARENT_WEIGHT, CELL_WEIGHT = 4.0, 6.0, 8.0  # pseudo-counts K
CELL_FADE, PARENT_FADE = 0.997, 0.998
LEAST, MOST = 0.002, 0.998
_NO_TOKEN = -1  # nothing is known of it
NEVER = 0.01  # tokens behind one that survives less often are as good as never accepted
SHIFT_VARIANCE, SHIFT_DRIFT, SHIFT_PULL, SHIFT_LIMIT = 0.6, 0.001, 0.998, 4.0


class LabelCounts:
    """Counts of one speculator: per level, labelled tokens (n) and accepted ones (m)."""

    __slots__ = (
        "cell_m",
        "cell_n",
        "confidence_m",
        "confidence_n",
        "is_probability",
        "m",
        "n",
        "position_m",
        "position_n",
    )

    def __init__(self, *, is_probability: bool = False) -> None:
        self.is_probability = is_probability
        self.m = self.n = 0.0
        self.confidence_m, self.confidence_n = [0.0] * NUM_CONFIDENCES, [0.0] * NUM_CONFIDENCES
        self.position_m, self.position_n = [0.0] * NUM_POSITIONS, [0.0] * NUM_POSITIONS
        self.cell_m = [0.0] * (NUM_CONFIDENCES * NUM_POSITIONS)
        self.cell_n = [0.0] * (NUM_CONFIDENCES * NUM_POSITIONS)

    def overall(self) -> float:
        """Acceptance of a token about which nothing is known."""
        prior = MODEL_PRIOR if self.is_probability else PRIOR
        return (self.m + SPECULATOR_WEIGHT * prior) / (self.n + SPECULATOR_WEIGHT)

    def rates(self, confidence: Sequence[float], start: int = 0) -> list[float]:
        """Conditional acceptance of each token of a draft, from position `start` on."""
        rates = list[float]()
        overall, is_probability = self.overall(), self.is_probability
        confidence_m, confidence_n = self.confidence_m, self.confidence_n
        position_m, position_n = self.position_m, self.position_n
        cell_m, cell_n = self.cell_m, self.cell_n
        for i, score in enumerate(confidence, start):
            c, p = bisect_right(EDGES, score), POSITIONS[i if i < LAST else LAST]
            base = 0.1 + 0.8 * score if is_probability else overall
            labels = confidence_n[c] + position_n[p] + PARENT_WEIGHT
            parent = (confidence_m[c] + position_m[p] + PARENT_WEIGHT * base) / labels
            cell = c * NUM_POSITIONS + p
            rate = (cell_m[cell] + CELL_WEIGHT * parent) / (cell_n[cell] + CELL_WEIGHT)
            rates.append(LEAST if rate < LEAST else MOST if rate > MOST else rate)
        return rates

    def count(self, confidence: Sequence[float], num_matched: int, start: int = 0) -> None:
        """Add labels of positions from `start` on at every level: those before `num_matched` were
        accepted.
        """
        confidence_m, confidence_n = self.confidence_m, self.confidence_n
        position_m, position_n = self.position_m, self.position_n
        cell_m, cell_n = self.cell_m, self.cell_n
        n, m = self.n, self.m
        for i, score in enumerate(confidence, start):
            accepted = 1.0 if i < num_matched else 0.0
            c, p = bisect_right(EDGES, score), POSITIONS[i if i < LAST else LAST]
            cell = c * NUM_POSITIONS + p
            cell_n[cell] = cell_n[cell] * CELL_FADE + 1.0
            cell_m[cell] = cell_m[cell] * CELL_FADE + accepted
            confidence_n[c] = confidence_n[c] * PARENT_FADE + 1.0
            confidence_m[c] = confidence_m[c] * PARENT_FADE + accepted
            position_n[p] = position_n[p] * PARENT_FADE + 1.0
            position_m[p] = position_m[p] * PARENT_FADE + accepted
            n = n * PARENT_FADE + 1.0
            m = m * PARENT_FADE + accepted
        self.n, self.m = n, m


class RequestBias:
    """How far one request's acceptance is from the average, in log-odds."""

    __slots__ = ("odds", "shift", "variance")

    def __init__(self) -> None:
        self.shift, self.variance, self.odds = 0.0, SHIFT_VARIANCE, 1.0

    def learn(self, rates: Sequence[float], num_matched: int) -> None:
        """Follow a draft's labels, for which the average says `rates`."""
        variance, shift, odds = self.variance, self.shift, self.odds
        for i, rate in enumerate(rates):
            p = rate * odds / (1.0 - rate + rate * odds)
            variance += SHIFT_DRIFT
            variance /= 1.0 + variance * p * (1.0 - p)
            shift = shift * SHIFT_PULL + variance * ((1.0 if i < num_matched else 0.0) - p)
            shift = (
                SHIFT_LIMIT
                if shift > SHIFT_LIMIT
                else -SHIFT_LIMIT
                if shift < -SHIFT_LIMIT
                else shift
            )
            odds = exp(shift)
        self.variance, self.shift, self.odds = variance, shift, odds


NO_BIAS: dict[str, RequestBias] = {}


class Calibration:
    """Acceptance of all speculators, for the average text and for each running request."""

    def __init__(self) -> None:
        self.tables: dict[str, LabelCounts] = {}
        self._biases: dict[int, dict[str, RequestBias]] = {}
        self._namespaces: dict[int, str] = {}  # of the running requests
        self._tokens = TokenTables()

    def trust_scores(self, speculator: str) -> None:
        """Believe this speculator's scores, as probabilities, until counts say otherwise."""
        self.tables.setdefault(speculator, LabelCounts(is_probability=True)).is_probability = True

    def survival(
        self, speculator: str, confidence: Sequence[float], seq_id: int, tokens: Sequence[int] = ()
    ) -> list[float]:
        """Probability that draft tokens 0..i are all accepted, for each i: 0 where it is next to
        nothing. O(tokens).

        tokens: the one before the draft and the draft's; empty: not known.
        """
        bias = self._biases.get(seq_id, NO_BIAS).get(speculator)
        odds = 1.0 if bias is None else bias.odds
        pair = self._token_pair(speculator, seq_id)
        by_before, by_drafted = pair.before.factors.get, pair.drafted.factors.get
        befores: Iterable[int] = tokens or repeat(_NO_TOKEN)
        drafted: Iterable[int] = tokens[1:] or repeat(_NO_TOKEN)
        alive, survival, table = 1.0, list[float](), self._table(speculator)
        overall, is_probability = table.overall(), table.is_probability
        confidence_m, confidence_n = table.confidence_m, table.confidence_n
        position_m, position_n = table.position_m, table.position_n
        cell_m, cell_n = table.cell_m, table.cell_n
        # `LabelCounts.rates`, token by token: most drafts are hopeless long before their end, and
        # with a generator every slot and step would take a fifth longer
        buckets = chain(POSITIONS, repeat(POSITIONS[-1]))
        cells = zip(confidence, buckets, befores, drafted, strict=False)
        for score, p, before, token in cells:
            c = bisect_right(EDGES, score)
            base = 0.1 + 0.8 * score if is_probability else overall
            labels = confidence_n[c] + position_n[p] + PARENT_WEIGHT
            parent = (confidence_m[c] + position_m[p] + PARENT_WEIGHT * base) / labels
            cell = c * NUM_POSITIONS + p
            rate = (cell_m[cell] + CELL_WEIGHT * parent) / (cell_n[cell] + CELL_WEIGHT)
            rate = LEAST if rate < LEAST else MOST if rate > MOST else rate
            right = rate * odds * by_before(before, 1.0) * by_drafted(token, 1.0)
            alive *= right / (1.0 - rate + right)
            survival.append(alive)
            if alive < NEVER:
                break
        return survival + [0.0] * (len(confidence) - len(survival))

    def mean(self, speculator: str) -> float:
        """Conditional acceptance of an average token."""
        return self._table(speculator).overall()

    def num_labels(self, speculator: str) -> float:
        """How many labels its acceptance rests on; old ones count less."""
        return self._table(speculator).n

    def record(self, outcome: Outcome) -> None:
        """Learn from a draft's labels. O(labels)."""
        num_known, num_labelled = outcome.num_known, outcome.num_labelled
        if num_labelled <= num_known:
            return
        table = self._table(outcome.speculator)
        biases = self._biases.setdefault(outcome.seq_id, {})
        shift = biases.get(outcome.speculator)
        if shift is None:
            shift = biases[outcome.speculator] = RequestBias()
        confidence, num_matched = outcome.confidence[num_known:num_labelled], outcome.num_matched
        rates = table.rates(confidence, num_known)
        if outcome.tokens:
            tokens = outcome.tokens[num_known : num_labelled + 1]
            self._token_pair(outcome.speculator, outcome.seq_id).learn(
                tokens, rates, shift.odds, num_matched - num_known
            )
        shift.learn(rates, num_matched - num_known)
        table.count(confidence, num_matched, num_known)

    def begin(self, seq_id: int, namespace: str) -> None:
        """A request begins; what its tokens teach stays in this namespace. Without this call in the
        public one.
        """
        self._namespaces[seq_id] = namespace

    def end(self, seq_id: int) -> None:
        """The request is over: forget its shift."""
        self._biases.pop(seq_id, None)
        self._namespaces.pop(seq_id, None)

    def describe(self) -> dict[str, Any]:
        """Acceptance per speculator, JSON-ready."""
        return {
            name: {"acceptance": table.overall(), "labels": table.n}
            for name, table in self.tables.items()
        }

    def _token_pair(self, speculator: str, seq_id: int) -> TokenPair:
        return self._tokens.of(self._namespaces.get(seq_id, ""), speculator)

    def _table(self, speculator: str) -> LabelCounts:
        table = self.tables.get(speculator)
        if table is None:
            table = self.tables[speculator] = LabelCounts(is_probability=False)
        return table


def _check_counts(counts: LabelCounts) -> None:
    for n, m in (
        ([counts.n], [counts.m]),
        (counts.confidence_n, counts.confidence_m),
        (counts.position_n, counts.position_m),
        (counts.cell_n, counts.cell_m),
    ):
        check_parts(n, m, "accepted than labelled tokens")


_COUNT = Number(0.0)
# What is worth keeping are the counts, not what belongs to running requests or to tokens.
CALIBRATION = Fields(
    Calibration,
    tables=Table(
        str,
        Fields(
            LabelCounts,
            _check_counts,
            is_probability=YesNo(),
            n=_COUNT,
            m=_COUNT,
            confidence_n=Values(NUM_CONFIDENCES, _COUNT),
            confidence_m=Values(NUM_CONFIDENCES, _COUNT),
            position_n=Values(NUM_POSITIONS, _COUNT),
            position_m=Values(NUM_POSITIONS, _COUNT),
            cell_n=Values(NUM_CONFIDENCES * NUM_POSITIONS, _COUNT),
            cell_m=Values(NUM_CONFIDENCES * NUM_POSITIONS, _COUNT),
        ),
    ),
)
