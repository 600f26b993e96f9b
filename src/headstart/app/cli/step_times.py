"""What drafting saved in one answer, estimated from the times of its own steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstart.types.request import TokenEvent

ENOUGH_PLAIN_STEPS = 5  # until they say what a step without a draft costs


@dataclass(slots=True)
class StepTimes:
    """Sums over the steps of one answer, but for the first, which reads the prompt."""

    num_steps: int = 0
    num_tokens: int = 0
    milliseconds: float = 0.0
    num_plain: int = 0
    plain_milliseconds: float = 0.0
    has_begun: bool = False

    def add(self, event: TokenEvent) -> None:
        """A step emitted tokens; the request must want provenance."""
        step = event.step
        if step is None or not event.tokens:
            return
        if not self.has_begun:
            self.has_begun = True
            return
        self.num_steps += 1
        self.num_tokens += len(event.tokens)
        self.milliseconds += step.target_ms + step.draft_ms
        if not step.draft:
            self.num_plain += 1
            self.plain_milliseconds += step.target_ms

    @property
    def speedup(self) -> float | None:
        """Against one token a step; None while too few steps had no draft."""
        if self.num_plain < ENOUGH_PLAIN_STEPS or not self.milliseconds:
            return None
        return self.num_tokens * (self.plain_milliseconds / self.num_plain) / self.milliseconds

    def describe(self) -> str:
        """For the legend."""
        saved = f"{self.num_tokens - self.num_steps} steps saved"
        speedup = self.speedup
        return saved if speedup is None else f"{saved}, about {speedup:.1f} x as fast as without"
