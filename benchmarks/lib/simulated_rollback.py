"""Targets whose memory is not just cut, and those that compute the rows of several users otherwise.

With n snapshots a draft has n tokens at most and is taken back for nothing, and every user has as
many rows as the one with the longest draft: a snapshot is good until libllama computes other
sequences. With none, the state is copied before each draft; after a rejection it is put back, and
the next step decodes again what was accepted, perhaps before another draft. Users with drafts then
have passes of equally many rows each, and the others a pass of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from benchmarks.lib.simulated_slots import (
    LONGEST,
    AutoText,
    Choice,
    Score,
    Simulation,
    Slot,
)

from headstart.control.controller import Controller
from headstart.control.values import Step
from headstart.engine.groups import divide
from headstart.types import Rows, passes
from headstart.types.widths import Widths

WIDTHS = Widths(tuple(range(1, 65)))


class HybridSimulation(Simulation):
    """A hybrid target with snapshots, or with copies that take `copy_ms`, there and back."""

    has_snapshots, copy_ms = True, 0.0
    again: Sequence[int] = ()  # rows of the next step that are decoded again, by slot

    def step_ms(self, lengths: Sequence[int], num_rows: int, context: int) -> float:
        each = [1 + sum(both) for both in zip_longest(self.again, lengths, fillvalue=0)]
        if self.has_snapshots:
            return self.cost(len(each) * max(each), context)
        drafts = passes([rows for rows in each if rows > 1])
        return sum(self.cost(rows, context) for rows in [*drafts, each.count(1)] if rows)

    def auto_with(self, snapshots: int) -> Score:
        """Text speculators under control with so many snapshots; 0: with copies."""
        self.has_snapshots, controller = snapshots > 0, Controller()
        self.warm_up(controller)
        if self.has_snapshots:
            policy = AutoRows(self, controller, Rows.PADDED, snapshots)
            return self.run(policy.lengths, policy.after)
        controller.learn_copy(self.copy_ms)
        copies = AutoCopies(self, controller)
        score = self.run(copies.lengths, copies.after)
        self.again, self.has_snapshots = (), True
        return score


class AutoRows(AutoText):
    """Text speculators under control, on a target that computes rows of several users like this,
    and with drafts of `longest` tokens at most.
    """

    def __init__(
        self, simulation: Simulation, controller: Controller, rows: Rows, longest: int = LONGEST
    ) -> None:
        super().__init__(simulation, controller)
        self.rows, self.longest = rows, longest

    def shape(self, num_slots: int, num_rows: int, context: int) -> Step:
        return Step(num_slots, num_rows, context, rows=self.rows)

    def assign_rows(self, draft_ms: float = 0.0, max_tokens: int = LONGEST) -> Choice:
        return super().assign_rows(draft_ms, min(self.longest, max_tokens))


class AutoCopies(AutoRows):
    """The same on a hybrid target without snapshots."""

    simulation: HybridSimulation

    def __init__(self, simulation: HybridSimulation, controller: Controller) -> None:
        super().__init__(simulation, controller, Rows.EQUAL)
        # by slot: where its last draft began, its length, and the rows decoded again before it
        self._drafted: dict[int, tuple[int, int, int]] = {}

    def lengths(self, slots: Sequence[Slot]) -> Choice:
        again = self.simulation.again = [self._num_again(slot) for slot in slots]
        plan = self.begin(slots, sum(again))
        assert plan.step is not None
        plan.step.again = again
        self.offer_texts(slots)
        choice, copies, back = self.assign_rows(), 0, sum(num > 0 for num in again)
        for slot, length, num in zip(slots, choice.lengths, again, strict=True):
            # the copy before rows that are decoded again is still there
            copies += length > 0 == num
            self._drafted[slot.first_id] = slot.at, length, num
        copy_ms = self.simulation.copy_ms
        plan.copies_ms = [copy_ms] * copies
        return choice._replace(draft_ms=(copies + back) * copy_ms)

    def _num_again(self, slot: Slot) -> int:
        """Tokens behind the copy of the state, if the last draft was not accepted whole."""
        start, length, num = self._drafted.get(slot.first_id, (0, 0, 0))
        num_emitted = slot.at - start
        return num + num_emitted if num_emitted <= length else 0


class ExactSimulation(Simulation):
    """Several users with --exact: the decodes of a step take the least time together, and each has
    equally many rows of every user.
    """

    def step_ms(self, lengths: Sequence[int], num_rows: int, context: int) -> float:
        costs = {n: self.curve(n) for n in WIDTHS.sizes}
        groups = divide([(0, 1 + length, 0) for length in lengths], WIDTHS, costs)
        return sum(costs[len(group.runs) * group.width] for group in groups)
