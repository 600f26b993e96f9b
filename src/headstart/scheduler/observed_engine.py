"""Wraps the target's engine for speculators that read its hidden states: reports every decoded row
and every change of a sequence to them.

So their own caches can follow the target's: shared prefixes, prompts in main memory, checkpoints
and preemptions cost no acceptance. Without such speculators the scheduler uses the engine directly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.types import Batch, Bytes, DecodedStates, Engine, Logits, SavedState


def observed(engine: Engine, speculators: Iterable[GuardedSpeculator]) -> Engine:
    """Wrap the engine if some of the speculators read its hidden states.

    Raises:
        ModelError: the engine cannot provide those states.
    """
    readers = [speculator for speculator in speculators if speculator.speculator.needs_states]
    if not readers:
        return engine
    engine.publish_states(frozenset().union(*(r.speculator.state_layers for r in readers)))
    return cast("Engine", ObservedEngine(engine, readers))


class ObservedEngine:
    """An `Engine` that reports its operations to the readers."""

    can_shift = False  # readers cannot shift their own copies of these tokens

    def __init__(self, engine: Engine, readers: Sequence[GuardedSpeculator]) -> None:
        self._engine, self._readers = engine, readers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def decode(self, batch: Batch) -> Logits:
        self.launch(batch)
        return self.wait()

    def launch(self, batch: Batch) -> None:
        self._engine.launch(batch)
        self._batch = batch

    def wait(self) -> Logits:
        batch, logits = self._batch, self._engine.wait()
        end = batch.num_rows
        while end and batch.seq_ids[end - 1] == self.padding_sequence:
            end -= 1
        states = {layer: rows[:end] for layer, rows in self._engine.hidden_states().items()}
        rows = batch.seq_ids[:end], batch.positions[:end], batch.tokens[:end]
        decoded = DecodedStates(*rows, states)
        for reader in self._readers:
            reader.observe_states(decoded)
        return logits

    def truncate(self, seq_id: int, length: int) -> bool:
        if not self._engine.truncate(seq_id, length):
            return False
        self._tell("truncate", seq_id, length)
        return True

    def reusable(self, seq_id: int, length: int, *, by_copy: bool = False) -> int:
        """Reusable tokens; fewer if readers need the hidden states of some again."""
        most = self._engine.reusable(seq_id, length, by_copy=by_copy)
        ways = (r.call("num_resumable", seq_id, most, otherwise=most) for r in self._readers)
        wanted: int = min([most, *ways])
        if wanted < most and self._engine.reusable(seq_id, wanted, by_copy=by_copy) == wanted:
            return wanted
        return most

    def rewind(self, seq_id: int, length: int) -> int:
        length = self._engine.rewind(seq_id, length)
        self._tell("truncate", seq_id, length)
        return length

    def checkpoint(self, seq_id: int) -> None:
        self._engine.checkpoint(seq_id)
        self._tell("checkpoint", seq_id)

    def copy_prefix(self, source: int, target: int, length: int) -> bool:
        is_copied = self._engine.copy_prefix(source, target, length)
        if is_copied:
            for reader in self._readers:
                reader.call("copy_prefix", source, target, length, about=[target])
        else:
            self._tell("truncate", target, 0)
        return is_copied

    def clear(self, seq_id: int) -> None:
        self._engine.clear(seq_id)
        if seq_id != self.padding_sequence:
            self._tell("truncate", seq_id, 0)

    def restore_sequence(self, seq_id: int, data: SavedState) -> int:
        """Restore the target's part; readers restore theirs in `Speculator.restore_sequence`."""
        self._tell("truncate", seq_id, 0)
        return self._engine.restore_sequence(seq_id, data)

    def restore_block(self, seq_id: int, data: Bytes) -> bool:
        """Like `restore_sequence`."""
        self._tell("truncate", seq_id, 0)
        return self._engine.restore_block(seq_id, data)

    def _tell(self, name: str, seq_id: int, *arguments: int) -> None:
        for reader in self._readers:
            reader.call(name, seq_id, *arguments)
