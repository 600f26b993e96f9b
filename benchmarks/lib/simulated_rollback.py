"""What snapshots of recurrent layers are worth: drafts as long as there are snapshots, or copies.

With n snapshots a draft has n tokens at most and is taken back for nothing. With none, the state is
copied before each draft; after a rejection it is put back, and the next step reads again what was
accepted, without a draft. With snapshots and several users, every user has as many rows as the one
with the longest draft: a snapshot is good until libllama computes other sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.lib.simulated_slots import LONGEST, AutoText, Choice, Score, Simulation, Slot

from headstart.control import BatchPlan, Controller, SlotDraft, Step


class AutoRollback(AutoText):
    """Text speculators under control, on a target whose memory is not just cut.

    snapshots: of each slot; 0: copies that take `copy_ms`, there and back.
    """

    def __init__(
        self, simulation: Simulation, controller: Controller, snapshots: int, copy_ms: float
    ) -> None:
        super().__init__(simulation, controller)
        self.snapshots, self.copy_ms = snapshots, copy_ms
        self._again: dict[int, int] = {}  # rows to read again, by the slot's first id
        self._drafted: dict[int, tuple[int, int]] = {}  # where a draft began, and its length

    def lengths(self, slots: Sequence[Slot]) -> Choice:
        drafts, longest = [], self.snapshots or LONGEST
        self._note_rejections(slots)
        for slot in slots:
            place = slot.text[slot.at]
            if not place.has_draft:
                drafts.append(SlotDraft())
                continue
            scores = [place.confidence] * LONGEST
            survival = self.controller.survival("text", scores, slot.seq_id)
            slot.pending.append((slot.at, scores, slot.run(), "text"))
            is_free = not self._again.get(slot.first_id)
            drafts.append(SlotDraft(survival[:longest] if is_free else ()))
        self.context = self.simulation.context(slots)
        again = sum(self._again.values())
        step = Step(len(slots), len(slots) + again, self.context)
        plan = self.controller.plan(drafts, step)
        for slot, length in zip(slots, plan.lengths, strict=True):
            self._drafted[slot.first_id] = (slot.at, length)
        copies = 0 if self.snapshots else sum(length > 0 for length in plan.lengths)
        for _ in range(copies):
            self.controller.observe_copy(self.copy_ms)
        back = sum(rows > 0 for rows in self._again.values())
        return Choice(plan.lengths, (copies + back) * self.copy_ms, again)

    def _note_rejections(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            start, length = self._drafted.get(slot.first_id, (0, 0))
            num_accepted = slot.at - start - 1
            rejected = not self.snapshots and length > num_accepted
            self._again[slot.first_id] = 1 + num_accepted if rejected and length else 0


def auto_with(simulation: Simulation, snapshots: int, copy_ms: float) -> Score:
    """Auto with so many snapshots, or with copies."""
    policy = AutoRollback(simulation, Controller(), snapshots, copy_ms)
    return simulation.run(policy.lengths, policy.after, policy.ends)


class AutoEven(AutoText):
    """Text speculators under control, on a target that computes as many rows for every user.

    snapshots: tokens that a draft has at most.
    """

    def __init__(self, simulation: Simulation, controller: Controller, snapshots: int) -> None:
        super().__init__(simulation, controller)
        self.snapshots = snapshots

    def price(self, num_slots: int) -> Step:
        return Step(num_slots, num_slots, self.context, is_even=True)

    def plan(self, drafts: Sequence[SlotDraft], step: Step) -> BatchPlan:
        drafts = [SlotDraft(draft.survival[: self.snapshots]) for draft in drafts]
        return super().plan(drafts, step)

    def lengths(self, slots: Sequence[Slot]) -> Choice:
        choice = super().lengths(slots)
        return choice._replace(num_padding=num_spare(choice.lengths))


def num_spare(lengths: Sequence[int]) -> int:
    """Rows that are computed although no draft has them."""
    return len(lengths) * max(lengths) - sum(lengths)


def even_speeds(simulation: Simulation, snapshots: int, fixed: Sequence[int]) -> dict[str, float]:
    """Off, auto and fixed lengths where every user has as many rows as the longest draft."""
    controller = Controller()
    simulation.warm_up(controller)
    policy = AutoEven(simulation, controller, snapshots)

    def fixed_length(length: int) -> Score:
        def choose(slots: Sequence[Slot]) -> Choice:
            lengths = [length * slot.text[slot.at].has_draft for slot in slots]
            return Choice(lengths, num_padding=num_spare(lengths))

        return simulation.run(choose)

    return {
        "off": simulation.off().speed,
        "fixed": max(fixed_length(length).speed for length in fixed),
        "auto": simulation.run(policy.lengths, policy.after, policy.ends).speed,
    }
