"""From the waiting queue to a slot, with the longest prefix that any slot already holds.

`find_slot` and `find_leader` only look; `admit` and `share` change slots and the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headstart.scheduler.context_shift import Chunk, find_chunks, move_chunks
from headstart.scheduler.slot import ALL_EXACT, ActiveRequest, Slot
from headstart.structures.prefix import common_prefix_length
from headstart.types import CacheKind, Engine
from headstart.types.errors import CapacityError, ContextLengthError, InvalidParameterError
from headstart.types.request import Request

LEAST_SHARED = 32  # tokens worth waiting for while another request reads them


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request will run, and what of its text is known there."""

    slot: Slot
    num_shared: int = 0  # leading tokens of the request that are in the cache
    source: Slot | None = None  # the slot to share cells with; None: its own are used
    chunks: tuple[Chunk, ...] = ()  # further pieces of the text, which have to be moved

    @property
    def num_known(self) -> int:
        """Tokens of the request that need not be read."""
        return self.num_shared + sum(chunk.length for chunk in self.chunks)


def check(request: Request, engine: Engine, num_slots: int) -> None:
    """Refuse a request that can never run.

    Raises:
        ContextLengthError, InvalidParameterError: why.
    """
    prompt = request.prompt
    if not len(prompt):
        raise InvalidParameterError("the prompt has no tokens; send some text")
    if len(prompt) >= engine.context_size:
        raise ContextLengthError(len(prompt), engine.context_size)
    low, high = min(prompt), max(prompt)
    if low < 0 or high >= engine.vocab_size:
        wrong = low if low < 0 else high
        raise InvalidParameterError(
            f"token id {wrong} is not in the vocabulary (0 to {engine.vocab_size - 1})"
        )
    if (bias := request.sampling.logit_bias) and not all(0 <= i < engine.vocab_size for i in bias):
        raise InvalidParameterError(
            f"logit_bias names a token that is not in the vocabulary (0 to {engine.vocab_size - 1})"
        )
    if request.slot_id is not None and not 0 <= request.slot_id < num_slots:
        raise InvalidParameterError(
            f"id_slot is {request.slot_id} but the slots are 0 to {num_slots - 1}"
        )


def check_queue(num_waiting: int, num_free: int, max_queue: int) -> None:
    """Refuse a request when too many wait that no free slot will take.

    Raises:
        CapacityError: they do.
    """
    if num_waiting >= max_queue + num_free:
        raise CapacityError(
            f"{num_waiting} requests are waiting and --max-queue is {max_queue}; try again later"
        )


def waits_for_slot(slots: Sequence[Slot], active: ActiveRequest) -> bool:
    """Whether the slot that the request asks for runs another one; those behind it go first."""
    wished = active.request.slot_id
    return wished is not None and slots[wished].active is not None


def find_slot(slots: Sequence[Slot], active: ActiveRequest, engine: Engine) -> Placement | None:
    """A free slot with as much of the request's text in the cache as possible.

    A slot that holds this conversation is continued; where no slot is empty, also one that holds
    another which begins mostly alike. Otherwise the least recently used free slot is emptied and
    shares the best prefix that any slot holds, busy ones included: shared cells cost nothing, and
    the conversation they came from stays cached. Only text of the request's
    own namespace is looked at, so that nobody learns what others wrote from what is cached.

    Returns None if no slot is free, or for a preempted request while there is no room for it.
    """
    free = [s for s in slots if s.active is None]
    if not free or (active.is_resumed and not _has_room(slots, active, engine)):
        return None
    wished = [s for s in free if s.slot_id == active.request.slot_id]
    oldest = min(free, key=_age)
    if not active.request.cache_prompt:
        return Placement((wished or [oldest])[0])
    common = {s.slot_id: num_shared(s, active) for s in slots}
    own = {s.slot_id: _continuation(s, common[s.slot_id], active, engine) for s in free}
    slot = (wished or [max(free, key=lambda s: (own[s.slot_id].num_known, -s.last_used))])[0]
    if not wished and _loses_much(own[slot.slot_id], common[slot.slot_id], oldest, engine):
        slot = oldest
    copies = {
        s.slot_id: engine.reusable(s.slot_id, common[s.slot_id], by_copy=True)
        for s in slots
        if s is not slot
    }
    source = max(copies, key=lambda slot_id: copies[slot_id], default=slot.slot_id)
    if copies.get(source, 0) > own[slot.slot_id].num_known:
        return Placement(slot, copies[source], slots[source])
    return own[slot.slot_id]


