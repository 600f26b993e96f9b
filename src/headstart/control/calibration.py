"""Acceptance, the first of control's three parts: calibrates speculators' scores.

In: a draft's scores. Out: for each of its tokens the probability that it and all before it are
accepted (survival), in tokens. Learned from offers, each compared with the text as it appears,
whether it was verified or not. So control knows what a speculator would have saved even while it is
off or outbid, and at positions that were not verified.

Conditional acceptance a = P(token i accepted | tokens before it accepted) is counted per speculator
and score bucket. Counts fade: n <- d n + 1. A bucket with few counts is shrunk towards the
speculator's mean (K pseudo-counts), or towards 0.1 + 0.8 score if scores are probabilities:

    speculator = (m + K prior) / (n + K)
    bucket     = (m_bucket + K speculator) / (n_bucket + K)

A request whose text differs from the average gets a shift b of the log-odds, odds' = odds e^b, from
a one-dimensional extended Kalman filter (p = predicted, y = 1 if accepted):

    V <- V + drift;   V <- V / (1 + V p (1 - p));   b <- d b + V (y - p)

Tokens differ, too: the brackets of a JSON form are predictable, names are not. So each token has
its own odds (`TokenOdds`), separate by namespace and never saved, because they reveal a little
about the texts. Survival is the running product of all this. Labels stop at the first disagreement
and at the end of the draft, so a fully accepted draft says nothing about the next token (censored).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from itertools import repeat
from math import exp
from typing import TYPE_CHECKING, Any, ClassVar

from headstart.control.values import FADE, WEIGHT, constrained

if TYPE_CHECKING:
    from headstart.scheduler.step import Offer, StepRecord

# edges of score buckets: scores up to 1 are probabilities or shares, above 1 lengths or counts
EDGES = (
    *(0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995),
    *(1.5, 2.5, 3.5, 4.5, 6.5, 8.5, 12.5, 16.5, 24.5, 32.5, 64.5),
)

PRIOR = 0.4  # acceptance of a new speculator: low, because labels come without verifying
MODEL_PRIOR = 0.75  # of a draft model: the user chose it, and its labels cost time
SHIFT_VARIANCE, SHIFT_DRIFT = 0.6, 0.001  # of a request's log-odds
MAX_TOKENS, MAX_TOTAL = 4096, 131_072  # tracked per speculator and namespace; in total
_NO_LABELS = (0.0, 0.0, 0.0, 1.0)  # counts of a new token


class LabelCounts:
    """Labelled tokens (n) and accepted ones (m) of one speculator, by score bucket."""

    __slots__ = ("_m", "_n", "is_probability")
    SAVED: ClassVar = ("_n", "_m")

    def __init__(self) -> None:
        self.is_probability = False
        self._m, self._n = [0.0] * (len(EDGES) + 1), [0.0] * (len(EDGES) + 1)

    @property
    def num_labels(self) -> float:
        """Number of labels; old ones count less."""
        return sum(self._n)

    def mean(self) -> float:
        """Acceptance of a token without further information."""
        prior = MODEL_PRIOR if self.is_probability else PRIOR
        return (sum(self._m) + WEIGHT * prior) / (sum(self._n) + WEIGHT)

    def acceptances(self, confidence: Sequence[float]) -> list[float]:
        """Conditional acceptance of each token of a draft."""
        is_probability = self.is_probability
        mean, m, n = 0.0 if is_probability else self.mean(), self._m, self._n
        acceptances = []
        for score in confidence:
            bucket = bisect_right(EDGES, score)
            base = 0.1 + 0.8 * score if is_probability else mean
            share = (m[bucket] + WEIGHT * base) / (n[bucket] + WEIGHT)
            acceptances.append(0.002 if share < 0.002 else 0.998 if share > 0.998 else share)
        return acceptances  # finite log-odds

    def count(self, confidence: Sequence[float], num_matched: int) -> None:
        """Add labels: the first `num_matched` were accepted."""
        m, n = self._m, self._n
        for i, score in enumerate(confidence):
            bucket = bisect_right(EDGES, score)
            n[bucket] = n[bucket] * FADE + 1.0
            m[bucket] = m[bucket] * FADE + (1.0 if i < num_matched else 0.0)

    def loosen(self) -> None:
        """Reduce saved counts to the weight of the prior, because later texts differ."""
        self._m = [m * WEIGHT / max(n, WEIGHT) for m, n in zip(self._m, self._n, strict=True)]
        self._n = [min(n, WEIGHT) for n in self._n]


class RequestBias:
    """How far one request's acceptance deviates from the average, in log-odds."""

    __slots__ = ("odds", "shift", "variance")

    def __init__(self) -> None:
        self.shift, self.variance, self.odds = 0.0, SHIFT_VARIANCE, 1.0

    def learn(self, acceptances: Sequence[float], num_matched: int) -> None:
        """Update from a draft's labels; `acceptances` are those of the average request."""
        variance, shift, odds = self.variance, self.shift, self.odds
        for i, acceptance in enumerate(acceptances):
            right = acceptance * odds
            p = right / (1.0 - acceptance + right)
            variance += SHIFT_DRIFT
            variance /= 1.0 + variance * p * (1.0 - p)
            shift = shift * FADE + variance * ((1.0 if i < num_matched else 0.0) - p)
            shift = -4.0 if shift < -4.0 else 4.0 if shift > 4.0 else shift
            odds = exp(shift)
        self.variance, self.shift, self.odds = variance, shift, odds


