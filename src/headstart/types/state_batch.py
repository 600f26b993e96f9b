"""Batches with hidden states of a target, and the models that draft from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headstart.types import Batch, Engine


class StateBatch(Batch):
    """A batch of (token, previous token's state), or of states alone."""

    __slots__ = ("has_tokens", "head", "states")

    def __init__(self, capacity: int, width: int, *, has_tokens: bool = True) -> None:
        super().__init__(capacity)
        self.states = np.zeros((capacity, width), np.float32)
        self.has_tokens = has_tokens
        self.head = 0  # index of the head that computes the batch

    def add_rows(
        self, seq_id: int, position: int, tokens: Sequence[int], states: NDArray[np.float32]
    ) -> None:
        """Append adjacent rows without outputs; `states` has one row per token."""
        start = self.num_rows
        self.add(seq_id, position, tokens, 0)
        self.states[start : self.num_rows] = states

    def want_all(self) -> None:
        """Request logits and states for all rows."""
        self.wants_logits[: self.num_rows] = 1
        self.num_outputs = self.num_rows


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a model drafts several tokens in one decode."""

    size: int  # rows of a block, starting with the last token of the text
    mask_id: int  # placeholder for a token to draft
    # whether the first row drafts the next token; otherwise each row drafts its own token
    has_anchor: bool
    has_confidence: bool  # states are probabilities of acceptance


class DraftContext(Engine, Protocol):
    """A model, or multi-token heads, that draft from a target's hidden states.

    From token p and a state of token p - 1 it predicts token p + 1, and computes its own state of
    token p. Its batches carry states; rows without tokens are written to the cache unchanged. Any
    suffix of a sequence can be dropped. Either all rows of a decode have outputs or none.
    """

    num_heads: int  # each has its own sequences
    state_width: int  # of the states read besides tokens, and of those computed
    # input width of `encode`, or of a batch without tokens: the target's layers concatenated; 0: it
    # reads the target's states directly
    feature_width: int
    shares_target: bool  # it reads the target's cache and writes nothing
    blocks: Blocks | None  # None: drafts token by token

    def outputs(self) -> NDArray[np.float32]:
        """States of the last decode's rows if they had outputs, shape (rows, state_width)."""

    def encode(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Convert the target's states to those read besides tokens, shape (rows, state_width)."""
