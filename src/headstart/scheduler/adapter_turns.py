"""Whose turn it is where requests differ in their adapters: a decode has one set of scales.

Requests of one set share decodes as ever; sets take turns of a few steps, because libllama plans
its memory anew whenever the adapters change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headstart.scheduler.slot import ActiveRequest

STEPS = 8  # of a turn while others wait
Scales = tuple[float, ...]


class AdapterTurns:
    """Chooses the scales of each step."""

    def __init__(self, use: Callable[[Scales], None]) -> None:
        """`use`: apply these scales in decodes from now on; none: as they were loaded."""
        self._use = use
        self._scales: Scales = ()
        self._num_steps = 0

    def begin_step(self, running: Sequence[ActiveRequest]) -> None:
        """Go on with the present scales, or change to those that were not used for longest."""
        waiting = list(dict.fromkeys(active.request.adapters for active in running))
        self._num_steps += 1
        if not waiting or (self._scales in waiting and self._num_steps < STEPS):
            return
        at = waiting.index(self._scales) + 1 if self._scales in waiting else 0
        chosen = waiting[at % len(waiting)]
        self._num_steps = 0
        if chosen != self._scales:
            self._use(chosen)
            self._scales = chosen

    def sharing(self, running: Sequence[ActiveRequest]) -> list[ActiveRequest]:
        """Those of the requests that have the present scales."""
        return [active for active in running if active.request.adapters == self._scales]
