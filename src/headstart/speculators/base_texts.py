"""What speculators share that draft from texts: they follow the text of each sequence, and score
copies by products of count shares.

A copy that has agreed with the text for w tokens has odds of w : 1. After one more token it would
have agreed for w + 1, so a lone match of length L promises its i-th token with

    L/(L+1) * (L+1)/(L+2) * ... = L / (L + i)

and n places that agree, with lengths that sum to W, use W, W + n, W + 2n ... instead. Places that
disagree keep their weight in the denominator. The sum of the products is the expected number of
accepted tokens. A draft carries the factors, which control calibrates and multiplies.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import Generic, Protocol, TypeVar

from headstart.speculators.base import Speculator
from headstart.types import Draft, DraftRequest


class History(Protocol):
    """A text so far, and what a speculator knows about it."""

    tokens: array[int]

    def extend(self, new: Sequence[int]) -> None:
        """The text grew by these tokens."""


H = TypeVar("H", bound=History)


class TextSpeculator(Speculator, Generic[H]):
    """Keeps a history of each sequence, which grows with it, so that no step costs O(text)."""

    scores_are_probabilities = True

    def __init__(self) -> None:
        self._histories: dict[int, H] = {}

    @abstractmethod
    def _read(self, text: Sequence[int], namespace: str) -> H:
        """The history of a text."""

    @abstractmethod
    def _draft(self, history: H, request: DraftRequest) -> Draft:
        """Draft behind a history, which is that of the request."""

    def begin(self, seq_id: int, prompt: Sequence[int], namespace: str = "") -> None:
        self._histories[seq_id] = self._read(prompt, namespace)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(self._histories[request.seq_id], request) for request in requests]

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        self._histories[seq_id].extend(emitted)

    def end(self, seq_id: int) -> None:
        self._histories.pop(seq_id, None)


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
