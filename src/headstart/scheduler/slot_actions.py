"""What users may do with an idle slot: keep its prompt in a file, bring it back, forget it.

The files are libllama's own, so llama-server reads ours and we read its.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from headstart.scheduler.prompt_memory import PromptMemory
from headstart.scheduler.slot import Slot
from headstart.types import ContextFullError, Engine
from headstart.types.errors import CapacityError, InvalidParameterError
from headstart.types.request import SlotAction, SlotEvent


def perform(
    action: SlotAction,
    slots: Sequence[Slot],
    engine: Engine,
    memory: PromptMemory,
    clock: Callable[[], float],
) -> SlotEvent:
    """Do it between two steps.

    Raises:
        CapacityError: a request uses the slot, or there is no room for its prompt.
        InvalidParameterError: there is no such slot, or the file cannot be used.
        EngineError: the file cannot be written.
    """
    if not 0 <= action.slot_id < len(slots):
        raise InvalidParameterError(
            f"id_slot is {action.slot_id} but the slots are 0 to {len(slots) - 1}"
        )
    slot, started = slots[action.slot_id], clock()
    if slot.active is not None:
        raise CapacityError(f"slot {slot.slot_id} is used by a request; try again when it is idle")
    is_theirs = slot.namespace == action.namespace  # if not, as if nothing were there
    num_tokens = num_bytes = 0
    path = Path(action.path)
    if action.action == "restore":
        num_tokens, num_bytes = _restore(slot, path, slots, engine, memory)
        slot.namespace = action.namespace
    elif action.action == "erase" and is_theirs:
        num_tokens = memory.erase(slot) or len(slot.kept)
        slot.hold([])
        engine.clear(slot.slot_id)
    elif action.action == "save":
        if not is_theirs:
            raise InvalidParameterError(f"slot {slot.slot_id} keeps no prompt of yours to save")
        memory.recall(slot, slots)
        num_tokens = len(slot.kept)
        num_bytes = engine.write_sequence(slot.slot_id, path, slot.kept, slot.kept_exact)
    return SlotEvent(action.request_id, num_tokens, num_bytes, clock() - started)


def _restore(
    slot: Slot, path: Path, slots: Sequence[Slot], engine: Engine, memory: PromptMemory
) -> tuple[int, int]:
    """Read a file into a slot; its tokens and bytes. What the slot holds goes to main memory."""
    memory.keep(slot, slots)
    memory.forget(slot)
    slot.hold([])
    while True:
        try:
            saved = engine.read_sequence(slot.slot_id, path)
        except ContextFullError as error:
            if not memory.make_room(slots):
                raise CapacityError(
                    f"the cache has no room for {path.name} beside the requests that run; try "
                    "again when one is over"
                ) from error
        else:
            slot.hold(saved.tokens, saved.num_exact)
            return len(saved.tokens), saved.num_bytes
