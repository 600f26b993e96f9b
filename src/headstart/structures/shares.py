"""What a text speculator's guess is worth: products of count shares.

A copy that has agreed with the text for w tokens is believed w : 1. After one more token it would
have agreed for w + 1, so a lone match of length L promises its i-th token with

    L/(L+1) * (L+1)/(L+2) * ... = L / (L + i)

and n places that agree, with lengths that sum to W, use W, W + n, W + 2n ... instead. Places that
disagree keep their weight in the denominator. The sum of the products is the expected number of
accepted tokens. A draft carries the factors (`conditional`), which control buckets and calibrates.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


@lru_cache(maxsize=4096)
def agreeing(weight: int, num_places: int, count: int) -> tuple[float, ...]:
    """Scores of `count` tokens that all places agree on; they fall from weight / (weight + 1)."""
    scores = []
    score = 1.0
    for total in range(weight, weight + num_places * count, num_places):
        score *= total / (total + 1)
        scores.append(score)
    return tuple(scores)


@lru_cache(maxsize=4096)
def lone(weight: int, count: int) -> tuple[float, ...]:
    """Conditional scores of `count` tokens of one copy that has agreed for `weight` tokens."""
    return tuple(total / (total + 1) for total in range(weight, weight + count))


def conditional(scores: Sequence[float]) -> list[float]:
    """From the probability that a token and all before it are accepted to that of the token given those before."""
    before = 1.0
    shares = []
    for score in scores:
        shares.append(score / before)
        before = score
    return shares
