"""Hybrid targets: every user has as many rows as the one with the longest draft.

A draft has as many tokens as there are snapshots at most, and is taken back for nothing; a snapshot
is good until libllama computes other sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.lib.simulated_slots import LONGEST, AutoText, Choice, Score, Simulation, Slot

from headstart.control import Controller, Step


class AutoEven(AutoText):
    """Text speculators under control, on a target that computes as many rows for every user.

    snapshots: tokens that a draft has at most.
    """

    def __init__(self, simulation: Simulation, controller: Controller, snapshots: int) -> None:
        super().__init__(simulation, controller)
        self.snapshots = snapshots

    def shape(self, num_slots: int, num_rows: int, context: int) -> Step:
        return Step(num_slots, num_rows, context, is_even=True)

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
