"""The rule: the token at position t is argmax_i(log p_i + g(seed, t, i)).

p is the distribution after the request's filters; g is counter-based Gumbel noise. So the token is
a function of logits, parameters, seed and position alone, not of drafts or other requests in the
batch. Temperature 0 is argmax.

Source: Daliri, Musco, Suresh 2024, "Coupling without communication and drafter-invariant
speculative decoding", https://arxiv.org/abs/2408.07978
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headstart.sampling.noise import gumbel, uniform
from headstart.sampling.thoughts import ThoughtCounter
from headstart.structures.topk import top_k
from headstart.types import Engine, Filters, TokenChoice
from headstart.types.errors import EngineError, RequestError
from headstart.types.sampling_params import SamplingParams

if TYPE_CHECKING:
    from headstart.sampling.grammar.state import GrammarState

_NOT_NUMBERS = (
    "the model's logits are not numbers; its weights are damaged or the computation overflowed"
)
PIECE = 1024  # tokens of a prompt that penalties read per call: half a millisecond
_ALL_BANNED = (
    "no token is left to choose from: logit_bias, ignore_eos, the samplers and the constraint ban "
    "all of them; ban fewer"
)


class Sampler:
    """Chooses the tokens of one request.

    Its only state is the text read by penalties, and the position in the constraint.
    """

    def __init__(
        self,
        params: SamplingParams,
        engine: Engine,
        eog_ids: Iterable[int],
        filters: Filters | None = None,
    ) -> None:
        """`filters`: those of the engine, if they were made before."""
        self.params = params
        self.legality: GrammarState | None = None  # of a constrained request
        self.num_dropped = 0  # tokens removed by context shifts; the noise still counts them
        self.thoughts: ThoughtCounter | None = None  # of a request with a reasoning budget
        self.vocab_size = engine.vocab_size
        bias, ends = params.logit_bias, list(eog_ids) if params.ignore_eos else []
        # for duplicate tokens the last bias counts
        self._bias_ids = np.concatenate((bias.ids, np.array(ends, np.int32)))
        self._bias = np.concatenate((bias.amounts, np.full(len(ends), -np.inf))).astype(np.float32)
        self._biased = np.empty(self.vocab_size, np.float32) if len(self._bias) else None
        self._window = _Window(params.repeat_last_n) if params.has_penalties else None
        self._num_read = _num_read(params)
        self.reads_text = self._window is not None or params.has_dry
        self._unread: Sequence[int] = ()  # of the prompt
        self._num_candidates = _num_candidates(params)
        is_few = 0 < self._num_candidates < self.vocab_size
        self._reads_best_only = is_few and self._biased is None and not self.reads_text
        self._is_argmax = self._num_candidates == 1 and not self.reads_text
        self._all_ids: NDArray[np.int32] | None = None
        self._filters = filters or engine.make_filters(params)
        self._gap = None if self.reads_text else self._filters.decisive_gap
        # in logits; a choice with a smaller lead may differ in another decode
        self.tie_margin = 0.0
        self.num_near_ties = 0

    def sample(
        self, logits: NDArray[np.float32], position: int, legal: NDArray[np.bool_] | None = None
    ) -> int:
        """The token at `position` (the number of tokens before it); logits of shape (vocab_size,).

        `legal`: mask of the tokens to choose from; None for all.
        """
        if self._is_argmax:
            biased = logits if self._biased is None else self._with_bias(logits)
            allowed = biased if legal is None else _masked(biased, legal)
            token = int(allowed.argmax())
            best = allowed.item(token)
            if math.isnan(best):
                raise EngineError(_NOT_NUMBERS)
            if best > -math.inf:
                if self.tie_margin:
                    self._count_tie(biased, token, self.tie_margin)
                return token
        ids, scores = self._survivors(logits, position, legal)
        if not len(ids) or math.isnan(scores[0]):
            raise EngineError(_NOT_NUMBERS)
        noisy: NDArray[Any] = scores
        margin = self.tie_margin
        if not self.params.is_greedy and len(ids) > 1:
            margin /= self.params.temperature
            noisy = scores + gumbel(self.params.seed, position + self.num_dropped, ids)
        chosen = int(noisy.argmax())
        if margin:
            self._count_tie(noisy, chosen, margin)
        if scores[chosen] == -math.inf:
            raise RequestError(_ALL_BANNED)
        return int(ids[chosen])

    def _count_tie(self, scores: NDArray[Any], chosen: int, margin: float) -> None:
        """Count a choice with a lead below `margin`; the scores are restored."""
        best = scores[chosen]
        scores[chosen] = -np.inf  # avoids an array of the vocabulary's size per token
        self.num_near_ties += bool(scores.max() > best - margin)
        scores[chosen] = best

    def couple(self, logits: NDArray[np.float32], position: int) -> TokenChoice:
        """Choose from a draft model's logits with this request's filters and noise."""
        missing = self.vocab_size - len(logits)  # vocabularies may differ by padding
        if missing > 0 and not self._reads_best_only:
            logits = np.pad(logits, (0, missing), constant_values=-np.inf)
        ids, scores = self._survivors(logits[: self.vocab_size], position)
        if len(ids) == 1:
            token = int(ids[0])
            return TokenChoice(token, 1.0, token, 1.0)
        noise = gumbel(self.params.seed, position + self.num_dropped, ids)
        coupled = int((scores + noise).argmax())
        best = int(scores.argmax())
        weights = _weights(scores)
        total = float(weights.sum())
        return TokenChoice(
            int(ids[coupled]), float(weights[coupled]) / total, int(ids[best]), 1.0 / total
        )

    def probabilities(
        self, logits: NDArray[np.float32], position: int, legal: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """(ids, probabilities) after the filters; they sum to 1."""
        if legal is not None and np.count_nonzero(legal) == 1:  # emitted even if it is banned
            return legal.nonzero()[0].astype(np.int32), np.ones(1)
        ids, scores = self._survivors(logits, position, legal)
        weights = _weights(scores.astype(np.float64))
        if self.params.is_greedy:
            weights = (weights == 1.0).astype(np.float64)
        return ids.copy(), weights / weights.sum()

    def closing(self) -> Sequence[int]:
        """Tokens that must follow because the reasoning budget is used up; none while the text is
        constrained.
        """
        if self.thoughts is None or (self.legality is not None and self.legality.is_active):
            return ()
        return self.thoughts.closing()

    def begin(self, prompt: Sequence[int]) -> None:
        """Set the prompt tokens that penalties will read, in pieces."""
        if self.reads_text:
            words = [token for token in prompt if token >= 0]  # without cells of images
            self._unread = words if self._num_read is None else words[-self._num_read :]

    def read_on(self) -> bool:
        """Read a piece of the prompt; returns whether that was the last."""
        piece, self._unread = self._unread[:PIECE], self._unread[PIECE:]
        self.read(piece)
        return not self._unread

    def read(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text read by penalties. Cheap unless `reads_text`."""
        if not self.reads_text:
            return
        for token in tokens:
            self._filters.accept(token)
        if self._window is not None:
            self._window.extend(tokens)

    def _survivors(
        self, logits: NDArray[np.float32], position: int, legal: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Ids and scaled logits that survive the filters; views, valid until the next call."""
        logits = self._with_bias(logits)
        ids, scores = self._candidates(logits) if legal is None else self._among(logits, legal)
        if self._gap is not None and len(ids) == 1:  # the filters would keep it
            return ids, scores
        use_xtc = (
            self.params.has_xtc
            and uniform(self.params.seed, position + self.num_dropped, salt=1)
            < self.params.xtc_probability
        )
        left = self._filters.apply(ids, scores, use_xtc)
        if legal is not None and self.params.has_infill and not legal[left[0]].all():
            return ids[:1], scores[:1]  # infill ends a text that must go on
        return left

    def _with_bias(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """A copy with biases, at a cost independent of their number; the same array without."""
        if self._biased is None:
            return logits
        np.copyto(self._biased, logits)
        self._biased[self._bias_ids] += self._bias
        return self._biased

    def _candidates(
        self, logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Enough candidates for exact filters, sorted by descending score, ties by id.

        If the first filter keeps the best k, then after penalties on m ids the best k are among
        these and the k + m best before. Beyond a hundredth of the vocabulary, finding these takes
        longer than filtering all.
        """
        count = self._num_candidates
        touched: Sequence[int] | NDArray[np.int32] = self._window.ids() if self._window else ()
        if not count or count + 100 * len(touched) >= self.vocab_size:
            if self._all_ids is None:
                self._all_ids = np.arange(self.vocab_size, dtype=np.int32)
            return self._all_ids, logits
        best, scores = top_k(logits, count + len(touched), self._gap)
        ids = best.astype(np.int32)
        if len(touched):
            ids = np.unique(np.concatenate((ids, touched)))
            scores = logits[ids]
            order = np.argsort(-scores, kind="stable")
            return ids[order], scores[order]
        kept = ~np.isneginf(scores)  # without banned tokens, unless all are
        return (ids, scores) if kept.all() or not kept.any() else (ids[kept], scores[kept])

    def _among(
        self, logits: NDArray[np.float32], legal: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Like `_candidates`, from the legal tokens only."""
        num_legal = int(np.count_nonzero(legal))
        if num_legal <= 1024:  # sort all of them
            ids = legal.nonzero()[0]
            return self._sorted(ids, logits[ids])
        count = self._num_candidates
        if count and self._window is None:
            # if many tokens are legal, the best few are among the best overall
            best, scores = top_k(logits, 4 * count + 128)
            kept = legal[best].nonzero()[0][:count]
            if len(kept) == count and scores[kept[-1]] > -np.inf:
                return best[kept].astype(np.int32), scores[kept]
        left, scores = self._candidates(_masked(logits, legal))
        return self._sorted(left, scores)

    def _sorted(
        self, ids: NDArray[Any], scores: NDArray[np.float32]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Drop banned tokens; sort by descending score, ties by id."""
        left = (~np.isneginf(scores)).nonzero()[0]
        if not len(left):
            raise RequestError(_ALL_BANNED)
        left = left[np.argsort(-scores[left], kind="stable")]
        return ids[left].astype(np.int32), scores[left]


def _weights(scores: NDArray[Any]) -> NDArray[Any]:
    """exp(score - best score), finite for all requests.

    If a temperature near 0 made scores infinite, the best ones share the probability.
    """
    best = scores.max()
    weights: NDArray[Any] = np.exp(scores - best) if math.isfinite(best) else scores == best
    return weights.astype(scores.dtype, copy=False)


def only(token: int, size: int) -> NDArray[np.bool_]:
    """A mask in which only this token is legal."""
    mask = np.zeros(size, np.bool_)
    mask[token] = True
    return mask


def _masked(logits: NDArray[np.float32], legal: NDArray[np.bool_]) -> NDArray[np.float32]:
    masked = logits.copy()
    masked[~legal] = -np.inf
    return masked


class _Window:
    """The distinct tokens among the last n: the ids whose logits penalties change."""

    def __init__(self, last_n: int) -> None:
        self._tokens: deque[int] = deque()
        self._counts: Counter[int] = Counter()
        self._last_n = last_n if last_n >= 0 else None

    def extend(self, tokens: Sequence[int]) -> None:
        if self._last_n is not None:
            tokens = tokens[-self._last_n :]
        self._tokens.extend(tokens)
        self._counts.update(tokens)
        while self._last_n is not None and len(self._tokens) > self._last_n:
            oldest = self._tokens.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]

    def ids(self) -> NDArray[np.int32]:
        return np.fromiter(self._counts, np.int32, len(self._counts))


def _num_read(params: SamplingParams) -> int | None:
    """How many of the last tokens penalties and DRY read; None: all."""
    lengths = [params.repeat_last_n] * params.has_penalties
    lengths += [params.dry_penalty_last_n] * params.has_dry
    return None if -1 in lengths else max(lengths, default=0)


def _num_candidates(params: SamplingParams) -> int:
    """How many of the best logits suffice for exact filters; 0 means all.

    Top-k keeps k, so k suffice if no earlier filter needs more (the caller accounts for penalties).
    Greedy needs one, unless a filter can remove the best.
    """
    if params.is_greedy and not params.removes_best and not params.has_dry:
        return 1
    if params.top_k <= 0 or "top_k" not in params.samplers:
        return 0
    before = params.samplers[: params.samplers.index("top_k")]
    inactive = {
        "penalties": True,
        "dry": not params.has_dry,
        "top_n_sigma": params.top_n_sigma <= 0,
        "typ_p": params.typical_p >= 1.0,
        "top_p": params.top_p >= 1.0,
        "min_p": params.min_p <= 0.0,
        "xtc": not params.has_xtc,
        "temperature": params.dynatemp_range <= 0.0,  # a plain temperature keeps the order
        "infill": False,
    }
    return params.top_k if all(inactive[name] for name in before) and not params.has_dry else 0
