"""What users may do with an idle slot: keep its prompt in a file, bring it back, forget it.

The files are libllama's own, so llama-server reads ours and we read its.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from headstart.errors import CapacityError, InvalidParameterError
from headstart.scheduler.request import SlotAction, SlotEvent
from headstart.scheduler.slot import Slot
from headstart.types import Engine


def perform(
    action: SlotAction, slots: Sequence[Slot], engine: Engine, clock: Callable[[], float]
) -> SlotEvent:
    """Do it between two steps.

    Raises:
        CapacityError: a request uses the slot.
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
    num_tokens, num_bytes = _ACTIONS[action.action](slot, action, engine)
    return SlotEvent(action.request_id, num_tokens, num_bytes, clock() - started)


def _save(slot: Slot, action: SlotAction, engine: Engine) -> tuple[int, int]:
    if slot.namespace != action.namespace:  # as if nothing were there: it is somebody else's
        raise InvalidParameterError(f"slot {slot.slot_id} keeps no prompt of yours to save")
    return len(slot.kept), engine.write_sequence(slot.slot_id, Path(action.path), slot.kept)


def _restore(slot: Slot, action: SlotAction, engine: Engine) -> tuple[int, int]:
    slot.hold([])
    tokens, num_bytes = engine.read_sequence(slot.slot_id, Path(action.path))
    slot.hold(tokens)
    slot.namespace = action.namespace
    return len(slot.kept), num_bytes


def _erase(slot: Slot, action: SlotAction, engine: Engine) -> tuple[int, int]:
    if slot.namespace != action.namespace:
        return 0, 0
    num_tokens = len(slot.kept)
    slot.hold([])
    engine.clear(slot.slot_id)
    return num_tokens, 0


_ACTIONS = {"save": _save, "restore": _restore, "erase": _erase}
