"""Expected acceptance of a text speculator's draft: products of count shares.

A copy that has agreed with the text for w tokens has odds of w : 1. After one more token it would
have agreed for w + 1, so a lone match of length L promises its i-th token with

    L/(L+1) * (L+1)/(L+2) * ... = L / (L + i)

and n places that agree, with lengths that sum to W, use W, W + n, W + 2n ... instead. Places that
disagree keep their weight in the denominator. The sum of the products is the expected number of
accepted tokens. A draft carries the factors, which control calibrates and multiplies.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from operator import mul

_TABLE = tuple([weight / (weight + 1) for weight in range(4096)])


def agreeing_scores(weight: int, num_places: int, count: int) -> tuple[float, ...]:
    """Conditional scores of `count` tokens that all places agree on; they rise from weight /
    (weight + 1).
    """
    end = weight + num_places * count
    if end <= len(_TABLE):
        return _TABLE[weight:end:num_places]
    return tuple([total / (total + 1) for total in range(weight, end, num_places)])


@lru_cache(maxsize=4096)
def worth(weight: int, num_places: int, count: int) -> float:
    """Expected accepted tokens of a draft of `count` tokens that all places agree on."""
    survival: list[float] = list(accumulate(agreeing_scores(weight, num_places, count), mul))
    return sum(survival)
