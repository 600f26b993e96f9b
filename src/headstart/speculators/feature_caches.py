"""Caches of drafters that read states of several layers of their target, or no cache of their own.

What stands at position p is made of token p and of the target's states of token p - 1, as for
multi-token heads. The first token of a text has no state before it, and no row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headstart.speculators.followed_caches import FollowedCaches
from headstart.speculators.target_states import TargetStates
from headstart.types import LAST_STATE
from headstart.types.feature_batch import DraftContext, FeatureBatch


class EncodedCaches(FollowedCaches):
    """Rows of tokens with encoded states: EAGLE-3."""

    first_row = 1

    def __init__(self, context: DraftContext, layers: Sequence[int], waiting_mib: int) -> None:
        super().__init__(context, layers, waiting_mib, context.feature_width)
        self._context = context

    def encoded(self, parts: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        """Encode the states of all sequences together."""
        rows = self._context.encode(parts[0] if len(parts) == 1 else np.concatenate(parts))
        return np.split(rows, np.cumsum([len(part) for part in parts])[:-1])

    def add_verified(
        self, own: int, start: int, tokens: Sequence[int], states: NDArray[np.float32]
    ) -> None:
        skip = int(start == 0)
        if len(tokens) > skip:
            encoded = self._context.encode(states[skip:])
            self.batch.add_rows(own, start + skip, tokens[skip:], encoded)


class InjectedCaches(FollowedCaches):
    """Keys and values made of states alone: DFlash."""

    def __init__(self, context: DraftContext, layers: Sequence[int], waiting_mib: int) -> None:
        super().__init__(context, layers, waiting_mib, context.feature_width)
        self._context = context
        self._features = FeatureBatch(context.engine.max_batch_tokens, context.feature_width)

    def add_verified(
        self, own: int, start: int, tokens: Sequence[int], states: NDArray[np.float32]
    ) -> None:
        self.add(own, start, states)
        self.inject()

    def add(self, own: int, start: int, states: NDArray[np.float32]) -> None:
        """Add rows to what `inject` will read; what has no room is read at once."""
        states = states[int(start == 0) :]
        if self._features.num_rows + len(states) > self._features.capacity:
            self.inject()
        if len(states):
            self._features.add_states(own, max(1, start), states)

    def inject(self) -> None:
        """Read what was added, of all sequences in one decode.

        Raises:
            ContextFullError: there is no room for it.
        """
        if self._features.num_rows:
            self.num_decoded += self._features.num_rows
            try:
                self._context.read_features(self._features)
            finally:
                self._features.clear()


class BorrowedCaches(FollowedCaches):
    """The target's own cache: nothing is read, cut or copied here, only states are kept."""

    def __init__(self, context: DraftContext, waiting_mib: int) -> None:
        super().__init__(context, [LAST_STATE], waiting_mib)

    def read(self, seq_id: int, head: int, num_rows: int) -> None:
        states = self.sequence(seq_id).states
        states.read[head] = min(states.length, states.read[head] + num_rows)

    def add_verified(
        self, own: int, start: int, tokens: Sequence[int], states: NDArray[np.float32]
    ) -> None:
        """The target has them in its cache."""

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        copied = self.sequence(source).states.copy(length)
        self.sequence(target).states = copied

    def cut(self, seq_id: int) -> None:
        """The target cuts its cache itself."""

    def save(self, seq_id: int) -> bytes | None:
        states = self.sequence(seq_id).states
        if not states.length:
            return None
        states.settle()
        return states.to_bytes()

    def restore(self, seq_id: int, data: bytes | bytearray | memoryview) -> None:
        self.sequence(seq_id).states = TargetStates.from_bytes(memoryview(data), 1, self.width)

    def make_room(self, busy: Sequence[int]) -> None:
        """The target's cache is full, and only the target can change that."""

    def _lose(self, seq_id: int, reason: str) -> None:
        """There is nothing that could be lost, but what is not known yet."""
        self.lost[reason] = self.lost.get(reason, 0) + 1


__all__ = ["BorrowedCaches", "EncodedCaches", "InjectedCaches"]
