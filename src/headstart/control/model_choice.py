"""Several models that could draft: each slot's draft is made by one of them at most.

They are planned one after the other. What a model is expected to gain in a slot, its own time
deducted, is what a later one has to exceed there; then the slot is the later one's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from headstart.control.values import NO_ALLOWANCE, Allowance, ModelSlot

Plan = Callable[[str, Sequence[ModelSlot]], list[Allowance]]


def plan_together(
    asked: Mapping[str, Sequence[ModelSlot]],
    plan: Plan,
    gain_of: Callable[[str], float],
    withdraw: Callable[[str, int], None],
    charge: Callable[[str, float], None],
) -> dict[str, list[Allowance]]:
    """How far each model may draft, by speculator, in the order of `asked`.

    Args:
        asked: the slots that each model could draft for; the first models are preferred where
            lengths are set by hand.
        plan: plans one model alone.
        gain_of: tokens above the price that each slot gains which was granted to a model last.
        withdraw: a model gets no draft from this sequence after all.
        charge: a model that is only probed takes so many tokens from another.
    """
    if len(asked) == 1:
        return {name: plan(name, slots) for name, slots in asked.items()}
    holders: dict[int, tuple[str, int]] = {}  # by seq_id: who drafts, and where it is planned
    gains: dict[int, float] = {}
    planned: dict[str, list[Allowance]] = {}
    for name, slots in asked.items():
        free = [replace(s, rival=s.rival + gains.get(s.seq_id, 0.0)) for s in slots]
        allowances = planned[name] = list(plan(name, free))
        for index, (slot, allowance) in enumerate(zip(slots, allowances, strict=True)):
            if not allowance.max_tokens:
                continue
            if (holder := holders.get(slot.seq_id)) is not None:
                if slot.fixed_confidence is not None:
                    allowances[index] = NO_ALLOWANCE
                    continue
                planned[holder[0]][holder[1]] = NO_ALLOWANCE
                withdraw(holder[0], slot.seq_id)
                if not gain_of(name):
                    charge(name, gains[slot.seq_id])
            holders[slot.seq_id] = (name, index)
            gains[slot.seq_id] = gains.get(slot.seq_id, 0.0) + gain_of(name)
    return planned
