"""Brings prompts that lose their place in the model's cache to main memory, and back.

A copy back costs a fraction of reading the prompt again: it moves the bytes of each token's keys
and values once, where reading multiplies each token with all weights. Both are measured, and the
cheaper way is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakValueDictionary

from headstart.cache.prompt_store import Data, PromptStore, StoredPrompt
from headstart.errors import CapacityError
from headstart.scheduler.admission import Placement, num_shared
from headstart.scheduler.counters import Counters
from headstart.scheduler.slot import ActiveRequest, Slot
from headstart.structures.prefix import common_prefix_length
from headstart.types import Engine

TARGET = "target"
LEAST_TOKENS = 32  # of a prompt worth keeping, and to gain by bringing one back
# cells that nobody else uses, from which on an idle prompt is moved to main memory: 2,000 idle ones
# made a decode take 1.3 to 1.5 times as long (benchmarks/mixed_steps.py --idle), few are not worth
# two copies
LEAST_OWN_CELLS = 256
_SECONDS_PER_BYTE, _RATE = 1e-9, 0.3  # of a restore: prior, and of the average that follows


class SequenceKeeper(Protocol):
    """Speculators that have caches of their own."""

    def save_sequences(self, seq_id: int) -> dict[str, Data]: ...

    def restore_sequences(self, seq_id: int, data: dict[str, Data]) -> None: ...


class PromptMemory:
    """The prompt store of a scheduler. With a store of no bytes nothing is kept."""

    def __init__(
        self,
        store: PromptStore,
        engine: Engine,
        speculators: SequenceKeeper,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self.store = store
        self._engine = engine
        self._speculators = speculators
        self._counters = counters
        self._clock = clock
        self._seconds_per_byte = _SECONDS_PER_BYTE
        # what was moved out of a slot, by its id, for as long as the store keeps it
        self._aside = WeakValueDictionary[int, StoredPrompt]()

    def improve(
        self, placement: Placement, active: ActiveRequest, slots: Sequence[Slot]
    ) -> Placement:
        """Save what the slot loses, and restore what is longer than what the cache holds."""
        slot = placement.slot
        self._aside.pop(slot.slot_id, None)
        num_kept = placement.num_known if placement.source is None else 0
        stored = self.find(active, placement.num_known)
        if stored is not None or 2 * num_kept < len(slot.kept):
            self.keep(slot, slots)
        if stored is None:
            return placement
        slot.hold([])
        while not self.restore(stored, slot):
            idle = [one for one in slots if one.active is None and one.kept]
            if not idle:
                break
            self.drop(min(idle, key=lambda one: one.last_used), slots)
        return Placement(slot, self._engine.reusable(slot.slot_id, num_shared(slot, active)))

    def drop(self, slot: Slot, slots: Sequence[Slot]) -> None:
        """Free an idle slot's cells; its prompt goes to main memory."""
        self.keep(slot, slots)
        self._engine.clear(slot.slot_id)
        slot.hold([])

    def set_aside(self, slots: Sequence[Slot]) -> None:
        """Move to main memory what idle slots hold in cells of their own.

        A processor's attention goes over the cells of all sequences to find those of its own.
        """
        for slot in slots:
            if slot.active is not None or len(slot.kept) < LEAST_OWN_CELLS:
                continue
            if _num_own(slot, slots) >= LEAST_OWN_CELLS and self.keep(slot, slots):
                stored, _ = self.store.find(slot.namespace, slot.kept)
                if stored is not None and len(stored.tokens) == len(slot.kept):
                    self._aside[slot.slot_id] = stored
                self._engine.clear(slot.slot_id)
                slot.hold([])

    def recall(self, slot_id: int, slots: Sequence[Slot]) -> None:
        """Bring back what was moved out of an idle slot, for whoever asks for that slot's prompt.

        Raises:
            CapacityError: there is no room for it now.
        """
        stored = self._aside.get(slot_id)
        if stored is None or slots[slot_id].kept:
            return
        if not self.restore(stored, slots[slot_id]):
            raise CapacityError(
                f"the prompt of slot {slot_id} is in main memory and the cache has no room for its "
                f"{len(stored.tokens)} tokens; try again when a request is over"
            )
        self._aside.pop(slot_id, None)

    def bring_back(self, slots: Sequence[Slot]) -> None:
        """Fill empty slots with the prompts in main memory that were used last."""
        empty = [slot for slot in slots if slot.active is None and not slot.kept]
        for stored, slot in zip(self.store.latest(len(empty)), empty, strict=False):
            self.restore(stored, slot)

    def keep(self, slot: Slot, slots: Sequence[Slot]) -> bool:
        """Copy what an idle slot holds, unless it is known elsewhere; it is about to be dropped.

        Returns whether it can be brought back.
        """
        tokens = slot.kept
        if not self.store.max_bytes or len(tokens) < LEAST_TOKENS:
            return False
        if slot.kept_exact < len(tokens):  # what was moved is only for those who asked for it
            return False
        if self.store.holds(slot.namespace, tokens) or any(
            _holds(other, slot) for other in slots if other is not slot
        ):
            return True
        data: dict[str, Data] = {TARGET: self._engine.save_sequence(slot.slot_id)}
        data |= self._speculators.save_sequences(slot.slot_id)
        is_kept = self.store.put(StoredPrompt(slot.namespace, list(tokens), data))
        self._counters.prompts_saved += is_kept
        return is_kept

    def find(self, active: ActiveRequest, num_cached: int) -> StoredPrompt | None:
        """A stored prompt that saves time, where `num_cached` tokens are in the model's cache."""
        if not active.request.cache_prompt or not len(self.store):
            return None
        stored, length = self.store.find(active.prompt_namespace, active.tokens)
        num_gained = min(length, len(active.tokens) - 1) - num_cached
        if stored is None or num_gained < LEAST_TOKENS:
            return None
        counters = self._counters
        if counters.prompt_tokens:
            reading = num_gained * counters.prompt_seconds / counters.prompt_tokens
            if reading < stored.num_bytes * self._seconds_per_byte:
                return None
        return stored

    def restore(self, stored: StoredPrompt, slot: Slot) -> bool:
        """Put a stored prompt into an idle slot, whose own is lost; False if there is no room."""
        started = self._clock()
        data = dict(stored.data)
        if not self._engine.restore_sequence(slot.slot_id, data.pop(TARGET)):
            slot.hold([])
            return False
        slot.hold(list(stored.tokens))
        slot.namespace = stored.namespace
        self._speculators.restore_sequences(slot.slot_id, data)
        self.store.take(stored)
        self._counters.prompts_restored += 1
        self._counters.prompt_tokens_restored += len(stored.tokens)
        seconds = (self._clock() - started) / stored.num_bytes
        self._seconds_per_byte += _RATE * (seconds - self._seconds_per_byte)
        return True


def _num_own(slot: Slot, slots: Sequence[Slot]) -> int:
    """Tokens of an idle slot behind the longest prefix that it has in common with another slot,
    whose cells the two may share.
    """
    shared = (
        common_prefix_length(other.cached, slot.kept)
        for other in slots
        if other is not slot and other.namespace == slot.namespace
    )
    return len(slot.kept) - max(shared, default=0)


def _holds(slot: Slot, other: Slot) -> bool:
    """Whether a slot holds all of another one's text."""
    if slot.namespace != other.namespace or slot.num_cached < len(other.kept):
        return False
    return common_prefix_length(slot.cached, other.kept) == len(other.kept)
