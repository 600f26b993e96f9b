"""Rows that carry a hidden state besides their token, and the engine that computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headstart.types import Batch, Engine

# Verified rows of a sequence, at most, that a drafter reads together with those of other sequences,
# or with the first row of a draft; more are read before that.
MERGED_ROWS = 8


class StateBatch(Batch):
    """A batch of (token, state of the token before it)."""

    __slots__ = ("head", "states")

    def __init__(self, capacity: int, width: int) -> None:
        super().__init__(capacity)
        self.states = np.zeros((capacity, width), np.float32)
        self.head = 0  # the head that computes this batch

    def add_rows(
        self, seq_id: int, position: int, tokens: Sequence[int], states: NDArray[np.float32]
    ) -> None:
        """Append adjacent rows without outputs; `states` has one row per token."""
        start = self.num_rows
        self.add(seq_id, position, tokens, 0)
        self.states[start : self.num_rows] = states

    def want_all(self) -> None:
        """All rows produce logits and a state."""
        self.wants_logits[: self.num_rows] = 1
        self.num_outputs = self.num_rows


class HeadContext(Protocol):
    """Multi-token heads over a cache of their own.

    From token p and the target's state of token p - 1 a head predicts token p + 1, and computes
    what it takes for the target's state of token p. Either all rows of a decode have outputs or
    none has.
    """

    num_heads: int
    state_width: int

    @property
    def engine(self) -> Engine:
        """Their cache of sequences; batches are `StateBatch`."""

    def outputs(self) -> NDArray[np.float32]:
        """States of the last decode's rows if they had outputs, shape (rows, state_width)."""
