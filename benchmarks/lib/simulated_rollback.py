"""What snapshots of recurrent layers are worth: drafts as long as there are snapshots, or copies.

With n snapshots a draft has n tokens at most and is taken back for nothing. With none, the state is
copied before each draft; after a rejection it is put back, and the next step decodes again what was
accepted, perhaps before another draft. With snapshots and several users, every user has as many
rows as the one with the longest draft: a snapshot is good until libllama computes other sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.lib.simulated_slots import (
    LONGEST,
    AutoText,
    Choice,
    Score,
    Simulation,
    Slot,
)

from headstart.control import Controller, Step
from headstart.engine.groups import divide
from headstart.types import Rows
from headstart.types.widths import Widths

WIDTHS = Widths(tuple(range(1, 65)))


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
        self._note_rejections(slots)
        plan = self.begin(slots, sum(self._again.values()))
        assert plan.step is not None
        plan.step.again = [self._again[slot.first_id] for slot in slots]
        self.offer_texts(slots)
        choice = self.assign_rows(max_tokens=self.snapshots or LONGEST)
        for slot, length in zip(slots, choice.lengths, strict=True):
            self._drafted[slot.first_id] = (slot.at, length)
        copies = back = 0
        if not self.snapshots:
            again = plan.step.again
            back = sum(num > 0 for num in again)
            copies = sum(n > 0 == num for n, num in zip(choice.lengths, again, strict=True))
        plan.copies_ms = [self.copy_ms] * copies
        return Choice(choice.lengths, (copies + back) * self.copy_ms, sum(self._again.values()))

    def _note_rejections(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            start, length = self._drafted.get(slot.first_id, (0, 0))
            num_emitted = slot.at - start
            if self.snapshots or length < max(1, num_emitted):
                self._again[slot.first_id] = 0
            else:
                self._again[slot.first_id] += num_emitted


def auto_with(simulation: Simulation, snapshots: int, copy_ms: float) -> Score:
    """Auto with so many snapshots, or with copies."""
    policy = AutoRollback(simulation, Controller(), snapshots, copy_ms)
    return simulation.run(policy.lengths, policy.after)


class AutoEven(AutoText):
    """The same on a hybrid target, which computes as many rows for every user.

    snapshots: tokens that a draft has at most, which is then taken back for nothing.
    """

    def __init__(self, simulation: Simulation, controller: Controller, snapshots: int) -> None:
        super().__init__(simulation, controller)
        self.snapshots = snapshots

    def shape(self, num_slots: int, num_rows: int, context: int) -> Step:
        return Step(num_slots, num_rows, context, rows=Rows.PADDED)

    def assign_rows(self, draft_ms: float = 0.0, max_tokens: int = LONGEST) -> Choice:
        choice = super().assign_rows(draft_ms, self.snapshots)
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
        "auto": simulation.run(policy.lengths, policy.after).speed,
    }


class ExactSimulation(Simulation):
    """Several users with --exact: the decodes of a step take the least time together, and each has
    equally many rows of every user.
    """

    def step_ms(self, lengths: Sequence[int], num_rows: int, context: int) -> float:
        costs = {n: self.curve(n) for n in WIDTHS.sizes}
        groups = divide([(0, 1 + length, 0) for length in lengths], WIDTHS, costs)
        return sum(costs[len(group.runs) * group.width] for group in groups)
