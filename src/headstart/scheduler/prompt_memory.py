"""Brings prompts that lose their place in the model's cache to main memory, and back.

A copy back costs a fraction of reading the prompt again: it moves the bytes of each token's keys
and values once, where reading multiplies each token with all weights. Both are measured, and the
cheaper way is taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from headstart.scheduler.admission import Placement, find_slot, is_another, num_shared
from headstart.scheduler.host_cache import Data, PromptStore, StoredPrompt
from headstart.scheduler.slot import ActiveRequest, Slot
from headstart.structures.checkpoints import unpack
from headstart.structures.prefix import common_prefix_length
from headstart.types import CacheKind, Engine
from headstart.types.counters import Counters
from headstart.types.errors import CapacityError, EngineError

log = logging.getLogger(__name__)

TARGET = "target"
LEAST_TOKENS = 32  # of a prompt worth keeping, and to gain by bringing one back
# cells of idle prompts that nobody else uses, from which on these are moved to main memory: 2,000
# made a decode take 1.3 to 1.5 times as long, few are not worth
# two copies
LEAST_OWN_CELLS = 256
LEAST_ROWS = 32  # to come, prompts and answers, from which on that is worth it
_SECONDS_PER_BYTE, _RATE = 1e-9, 0.3  # of a restore: prior, and of the average that follows
# a copy of a prompt of which only the end would be lost has to be so many times faster than reading
# that end again: perhaps nobody will ask for it
_TIMES_FASTER = 8


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
        self._bytes_per_token = 0.0  # of what was saved last
        self._aside: dict[int, list[int]] = {}  # by slot_id, the text that was moved out of it

    def improve(
        self, placement: Placement, active: ActiveRequest, slots: Sequence[Slot]
    ) -> Placement:
        """Save what the slot loses, and restore what is longer than what the cache holds."""
        slot = placement.slot
        self.forget(slot)
        num_kept = placement.num_known if placement.source is None else 0
        stored = self.find(active, placement.num_known)
        if stored is None:
            if 2 * num_kept < len(slot.kept) or self._is_end_worth_it(slot, num_kept):
                self.keep(slot, slots)
            return placement
        self.store.take(stored)  # what is kept now may need its place in the store
        if common_prefix_length(stored.tokens, slot.kept) < len(slot.kept):
            self.keep(slot, slots)
        slot.hold([])
        # where another slot has most of it, no other prompt makes room for the rest
        num_here = max((num_shared(one, active) for one in slots if one is not slot), default=0)
        is_here = 2 * num_here > len(stored.tokens)
        while not self.restore(stored, slot, slots):
            if is_here or not self.make_room(slots):
                self.store.put(stored)
                return find_slot(slots, active, self._engine) or Placement(slot)
        known = num_shared(slot, active)
        if is_another(known, stored.num_prompt):  # it will be asked for again
            self.store.put(stored)
        return Placement(slot, self._engine.reusable(slot.slot_id, known))

    def _is_end_worth_it(self, slot: Slot, num_kept: int) -> bool:
        """Whether to copy another conversation's prompt, which will be cut to so many tokens."""
        if (
            not is_another(num_kept, slot.num_prompt)
            or self._engine.cache_kind is not CacheKind.CUT
        ):
            return False
        copying = len(slot.kept) * self._bytes_per_token * self._seconds_per_byte
        reading = self._reading_seconds(len(slot.kept) - num_kept)
        return reading > _TIMES_FASTER * copying

    def _reading_seconds(self, num_tokens: int) -> float:
        counters = self._counters
        return num_tokens * counters.prompt_seconds / max(1, counters.prompt_tokens)

    def make_room(self, slots: Sequence[Slot]) -> bool:
        """Free the cells of the idle slot that was used longest ago; False if there is none. Its
        prompt goes to main memory.
        """
        idle = [slot for slot in slots if slot.active is None and slot.kept]
        if idle:
            slot = min(idle, key=lambda one: one.last_used)
            self.keep(slot, slots)
            self._engine.clear(slot.slot_id)
            slot.hold([])
        return bool(idle)

    def set_aside(self, slots: Sequence[Slot]) -> None:
        """Move to main memory what idle slots hold in cells of their own.

        A processor's attention goes over the cells of all sequences to find those of its own. For
        answers of a few tokens, two copies take longer than that.
        """
        running = (slot.active for slot in slots if slot.active is not None)
        if sum(active.num_left + active.num_pending for active in running) < LEAST_ROWS:
            return
        idle = [slot for slot in slots if slot.active is None and len(slot.kept) >= LEAST_TOKENS]
        own = {slot.slot_id: _num_own(slot, slots) for slot in idle}
        if sum(own.values()) < LEAST_OWN_CELLS:
            return
        for slot in idle:
            # a copy is of the whole prompt, also of what it shares
            if own[slot.slot_id] < max(LEAST_TOKENS, len(slot.kept) // 2):
                continue
            if self._has_room(slot, slots) and self.keep(slot, slots):
                self._aside[slot.slot_id] = slot.kept
                self._engine.clear(slot.slot_id)
                slot.hold([])

    def _has_room(self, slot: Slot, slots: Sequence[Slot]) -> bool:
        """Whether main memory takes a slot's prompt and no fewer conversations stay known than the
        slots alone would hold.
        """
        num_bytes = int(len(slot.kept) * self._bytes_per_token)
        if num_bytes > self.store.max_bytes:
            return False
        num_dropped = self.store.num_dropped_for(num_bytes)
        num_in_slots = sum(1 for one in slots if one is not slot and one.num_cached)
        num_known = num_in_slots + len(self.store) + 1 - num_dropped
        return not num_dropped or num_known >= len(slots)

    def forget(self, slot: Slot) -> None:
        """What was moved out of a slot is no longer what that slot's number stands for."""
        self._aside.pop(slot.slot_id, None)

    def recall(self, slot: Slot, slots: Sequence[Slot]) -> None:
        """Bring back what was moved out of an idle slot, for whoever asks for that slot's prompt.

        Raises:
            CapacityError: there is no room for it now.
        """
        stored, num_tokens = self._moved_out_of(slot)
        if stored is None:
            return
        self.store.take(stored)  # what makes room may need its place in the store
        is_back = self.restore(stored, slot, slots)
        while not is_back and self.make_room(slots):
            is_back = self.restore(stored, slot, slots)
        if not is_back or num_tokens < len(stored.tokens):
            self.store.put(stored)
        if not is_back:
            raise CapacityError(
                f"the prompt of slot {slot.slot_id} is in main memory and the cache has no room "
                f"for its {len(stored.tokens)} tokens; try again when a request is over"
            )
        self._engine.truncate(slot.slot_id, num_tokens)
        slot.hold(slot.kept[:num_tokens], num_prompt=stored.num_prompt)
        self.forget(slot)

    def erase(self, slot: Slot) -> int:
        """Forget what was moved out of an idle slot; the number of its tokens."""
        stored, num_tokens = self._moved_out_of(slot)
        self.forget(slot)
        if stored is not None and len(stored.tokens) == num_tokens:
            self.store.take(stored)
        return num_tokens

    def _moved_out_of(self, slot: Slot) -> tuple[StoredPrompt | None, int]:
        """The stored prompt that begins with what was moved out of a slot, and the length of that.

        None and 0 if nothing was, or if the store has lost it.
        """
        tokens = self._aside.get(slot.slot_id, [])
        stored, num_shared = self.store.find(slot.namespace, tokens)
        return (stored, num_shared) if num_shared == len(tokens) else (None, 0)

    def bring_back(self, slots: Sequence[Slot]) -> None:
        """Fill empty slots with the prompts in main memory that were used last."""
        empty = [slot for slot in slots if slot.active is None and not slot.kept]
        for stored, slot in zip(self.store.latest(len(empty)), empty, strict=False):
            if self.restore(stored, slot, slots):
                self.store.take(stored)

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
        try:
            data: dict[str, Data] = {TARGET: self._engine.save_sequence(slot.slot_id)}
            data |= self._speculators.save_sequences(slot.slot_id)
        except (EngineError, MemoryError) as error:  # then it is read again, nothing else
            log.warning("a prompt is not kept: %s", error or "out of memory")
            return False
        stored = StoredPrompt(slot.namespace, list(tokens), data, slot.num_prompt)
        self._bytes_per_token = stored.num_bytes / len(tokens)
        is_kept = self.store.put(stored)
        self._counters.prompts_saved += is_kept
        return is_kept

    def find(self, active: ActiveRequest, num_cached: int) -> StoredPrompt | None:
        """A stored prompt that saves time, where `num_cached` tokens are in the model's cache."""
        if not active.request.cache_prompt or not len(self.store):
            return None
        stored, length = self.store.find(active.prompt_namespace, active.tokens)
        if stored is None:
            return None
        length = self._usable(stored, min(length, len(active.tokens) - 1))
        num_gained = length - num_cached
        if num_gained < LEAST_TOKENS:
            return None
        copying = stored.num_bytes * self._seconds_per_byte
        if self._counters.prompt_tokens and self._reading_seconds(num_gained) < copying:
            return None
        return stored

    def _usable(self, stored: StoredPrompt, length: int) -> int:
        """Of its first `length` tokens, those that are still there after a restore and a cut."""
        if self._engine.cache_kind in (CacheKind.CUT, CacheKind.WINDOW):
            return length
        if length == len(stored.tokens) or (parts := unpack(stored.data[TARGET])) is None:
            return length
        return max((c.length for c in parts[1] if c.length <= length), default=0)

    def restore(self, stored: StoredPrompt, slot: Slot, slots: Sequence[Slot]) -> bool:
        """Put a stored prompt into an idle slot, whose own is lost; False if there is no room.

        It shares the cells of what it has in common with another slot.
        """
        started = self._clock()
        data = dict(stored.data)
        if not self._engine.restore_sequence(slot.slot_id, data.pop(TARGET)):
            slot.hold([])
            return False
        slot.hold(list(stored.tokens), num_prompt=stored.num_prompt)
        slot.namespace = stored.namespace
        source, num_common = _alike(slot, slots)
        if source is not None and num_common >= LEAST_TOKENS:
            self._engine.share_prefix(source.slot_id, slot.slot_id, num_common)
        self._speculators.restore_sequences(slot.slot_id, data)
        self._counters.prompts_restored += 1
        self._counters.prompt_tokens_restored += len(stored.tokens)
        seconds = (self._clock() - started) / stored.num_bytes
        self._seconds_per_byte += _RATE * (seconds - self._seconds_per_byte)
        return True


def _num_own(slot: Slot, slots: Sequence[Slot]) -> int:
    """Tokens of an idle slot behind the longest prefix that it has in common with another slot,
    whose cells the two may share.
    """
    return len(slot.kept) - _alike(slot, slots)[1]


def _alike(slot: Slot, slots: Sequence[Slot]) -> tuple[Slot | None, int]:
    """The slot that has most in common with an idle one, and how many tokens that is."""
    best, longest = None, 0
    for other in slots:
        if other is slot or other.namespace != slot.namespace:
            continue
        known = min(other.num_cached, other.num_exact)
        shared = min(known, common_prefix_length(other.cached, slot.kept))
        if shared > longest:
            best, longest = other, shared
    return best, longest


def _holds(slot: Slot, other: Slot) -> bool:
    """Whether a slot holds all of another one's text."""
    if slot.namespace != other.namespace or slot.num_cached < len(other.kept):
        return False
    return common_prefix_length(slot.cached, other.kept) == len(other.kept)