def is_another(num_shared: int, num_prompt: int) -> bool:
    """Whether a request with so many common tokens continues another conversation than the one
    with this prompt, which it shares only the beginning with.

    Of the conversation that it continues, it may lack the answer: thoughts are not sent back.
    """
    return num_shared + LEAST_SHARED <= num_prompt


def _loses_much(own: Placement, num_shared: int, oldest: Slot, engine: Engine) -> bool:
    """Whether to continue a slot would lose most of what it holds; or some of another conversation,
    while there is an empty slot that could share what the two have in common.
    """
    slot, known = own.slot, own.num_known
    if 2 * known < slot.num_cached or oldest.kept:
        return 2 * known < slot.num_cached
    can_share = engine.reusable(slot.slot_id, num_shared, by_copy=True) >= known
    return can_share and is_another(num_shared, slot.num_prompt)


def _continuation(slot: Slot, num_shared: int, active: ActiveRequest, engine: Engine) -> Placement:
    """What a free slot's own cache is good for."""
    least = active.request.cache_reuse
    if not least or not engine.can_shift or slot.namespace != active.prompt_namespace:
        return Placement(slot, engine.reusable(slot.slot_id, num_shared))
    chunks = find_chunks(slot.kept, active.tokens, num_shared, least)
    return Placement(slot, num_shared, chunks=chunks)


def admit(placement: Placement, active: ActiveRequest, engine: Engine) -> None:
    """Give the request its slot, whose cache then holds exactly what the two have in common."""
    slot, shared = placement.slot, placement.num_shared
    num_exact = (placement.source or slot).num_exact
    if placement.chunks:
        num_exact = min(num_exact, shared)
        is_moved = move_chunks(slot.slot_id, placement.chunks, engine)
        shared = engine.rewind(slot.slot_id, placement.num_known if is_moved else 0)
    elif placement.source is not None:
        if not engine.copy_prefix(placement.source.slot_id, slot.slot_id, shared):
            shared = 0
    elif shared < len(slot.kept):
        shared = engine.rewind(slot.slot_id, shared)
    slot.hold([])
    slot.namespace = active.prompt_namespace
    slot.active = active
    active.slot_id = slot.slot_id
    active.num_decoded = shared
    active.num_exact = num_exact if num_exact < shared else ALL_EXACT
    if not active.is_resumed:
        active.num_cached = shared


def find_leader(
    running: Iterable[ActiveRequest], active: ActiveRequest, engine: Engine
) -> ActiveRequest | None:
    """The request that is reading most of what this one has to read; None if few tokens agree.

    `active.num_awaited` says how far, so that no step compares the texts again.

    `running` holds requests in the order of their admission, without `active`: so none waits for
    one that waits for it.
    """
    if not active.request.cache_prompt or engine.cache_kind is not CacheKind.CUT:
        return None  # where prefixes cannot be cut anywhere, waiting might be in vain
    best, most = None, active.num_decoded + LEAST_SHARED - 1
    for other in running:
        if other.is_generating or other.prompt_namespace != active.prompt_namespace:
            continue
        shared = min(_most_shared(active), common_prefix_length(other.tokens, active.tokens))
        if shared > most:
            best, most = other, shared
    active.num_awaited = most
    return best


def share_prefixes(slots: Sequence[Slot], running: Sequence[ActiveRequest], engine: Engine) -> None:
    """Give requests that wait for a leader what it has read, once that is all that they share.

    If it left before, the first of them goes on with the prompt, and the others wait for that one.
    """
    for index, active in enumerate(running):
        leader = active.leader
        if leader is None:
            continue
        is_reading = slots[leader.slot_id].active is leader and not leader.is_generating
        if is_reading and leader.num_decoded < active.num_awaited:
            continue
        others = (slot for slot in slots if slot.active is not active)
        source = max(others, key=lambda slot: num_shared(slot, active))
        length = engine.reusable(source.slot_id, num_shared(source, active), by_copy=True)
        if length > active.num_decoded:
            is_copied = engine.copy_prefix(source.slot_id, active.slot_id, length)
            active.num_decoded = length * is_copied
            if not active.is_resumed:
                active.num_cached = active.num_decoded
            active.num_exact = source.num_exact if source.num_exact < length else ALL_EXACT
        active.leader = None if is_reading else find_leader(running[:index], active, engine)


def num_shared(slot: Slot, active: ActiveRequest) -> int:
    """Leading tokens of the request that the slot's cache holds and that it may use."""
    if slot.namespace != active.prompt_namespace:
        return 0
    known = min(_most_shared(active), slot.num_cached)
    if not active.request.cache_reuse:
        known = min(known, slot.num_exact)
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


def _age(slot: Slot) -> tuple[bool, float]:
    """Empty slots first, then the longest unused."""
    return (bool(slot.kept), slot.last_used)
