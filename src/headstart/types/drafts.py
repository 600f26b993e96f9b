"""Inputs and outputs of speculators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Choose = Callable[[NDArray[np.float32], int], "TokenChoice"]
"""How a draft model picks as the request would: (logits of a row, position) -> TokenChoice."""


LAST_STATE = -1
"""A layer number: the state that a model's own multi-token heads read."""
FINAL_STATE = -2
"""A layer number: the state that the output matrix reads."""


class DraftMode(Enum):
    """Speculation mode of a request; with `AUTO` control decides."""

    AUTO = "auto"
    FIXED = "fixed"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """Two candidates of a draft row under the request's filters, with their probabilities."""

    coupled: int  # sampled with the noise that the target uses at this position
    coupled_probability: float
    argmax: int
    argmax_probability: float


@dataclass(slots=True)
class DraftRequest:
    """A request for draft tokens for one generating sequence.

    tokens[:-1] are in the target's cache; tokens[-1] was emitted and not decoded yet. `tokens` is
    the scheduler's own list, read-only and growing: copy what you keep.
    """

    seq_id: int
    tokens: Sequence[int]
    max_tokens: int  # >= 1; draft no more: the scheduler cuts longer drafts
    min_confidence: float = 0.0  # models stop before the first token below this
    # models only; None for text speculators and for greedy requests (draft the argmax)
    choose: Choose | None = None
    namespace: str = ""  # hash of the API key: do not share text across namespaces
    # models only; for constrained requests: pick legal tokens, since illegal ones are cut off later
    legality: DraftLegality | None = None


@dataclass(slots=True)
class Draft:
    """Tokens that may follow, with a score for each.

    `confidence[i]` is about token i *given that the tokens before it are right*: never a running
    product. It is a probability up to 1 (a model's, or a share of counts), or a score above 1 (a
    match length); finite and not negative. `control` calibrates scores and multiplies the results.
    Empty means no draft; then `reason` may say why, and a model that was not ready to draft clears
    `is_ready`.
    """

    tokens: Sequence[int] = ()
    confidence: Sequence[float] = ()
    speculator: str = ""  # set by the scheduler
    reason: str = ""  # one of a few fixed texts, counted separately
    is_ready: bool = True  # False: still catching up, or unable; says nothing about its drafts


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class DecodedStates:
    """All rows of the last target decode with their hidden states, for `observe_states`.

    All arrays have one entry per row, rows of one sequence are adjacent and in order. They are
    views that the next decode overwrites: copy what must outlive the call.
    """

    seq_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    tokens: NDArray[np.int32]
    # (rows, width) by layer: the layer's input, or LAST_STATE
    states: Mapping[int, NDArray[np.float32]]


class DraftLegality(Protocol):
    """Legal tokens at the end of a draft; follows the draft token by token.

    Once it cannot follow any further, nothing is legal.
    """

    def legal_instead(self, token: int) -> NDArray[np.bool_] | None:
        """None if `token` may come next, else a mask of legal tokens, perhaps empty."""

    def read_legal(self, tokens: Sequence[int]) -> int:
        """Append tokens to the draft up to the first illegal one; returns how many are legal."""
