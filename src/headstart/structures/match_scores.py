"""Expected acceptance of a text speculator's draft: products of count shares.

A copy that has agreed with the text for w tokens has odds of w : 1. After one more token it would
have agreed for w + 1, so a lone match of length L promises its i-th token with

    L/(L+1) * (L+1)/(L+2) * ... = L / (L + i)

and n places that agree, with lengths that sum to W, use W, W + n, W + 2n ... instead. Places that
disagree keep their weight in the denominator. The sum of the products is the expected number of
accepted tokens. A draft carries the factors, which control calibrates and multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from operator import mul

from headstart.structures.suffix_index import SuffixIndex

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


class Histories:
    """Suffix indexes by sequence id; `sizes` and `max_match` as in `SuffixIndex`."""

    __slots__ = ("_indexes", "_max_match", "_sizes")

    def __init__(self, sizes: Sequence[int], max_match: int = 16) -> None:
        self._sizes = tuple(sizes)
        self._max_match = max_match
        self._indexes: dict[int, SuffixIndex] = {}

    def begin(self, seq_id: int, prompt: Sequence[int]) -> SuffixIndex:
        """Index a prompt; of a sequence that did not end, only what differs is indexed anew."""
        index = self._indexes.get(seq_id)
        if index is None:
            index = self._indexes[seq_id] = SuffixIndex(self._sizes, self._max_match)
        index.follow(prompt, is_new=True)
        return index

    def accept(self, seq_id: int, emitted: Sequence[int]) -> None:
        """Append what was emitted to the index of this sequence, if it began."""
        index = self._indexes.get(seq_id)
        if index is not None:
            index.extend(emitted)

    def at(self, seq_id: int, tokens: Sequence[int]) -> SuffixIndex:
        """The index of this sequence, made equal to `tokens` if they moved apart."""
        index = self._indexes.get(seq_id)
        if index is None:
            return self.begin(seq_id, tokens)
        index.follow(tokens)
        return index

    def end(self, seq_id: int) -> SuffixIndex | None:
        """Forget a sequence; return its index, if it has one."""
        return self._indexes.pop(seq_id, None)
