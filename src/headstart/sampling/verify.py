"""Verification: a draft token is accepted exactly when it is the token the target emits anyway."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from headstart.sampling.sampler import Sampler, only
from headstart.structures.topk import top_k
from headstart.types.errors import RequestError
from headstart.types.request import TokenLogprob

Number = TypeVar("Number", np.float32, np.float64)
Note = Callable[[int, int, NDArray[np.bool_] | None], None]
"""(row, token, mask of the tokens to choose from if not all)"""


def emit(
    sampler: Sampler,
    logits: NDArray[np.float32],
    draft: Sequence[int],
    position: int,
    end_tokens: Container[int],
    note: Note | None = None,
) -> list[int]:
    """Sample along the draft until a token differs, or the draft or the text ends.

    Args:
        logits: of the last known token and of each draft token, shape (len(draft) + 1,
            vocab_size).
        position: of the first token to emit.
        end_tokens: tokens that end the text.
        note: called for every token before the sampler consumes it.

    Returns 1 to len(draft) + 1 tokens; all but the last are accepted draft tokens. The last is one
    only if it is final, completes the text, or the next cannot be chosen.

    Raises:
        RequestError: the first cannot be chosen; nothing was consumed.
    """
    emitted: list[int] = []
    legality, thoughts = sampler.legality, sampler.thoughts
    is_free = legality is None and thoughts is None
    for row in range(len(draft) + 1):
        if is_free:
            token, legal = sampler.sample(logits[row], position + row), None
        else:
            try:
                token, legal = _choose(sampler, logits[row], position + row)
                if legality is not None:
                    legality.read(token)
            except RequestError:
                if emitted:
                    break
                raise
        emitted.append(token)
        if note is not None:
            note(row, token, legal)
        if sampler.reads_text:
            sampler.read((token,))
        if thoughts is not None:
            thoughts.read(token)
        if row == len(draft) or token != draft[row] or token in end_tokens:
            break
        if legality is not None and legality.is_over:
            break
    return emitted


def _choose(
    sampler: Sampler, logits: NDArray[np.float32], position: int
) -> tuple[int, NDArray[np.bool_] | None]:
    """The token, and the mask of legal tokens if that was needed.

    The unconstrained choice is kept if it is legal; otherwise the same rule and noise apply to the
    legal tokens.
    """
    if closing := sampler.closing():
        return closing[0], only(closing[0], sampler.vocab_size)
    legality = sampler.legality
    if legality is None:
        return sampler.sample(logits, position), None
    if forced := legality.forced():
        return forced[0], legality.legal_mask()
    token, legal = sampler.sample(logits, position), None
    for _ in range(8):  # beyond that the text cannot be followed further
        if legality.allows(token):
            break
        legal = legality.legal_mask() if legal is None else legal
        legal[token] = False
        token = sampler.sample(logits, position, legal)
    return token, legal


def token_logprobs(logits: NDArray[np.float32], token: int, num_top: int) -> TokenLogprob:
    """Log softmax of one row, before any filter: for `token`, and for the `num_top` best."""
    best = logits.max()
    # float32 exponents take a fifth of the time; the sum is within 1e-7 of the exact one
    log_sum = float(best) + float(np.log(np.exp(logits - best).sum(dtype=np.float64)))
    own = float(logits[token]) - log_sum
    if not num_top:
        return TokenLogprob(token, own)
    ids, scores = top_k(logits, num_top) if num_top <= 1024 else _top_unsorted(logits, num_top)
    return TokenLogprob(token, own, TokenLogprob.pack(ids, scores.astype(np.float64) - log_sum))


def _top_unsorted(values: NDArray[Number], count: int) -> tuple[NDArray[np.intp], NDArray[Number]]:
    """Like `top_k`, but ordered by index: sorting a whole vocabulary is slower than a decode."""
    if 0 < count < len(values):
        least = np.partition(values, len(values) - count)[len(values) - count]
        is_in = values > least
        is_in[(values == least).nonzero()[0][: count - np.count_nonzero(is_in)]] = True
        index = is_in.nonzero()[0]
    else:
        index = np.arange(min(count, len(values)))
    return index, values[index]


def filtered_logprobs(
    ids: NDArray[np.int32], probabilities: NDArray[np.float64], token: int, num_top: int
) -> TokenLogprob:
    """Log probabilities after the filters, from the result of `Sampler.probabilities`."""
    own = probabilities[ids == token].max(initial=0.0)
    best, chosen = _top_unsorted(probabilities, num_top)
    with np.errstate(divide="ignore"):
        packed = TokenLogprob.pack(ids[best], np.log(chosen))
        return TokenLogprob(token, float(np.log(own)), packed)
