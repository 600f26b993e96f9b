"""The target's engine, where speculators read its hidden states: they hear of every row that it
decodes and of everything that happens to its sequences.

So what they keep can follow the target's cache: shared prefixes, prompts in main memory,
checkpoints and preemptions cost no acceptance. Without such a speculator the scheduler uses the
engine itself, and nobody pays for any of this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.types import (
    Batch,
    DecodedStates,
    Engine,
    Filters,
    Logits,
    SavedSequence,
)
from headstart.types.media import PLACEHOLDER
from headstart.types.sampling_params import SamplingParams


def observed(engine: Engine, speculators: Iterable[GuardedSpeculator]) -> Engine:
    """The engine, with those speculators told of all that it does that read its states.

    Raises:
        ModelError: the engine cannot show the states that they read.
    """
    readers = [speculator for speculator in speculators if speculator.wants_states]
    if not readers:
        return engine
    engine.publish_states(frozenset().union(*(r.speculator.state_layers for r in readers)))
    return ObservedEngine(engine, readers)


class ObservedEngine:
    """`Engine`: does what the engine does, then tells the readers."""

    def __init__(self, engine: Engine, readers: Sequence[GuardedSpeculator]) -> None:
        self._engine, self._readers = engine, readers
        self.vocab_size = engine.vocab_size
        self.context_size = engine.context_size
        self.num_cells = engine.num_cells
        self.max_batch_tokens = engine.max_batch_tokens
        self.max_outputs = engine.max_outputs
        self.padding_sequence = engine.padding_sequence
        self.sends_graphs = engine.sends_graphs
        self.attention_tile = engine.attention_tile
        self.cache_kind = engine.cache_kind
        self.max_rollback = engine.max_rollback
        self.can_shift = False  # what readers have of the tokens that move cannot be moved

    @property
    def is_asynchronous(self) -> bool:
        return self._engine.is_asynchronous

    def decode(self, batch: Batch) -> Logits:
        self.launch(batch)
        return self.wait()

    def launch(self, batch: Batch) -> None:
        self._engine.launch(batch)
        self._batch = batch

    def wait(self) -> Logits:
        batch, logits = self._batch, self._engine.wait()
        end, tokens = batch.num_rows, batch.tokens
        while end and batch.seq_ids[end - 1] == self.padding_sequence:
            end -= 1
        states = {layer: rows[:end] for layer, rows in self._engine.hidden_states().items()}
        if batch.media is not None:
            tokens = np.full_like(tokens, PLACEHOLDER)
        decoded = DecodedStates(batch.seq_ids[:end], batch.positions[:end], tokens[:end], states)
        for reader in self._readers:
            reader.observe_states(decoded)
        return logits

    def publish_states(self, layers: Collection[int]) -> None:
        self._engine.publish_states(layers)

    def hidden_states(self) -> Mapping[int, NDArray[np.float32]]:
        return self._engine.hidden_states()

    def truncate(self, seq_id: int, length: int) -> bool:
        if not self._engine.truncate(seq_id, length):
            return False
        self._tell_length(seq_id, length)
        return True

    def shift(self, seq_id: int, start: int, end: int) -> bool:
        self.clear(seq_id)
        return False

    def reusable(self, seq_id: int, length: int, *, by_copy: bool = False) -> int:
        """Rows whose states are needed once more are decoded again, if the memory allows it."""
        most = self._engine.reusable(seq_id, length, by_copy=by_copy)
        wanted = min((r.num_resumable(seq_id, most) for r in self._readers), default=most)
        if wanted < most and self._engine.reusable(seq_id, wanted, by_copy=by_copy) == wanted:
            return wanted
        return most

    def rewind(self, seq_id: int, length: int) -> int:
        length = self._engine.rewind(seq_id, length)
        self._tell_length(seq_id, length)
        return length

    def checkpoint(self, seq_id: int) -> None:
        self._engine.checkpoint(seq_id)
        for reader in self._readers:
            reader.checkpoint(seq_id)

    def keep_for_draft(self, seq_id: int) -> bool:
        return self._engine.keep_for_draft(seq_id)

    def copy_prefix(self, source: int, target: int, length: int) -> bool:
        is_copied = self._engine.copy_prefix(source, target, length)
        for reader in self._readers:
            if is_copied:
                reader.copy_prefix(source, target, length)
            else:
                reader.truncate(target, 0)
        return is_copied

    def share_prefix(self, source: int, target: int, length: int) -> None:
        self._engine.share_prefix(source, target, length)

    def clear(self, seq_id: int) -> None:
        self._engine.clear(seq_id)
        if seq_id != self.padding_sequence:
            self._tell_length(seq_id, 0)

    def save_sequence(self, seq_id: int) -> bytearray:
        return self._engine.save_sequence(seq_id)

    def restore_sequence(self, seq_id: int, data: bytes | bytearray | memoryview) -> bool:
        """What readers had is restored by their own `restore_sequence`."""
        self._tell_length(seq_id, 0)
        return self._engine.restore_sequence(seq_id, data)

    def write_sequence(self, seq_id: int, path: Path, tokens: Sequence[int], num_exact: int) -> int:
        return self._engine.write_sequence(seq_id, path, tokens, num_exact)

    def read_sequence(self, seq_id: int, path: Path) -> SavedSequence:
        self._tell_length(seq_id, 0)
        return self._engine.read_sequence(seq_id, path)

    def make_filters(self, params: SamplingParams) -> Filters:
        return self._engine.make_filters(params)

    def _tell_length(self, seq_id: int, length: int) -> None:
        for reader in self._readers:
            reader.truncate(seq_id, length)
