"""Base of text speculators: follows the text of each sequence, and scores copies by products of
count shares.

A copy that has agreed with the text for w tokens has odds of w : 1. After another token it would
have agreed for w + 1, so the i-th token after a single match of length L has probability

    L/(L+1) * (L+1)/(L+2) * ... = L / (L + i)

and n places that agree, with lengths that sum to W, use W, W + n, W + 2n ... instead. Places that
disagree keep their weight in the denominator. The sum of the products is the expected number of
accepted tokens. A draft carries the factors, which control calibrates and multiplies.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from headstart.speculators.base import Speculator
from headstart.types import Draft, DraftRequest

MIN_SHARE = 0.1  # drafts end before their expected acceptance falls below this


class History(Protocol):
    """A speculator's data about a text."""

    def extend(self, new: Sequence[int]) -> None:
        """Append tokens to the text."""


H = TypeVar("H", bound=History)


class TextSpeculator(Speculator, Generic[H]):
    """Keeps a history of each sequence, which grows with it, so that no step costs O(text)."""

    scores_are_probabilities = True

    def __init__(self, options: Any = None) -> None:
        self.histories: dict[int, H] = {}  # by sequence id
        self.options: Any = self.Options() if options is None and self.Options else options

    @abstractmethod
    def history_of(self, text: Sequence[int], namespace: str) -> H:
        """Build the data of a new text; copy what you keep."""

    @abstractmethod
    def draft_for(self, history: H, request: DraftRequest) -> Draft:
        """Draft what follows the text of a request, whose history this is; Draft(): nothing."""

    def begin(self, seq_id: int, text: Sequence[int], namespace: str = "") -> None:
        self.histories[seq_id] = self.history_of(text, namespace)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self.draft_for(self.histories[request.seq_id], request) for request in requests]

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        self.histories[seq_id].extend(emitted)

    def end(self, seq_id: int) -> None:
        self.histories.pop(seq_id, None)


_TABLE = tuple([weight / (weight + 1) for weight in range(4096)])


def agreeing_scores(weight: int, num_places: int, count: int) -> tuple[float, ...]:
    """Conditional scores of `count` tokens on which all places agree; they rise from weight /
    (weight + 1).
    """
    end = weight + num_places * count
    if end <= len(_TABLE):
        return _TABLE[weight:end:num_places]
    return tuple([total / (total + 1) for total in range(weight, end, num_places)])
