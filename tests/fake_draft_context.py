"""A drafting model over a fake: it keeps the order of its cache, and its states say nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tests.harness import SIZE, Model

from headstart.types import LAST_STATE, Batch
from headstart.types.state_batch import Blocks

LAYERS = (0, 2)
STATE_WIDTH = 4


def layers_of(name: str) -> tuple[int, ...]:
    """What the speculator of this name reads of its target."""
    return (LAST_STATE,) if name == "gemma4-assistant" else LAYERS


class FakeDraftContext(Model):
    """What speculators that read states draft with, for the one of this name."""

    num_heads = 1
    num_sequences = 8
    state_width = STATE_WIDTH

    def __init__(self, name: str) -> None:
        super().__init__(2, skew=0.3)
        self.shares_target = name == "gemma4-assistant"
        self.feature_width = 0 if self.shares_target else len(LAYERS) * STATE_WIDTH
        is_dspark = name == "dspark"
        is_block = is_dspark or name == "dflash"
        self.blocks = Blocks(4, 0, is_dspark, is_dspark) if is_block else None
        self._num_outputs = 0

    def launch(self, batch: Batch) -> None:
        assert batch.num_outputs in (0, batch.num_rows), "some rows have outputs and some have not"
        self._num_outputs = batch.num_outputs
        logits = [
            self.logits_after(
                self._add(
                    int(batch.seq_ids[row]), int(batch.positions[row]), int(batch.tokens[row])
                )
            )
            for row in range(batch.num_rows)
        ]
        self._logits = np.stack(logits) if batch.num_outputs else np.zeros((0, SIZE), np.float32)

    def _add(self, seq_id: int, position: int, token: int) -> list[int]:
        if self.shares_target:
            return [token]
        cached = self.cache.setdefault(seq_id, [])
        if not cached:
            cached += [0] * position  # what stands first has no state before it
        assert position == len(cached), f"row at {position}, cache holds {len(cached)}"
        cached.append(token)
        return cached

    def outputs(self) -> NDArray[np.float32]:
        return np.full((self._num_outputs, STATE_WIDTH), 0.5, np.float32)

    def encode(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        assert features.shape[1] == self.feature_width
        return features[:, :STATE_WIDTH]
