"""From the waiting queue to a slot, with the longest prefix that any slot already holds."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.scheduler.slot import ActiveRequest, Slot
from headstart.structures.prefix import common_prefix_length
from headstart.types import Engine


def choose_slot(slots: Sequence[Slot], active: ActiveRequest, engine: Engine) -> Slot | None:
    """Seat the run on a free slot with as much of its prompt in the cache as possible.

    A slot that holds mostly this conversation is continued. Otherwise the least recently used free
    slot is emptied and shares the best prefix that any slot holds, running ones included: shared
    cells cost nothing, and the conversation they came from stays cached.

    Returns None if no slot is free, or for a preempted request while there is no room for it.
    """
    free = [s for s in slots if s.active is None]
    if not free or (active.admitted is not None and not _has_room(slots, active, engine)):
        return None
    wished = [s for s in free if s.slot_id == active.request.slot_id]
    if not active.request.cache_prompt:
        slot = (wished or [min(free, key=_age)])[0]
        _seat(slot, active, 0, engine)
        return slot
    # The last prompt token is always decoded again: its logits are needed.
    limit = len(active.tokens) - 1
    common = {
        s.slot_id: min(limit, s.num_cached, common_prefix_length(s.cached, active.tokens))
        for s in slots
    }
    kept = {s.slot_id: engine.reusable(s.slot_id, common[s.slot_id]) for s in free}
    slot = (wished or [max(free, key=lambda s: (kept[s.slot_id], -s.last_used))])[0]
    if not wished and not _continues(slot, kept[slot.slot_id]):
        slot = min(free, key=_age)
    own = kept[slot.slot_id]
    copies = {
        s.slot_id: engine.reusable(s.slot_id, common[s.slot_id], by_copy=True)
        for s in slots
        if s is not slot
    }
    source = max(copies, key=lambda slot_id: copies[slot_id], default=slot.slot_id)
    if copies.get(source, 0) > own:
        own = copies[source] if engine.copy_prefix(source, slot.slot_id, copies[source]) else 0
        slot.kept = active.tokens[:own]
    _seat(slot, active, own, engine)
    return slot


def _has_room(slots: Sequence[Slot], active: ActiveRequest, engine: Engine) -> bool:
    """Whether a preempted request would stay: seated too early it reads its prompt only to be put
    back again.

    Its text must fit beside those that run, with an eighth of all cells left to grow into. Cells
    that are shared count for each, so it may wait too long, but never once nobody runs.
    """
    busy = sum(len(s.active.tokens) for s in slots if s.active is not None)
    return not busy or busy + len(active.tokens) <= engine.num_cells - engine.num_cells // 8


def _continues(slot: Slot, shared: int) -> bool:
    """Whether taking this slot loses little: at least half of what it holds is used again."""
    return 2 * shared >= slot.num_cached


def _age(slot: Slot) -> tuple[bool, float]:
    """Empty slots first, then the longest unused."""
    return (bool(slot.kept), slot.last_used)


def _seat(slot: Slot, active: ActiveRequest, shared: int, engine: Engine) -> None:
    if shared < len(slot.kept):
        shared = engine.rewind(slot.slot_id, shared)
    slot.kept = []
    slot.active = active
    active.num_decoded = active.num_cached = shared
