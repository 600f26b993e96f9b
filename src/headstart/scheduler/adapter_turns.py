"""Whose turn it is where requests differ in their adapters: a decode has one set of scales.

Requests of one set share decodes as ever; sets take turns of a few steps, because libllama plans
its memory anew whenever the adapters change.
"""

from __future__ import annotations

from collections.abc import Callable

from headstart.scheduler.sequence import Sequence

STEPS = 8  # of a turn while others wait
Scales = tuple[float, ...]


class AdapterTurns:
    """Chooses the scales of each step."""

    def __init__(self, use: Callable[[Scales], None]) -> None:
        """`use`: apply these scales in decodes from now on; none: as they were loaded."""
        self._use = use
        self._scales: Scales = ()
        self._num_steps = 0

    def choose(self, running: list[Sequence]) -> list[Sequence]:
        """Those that have the scales of the next step: the present ones, or those that were not
        used for longest.
        """
        waiting = list(dict.fromkeys(sequence.request.adapters for sequence in running))
        self._num_steps += 1
        if waiting and (self._scales not in waiting or self._num_steps >= STEPS):
            at = waiting.index(self._scales) + 1 if self._scales in waiting else 0
            chosen = waiting[at % len(waiting)]
            self._num_steps = 0
            if chosen != self._scales:
                self._use(chosen)
                self._scales = chosen
        return [sequence for sequence in running if sequence.request.adapters == self._scales]
