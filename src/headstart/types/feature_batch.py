"""Rows that are hidden states of a target, without tokens, and the engine that reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headstart.types import Batch, Engine


class FeatureBatch(Batch):
    """A batch of states at positions of their sequences; no row has outputs."""

    __slots__ = ("states",)

    def __init__(self, capacity: int, width: int) -> None:
        super().__init__(capacity)
        self.states = np.zeros((capacity, width), np.float32)

    def add_states(self, seq_id: int, position: int, states: NDArray[np.float32]) -> None:
        """Append adjacent rows."""
        start = self.num_rows
        self.add(seq_id, position, [0] * len(states), 0)
        self.states[start : self.num_rows] = states


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a model drafts that guesses several tokens in one decode."""

    size: int  # rows of a block, the first of which is the last token of the text
    mask_id: int  # what stands for a token to be guessed
    # the first row guesses the next token; otherwise each row guesses what stands there itself
    has_anchor: bool
    has_confidence: bool  # states are probabilities of acceptance


class DraftContext(Protocol):
    """A model that drafts from a target's hidden states, over a cache of its own.

    Any tail of a sequence can be cut. Either all rows of a decode have outputs or none has.
    """

    num_heads: int
    num_sequences: int
    state_width: int  # of the states that it reads beside tokens, and of those it computes
    feature_width: int  # of what `encode` and `read_features` take: the target's layers in a row
    shares_target: bool  # its cache is the target's: it reads there and writes nothing
    blocks: Blocks | None  # None: it drafts token by token

    @property
    def engine(self) -> Engine:
        """Its cache of sequences; batches may carry states."""

    def outputs(self) -> NDArray[np.float32]:
        """States of the last decode's rows if they had outputs, shape (rows, state_width)."""

    def encode(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """States to read beside tokens, shape (rows, state_width), of the target's."""

    def read_features(self, batch: FeatureBatch) -> None:
        """Put the target's states into the cache at their positions.

        Raises:
            ContextFullError: the cache has no room.
        """


__all__ = ["Blocks", "DraftContext", "FeatureBatch"]
