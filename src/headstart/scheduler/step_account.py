"""What one step was, in numbers: for control, and for the counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.scheduler.slot import ActiveRequest
from headstart.types import Batch, StepStats


@dataclass(slots=True)
class StepClock:
    """Clock readings of one step, seconds."""

    started: float
    drafted: float = 0.0
    decoded: float = 0.0
    ended: float = 0.0

    @property
    def draft_seconds(self) -> float:
        return self.drafted - self.started

    @property
    def decode_seconds(self) -> float:
        return self.decoded - self.drafted


def mean_context(batch: Batch, in_batch: Sequence[ActiveRequest]) -> int:
    """Tokens that a row of the batch attended to on average."""
    attended = sum(a.num_rows * (a.num_decoded + a.num_rows // 2) for a in in_batch)
    return attended // batch.num_rows


def step_stats(
    batch: Batch, num_padding: int, num_slots: int, num_emitted: int, times: StepClock
) -> StepStats:
    """What the step did."""
    return StepStats(
        num_prompt_rows=batch.num_rows - batch.num_outputs - num_padding,
        num_verify_rows=batch.num_outputs,
        num_padding_rows=num_padding,
        num_emitted=num_emitted,
        num_slots=num_slots,
        draft_seconds=times.draft_seconds,
        decode_seconds=times.decode_seconds,
        step_seconds=times.ended - times.started,
    )