class TokenOdds:
    """Odds of one speculator in one namespace, by the token drafted and by the one before it.

    Accepted labels (m of n) are compared with those expected (e) by scores and request; the odds of
    acceptance are multiplied by

        (m + 1) / (e + 1) * (n - e + 1) / (n - m + 1)

    which is 1 without labels. Counts fade.
    """

    __slots__ = ("before", "drafted")

    def __init__(self) -> None:
        # labels, accepted, expected, and the factor
        self.drafted: dict[int, tuple[float, float, float, float]] = {}
        self.before: dict[int, tuple[float, float, float, float]] = {}

    def __len__(self) -> int:
        return len(self.drafted) + len(self.before)

    def learn(
        self, tokens: Sequence[int], acceptances: Sequence[float], odds: float, num_matched: int
    ) -> None:
        """Count labels.

        Args:
            tokens: the token before the first label, then the drafted ones.
            acceptances: conditional, of each by its score; `odds` is the request's factor.
            num_matched: number of leading tokens that matched.
        """
        for i, acceptance in enumerate(acceptances):
            accepted, right = 1.0 if i < num_matched else 0.0, acceptance * odds
            for token, counts in ((tokens[i + 1], self.drafted), (tokens[i], self.before)):
                n, m, e, _ = counts.get(token, _NO_LABELS)
                if not n and len(counts) >= MAX_TOKENS:  # drop the half with the fewest labels
                    for rare in sorted(counts, key=counts.__getitem__)[: MAX_TOKENS // 2]:
                        del counts[rare]
                n, m = n * FADE + 1.0, m * FADE + accepted
                e = e * FADE + right / (1.0 - acceptance + right)
                factor = (m + 1.0) / (e + 1.0) * (n - e + 1.0) / (n - m + 1.0)
                counts[token] = (n, m, e, factor)
                right *= factor


Known = tuple[LabelCounts, RequestBias, TokenOdds]
"""Counts of all requests, the shift of one, and the odds by token."""


class Calibration:
    """Acceptance of all speculators, for the average text and for each running request."""

    SAVED: ClassVar = ("tables",)

    def __init__(self) -> None:
        self.tables: defaultdict[str, LabelCounts] = defaultdict(LabelCounts)  # by speculator
        self.namespaces: dict[int, str] = {}  # of the running requests
        self._requests: dict[int, dict[str, Known]] = {}  # by speculator
        # by namespace, least recently used first, then by speculator
        self._tokens: OrderedDict[str, dict[str, TokenOdds]] = OrderedDict()
        self._sizes: dict[str, int] = {}  # of these, as their last request ended
        self._total = 0
        # Per request and speculator, one undecided offer: the expected tokens (including those
        # before the draft) and how many have matched so far.
        self._followed: dict[int, dict[str, tuple[Offer, list[int], int]]] = {}

    def trust_scores(self, speculator: str) -> None:
        """Treat this speculator's scores as probabilities until counts show otherwise; also of
        constrained text.
        """
        for name in (speculator, constrained(speculator)):
            self.tables[name].is_probability = True

    def survival(
        self, speculator: str, confidence: Sequence[float], number: int, tokens: Sequence[int] = ()
    ) -> list[float]:
        """Probability that draft tokens 0..i are all accepted, for each i; tiny ones are 0.
        O(tokens).

        tokens: the token before the draft, then the draft's; empty: unknown.
        """
        known = self._requests.get(number, {}).get(speculator) or self._know(number, speculator)
        table, bias, by_token = known
        odds = bias.odds
        none = repeat(-1)  # no token has this id
        befores = map(by_token.before.get, tokens or none, repeat(_NO_LABELS))
        drafted = map(by_token.drafted.get, tokens[1:] or none, repeat(_NO_LABELS))
        alive = 1.0
        survival: list[float] = []
        acceptances = table.acceptances(confidence)
        for acceptance, before, token in zip(acceptances, befores, drafted, strict=False):
            right = acceptance * odds * (before[3] * token[3])
            alive *= right / (1.0 - acceptance + right)
            survival.append(alive)
            if alive < 0.01:  # later tokens are hardly ever accepted
                break
        return survival + [0.0] * (len(confidence) - len(survival))

    def read(self, record: StepRecord) -> None:
        """Learn what a step showed of the offers.

        Token by token: otherwise an unverified correct draft of 32 tokens would be counted only 32
        steps later.
        """
        all_followed = self._followed
        for answer in record.plan.answers:
            for offer in answer.offers:
                own = all_followed.setdefault(answer.sequence.number, {})
                if offer.draft.speculator not in own:  # otherwise an earlier one is still undecided
                    own[offer.draft.speculator] = offer, [*offer.after, *offer.draft.tokens], 0
        # including the first token after a preempted text
        for result in record.results:
            number, emitted = result.sequence.number, result.emitted
            own = all_followed.get(number, {})
            for name, (offer, expected, start) in list(own.items()):
                end = start
                for token in emitted[: len(expected) - start]:
                    if token != expected[end]:
                        break
                    end += 1
                is_wrong = end - start < len(emitted) and end < len(expected)
                if is_wrong or end == len(expected):
                    del own[name]
                else:
                    own[name] = offer, expected, end
                first = len(offer.after)
                known, right = max(0, start - first), max(0, end - first)
                labelled = max(0, end + is_wrong - first)
                if labelled > known:
                    scores, line = offer.draft.confidence, offer.line
                    self.record(
                        number,
                        name,
                        scores[known:labelled],
                        right - known,
                        line[known : labelled + 1],
                    )

    def record(
        self,
        number: int,
        speculator: str,
        confidence: Sequence[float],
        num_matched: int,
        tokens: Sequence[int] = (),
    ) -> None:
        """Learn from labelled draft tokens, verified or only compared with the text: the first
        `num_matched` agreed; a further one, at most one, did not. O(tokens).

        tokens: as in `survival`.
        """
        known = self._requests.get(number, {}).get(speculator) or self._know(number, speculator)
        table, bias, by_token = known
        acceptances = table.acceptances(confidence)
        if tokens:
            by_token.learn(tokens, acceptances, bias.odds, num_matched)
        bias.learn(acceptances, num_matched)
        table.count(confidence, num_matched)

    def begin(self, number: int, namespace: str) -> None:
        """Register a request; what is learned from its tokens stays in this namespace ("" without
        this call).
        """
        self.namespaces[number] = namespace

    def end(self, number: int) -> None:
        """Forget a request that ended, with its shift and its undecided offers, and the namespaces
        used longest ago if there are too many tokens.
        """
        self._followed.pop(number, None)
        self._requests.pop(number, None)
        namespace = self.namespaces.pop(number, "")
        if namespace in self._tokens:
            size = 1 + sum(map(len, self._tokens[namespace].values()))
            self._total += size - self._sizes.get(namespace, 0)
            self._sizes[namespace] = size
        while self._total > MAX_TOTAL and len(self._tokens) > 1:
            self._total -= self._sizes.pop(self._tokens.popitem(last=False)[0], 0)

    def _know(self, number: int, speculator: str) -> Known:
        """Statistics of a speculator for a request."""
        own = self._requests.setdefault(number, {})
        if speculator not in own:
            namespace = self.namespaces.get(number, "")
            by_token = self._tokens.setdefault(namespace, {}).setdefault(speculator, TokenOdds())
            self._tokens.move_to_end(namespace)
            own[speculator] = self.tables[speculator], RequestBias(), by_token
        return own[speculator]

    def describe(self) -> dict[str, Any]:
        """Acceptance per speculator, JSON-ready."""
        return {
            name: {"acceptance": table.mean(), "labels": table.num_labels}
            for name, table in self.tables.items()
            if table.num_labels
        }
