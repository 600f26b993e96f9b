"""One ragged batch a step: every generating slot with its draft, then prompt chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headstart.scheduler.slot import Slot
from headstart.types import Batch, Engine


class DraftLimit(NamedTuple):
    """Most draft tokens that a slot may verify in a step, and what bounds them."""

    tokens: int
    reason: str


def draft_rooms(generating: Sequence[Slot], engine: Engine, num_slots: int) -> list[DraftLimit]:
    """The room of each generating slot in this step.

    Bounded by what it may still emit (the step adds one token of its own), by its context, by
    what the memory can roll back, and by a fair share of the batch's rows and outputs.
    """
    reserved = num_slots - len(generating)  # prompts that end in this step need one output each
    outputs = (engine.max_outputs - reserved) // len(generating) - 1
    rows = (engine.max_batch_tokens - reserved) // len(generating) - 1
    share = min(
        DraftLimit(min(outputs, rows), "batch full"),
        DraftLimit(engine.max_rollback, "memory takes nothing back"),
    )
    draft_limits = []
    for slot in generating:
        active = slot.active
        assert active is not None
        left = DraftLimit(active.num_left - 1, "max_tokens reached")
        context = DraftLimit(engine.context_size - len(active.tokens) - 1, "context full")
        draft_limits.append(min(share, left, context))
    return draft_limits


def build(batch: Batch, slots: Sequence[Slot], engine: Engine, prefill_chunk: int) -> list[Slot]:
    """Fill the batch; returns the slots in it, in the order of their rows, with `run.num_rows` set.

    Prompts share `prefill_chunk` rows while others generate, so that these wait only a little, and
    take a large chunk when nobody does. The oldest prompt comes first.
    """
    batch.clear()
    included: list[Slot] = []
    reading: list[Slot] = []
    for slot in slots:
        active = slot.active
        if active is None:
            continue
        if not active.is_generating:
            reading.append(slot)
            continue
        draft = active.proposal.tokens
        active.num_rows = 1 + len(draft)
        batch.add(slot.slot_id, active.num_decoded, [active.tokens[-1], *draft], active.num_rows)
        included.append(slot)
    if reading:
        room = min(engine.max_batch_tokens - batch.num_rows, prefill_chunk if included else _ALONE)
        included += _add_prompts(batch, reading, room)
    return included


def _add_prompts(batch: Batch, reading: list[Slot], room: int) -> list[Slot]:
    included = []
    for slot in sorted(reading, key=_admitted):
        active = slot.active
        assert active is not None
        active.num_rows = min(room, active.num_pending)
        if active.stops:
            active.num_rows = min(active.num_rows, active.stops[0] - active.num_decoded)
        if not active.num_rows:
            break
        tokens = active.tokens[active.num_decoded : active.num_decoded + active.num_rows]
        batch.add(
            slot.slot_id, active.num_decoded, tokens, int(active.num_rows == active.num_pending)
        )
        room -= active.num_rows
        included.append(slot)
    return included


_ALONE = 512  # prompt rows of a step without generating slots: bounds how long a cancel waits


def _admitted(slot: Slot) -> float:
    assert slot.active is not None
    return slot.active.admitted or 0.0
