"""From the waiting queue to a slot, with the longest prefix that any slot already holds.

`find_slot` and `find_leader` only look; `admit` and `share` change slots and the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headstart.scheduler.slot import ActiveRequest, Slot
from headstart.structures.prefix import common_prefix_length
from headstart.types import Engine, MemoryKind

LEAST_SHARED = 32  # tokens worth waiting for while another request reads them


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request will run, and what of its text is known there."""

    slot: Slot
    num_shared: int = 0  # leading tokens of the request that `source` holds
    source: Slot | None = None  # the slot itself, or the one to share cells with


def find_slot(slots: Sequence[Slot], active: ActiveRequest, engine: Engine) -> Placement | None:
    """A free slot with as much of the request's text in the cache as possible.

    A slot that holds mostly this conversation is continued. Otherwise the least recently used free
    slot is emptied and shares the best prefix that any slot holds, busy ones included: shared
    cells cost nothing, and the conversation they came from stays cached. Only text of the request's
    own namespace is looked at, so that nobody learns what others wrote from what is cached.

    Returns None if no slot is free, or for a preempted request while there is no room for it.
    """
    free = [s for s in slots if s.active is None]
    if not free or (active.admitted is not None and not _has_room(slots, active, engine)):
        return None
    wished = [s for s in free if s.slot_id == active.request.slot_id]
    oldest = min(free, key=_age)
    if not active.request.cache_prompt:
        return Placement((wished or [oldest])[0])
    shared = {s.slot_id: num_shared(s, active) for s in slots}
    slot = (wished or [max(free, key=lambda s: (shared[s.slot_id], -s.last_used))])[0]
    if not wished and not _continues(slot, shared[slot.slot_id], engine):
        slot = oldest
    best = max(slots, key=lambda s: shared[s.slot_id])
    if engine.memory is MemoryKind.CUT and shared[best.slot_id] > shared[slot.slot_id]:
        return Placement(slot, shared[best.slot_id], best)
    return Placement(slot, shared[slot.slot_id], slot)


def admit(placement: Placement, active: ActiveRequest, engine: Engine) -> None:
    """Give the request its slot, whose cache then holds exactly what the two have in common."""
    slot, shared = placement.slot, placement.num_shared
    if placement.source is not None and placement.source is not slot:
        if not engine.copy_prefix(placement.source.slot_id, slot.slot_id, shared):
            engine.clear(slot.slot_id)
            shared = 0
    elif shared < len(slot.kept) and not (shared and engine.truncate(slot.slot_id, shared)):
        engine.clear(slot.slot_id)
        shared = 0
    slot.kept = []
    slot.namespace = active.request.namespace
    slot.active = active
    active.slot_id = slot.slot_id
    active.num_decoded = shared
    if active.admitted is None:  # what is read again after a preemption is not counted twice
        active.num_cached = shared


def find_leader(running: Iterable[ActiveRequest], active: ActiveRequest) -> ActiveRequest | None:
    """The request that is reading most of what this one has to read; None if few tokens agree.

    `running` holds requests in the order of their admission, without `active`: so none waits for
    one that waits for it.
    """
    if not active.request.cache_prompt:
        return None
    best, most = None, active.num_decoded + LEAST_SHARED - 1
    for other in running:
        if other.is_generating or other.request.namespace != active.request.namespace:
            continue
        shared = min(_most_shared(active), common_prefix_length(other.tokens, active.tokens))
        if shared > most:
            best, most = other, shared
    return best


def share_prefixes(slots: Sequence[Slot], running: Iterable[ActiveRequest], engine: Engine) -> None:
    """Give requests that wait for a leader what it has read, once that is all that they share."""
    for active in running:
        leader = active.leader
        if leader is None:
            continue
        shared = min(_most_shared(active), common_prefix_length(leader.tokens, active.tokens))
        if slots[leader.slot_id].active is leader and leader.num_decoded < shared:
            continue
        active.leader = None
        source = max(slots, key=lambda slot: num_shared(slot, active))
        length = num_shared(source, active)
        is_more = length > active.num_decoded and source.active is not active
        if is_more and engine.copy_prefix(source.slot_id, active.slot_id, length):
            active.num_cached += length - active.num_decoded
            active.num_decoded = length


def num_shared(slot: Slot, active: ActiveRequest) -> int:
    """Leading tokens of the request that the slot's cache holds and that it may use."""
    if slot.namespace != active.request.namespace:
        return 0
    known = min(_most_shared(active), slot.num_cached)
    return min(known, common_prefix_length(slot.cached, active.tokens))


def _most_shared(active: ActiveRequest) -> int:
    """The last token is always decoded again: its logits are needed."""
    return len(active.tokens) - 1


def _has_room(slots: Sequence[Slot], active: ActiveRequest, engine: Engine) -> bool:
    """Whether a preempted request would stay.

    Admitted too early it reads its prompt only to be preempted again. Its text must fit beside
    those that run, with an eighth of all cells left to grow into. Cells that are shared count for
    each, so it may wait too long, but never once nobody runs.
    """
    busy = sum(len(s.active.tokens) for s in slots if s.active is not None)
    return not busy or busy + len(active.tokens) <= engine.num_cells - engine.num_cells // 8


def _continues(slot: Slot, shared: int, engine: Engine) -> bool:
    """Whether taking this slot loses little: at least half of what it holds is used again."""
    if engine.memory is not MemoryKind.CUT:
        return shared == slot.num_cached  # nothing can be cut off
    return 2 * shared >= slot.num_cached


def _age(slot: Slot) -> tuple[bool, float]:
    """Empty slots first, then the longest unused."""
    return (bool(slot.kept), slot.last_used)
