"""What one speculator did: a few increments a step while it happens, spelled out when somebody
asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

from headstart.scheduler.request import DraftCounts


@dataclass(slots=True)
class SpeculatorStats:
    """Counts of one speculator, for one request or since the start."""

    calls: int = 0
    offered: int = 0
    # (position of its first token in the step's draft, tokens verified, of them accepted) -> drafts
    verified: dict[tuple[int, int, int], int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)

    def ask(self, has_draft: bool) -> None:
        """It was asked, and made a draft or none."""
        self.calls += 1
        self.offered += has_draft

    def verify(self, outcome: tuple[int, int, int]) -> None:
        """A draft of it was verified; see `verified`."""
        self.verified[outcome] = self.verified.get(outcome, 0) + 1

    def miss(self, reason: str) -> None:
        """A step in which no draft of it was verified."""
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def counts(self) -> DraftCounts:
        """All of it, by position too. O(different outcomes)."""
        length = max((start + drafted for start, drafted, _ in self.verified), default=0)
        # differences from position to position
        drafted_at, accepted_at = [0] * (length + 1), [0] * (length + 1)
        for (start, drafted, accepted), drafts in self.verified.items():
            drafted_at[start] += drafts
            drafted_at[start + drafted] -= drafts
            accepted_at[start] += drafts
            accepted_at[start + accepted] -= drafts
        drafted_by_position = tuple(accumulate(drafted_at[:-1]))
        accepted_by_position = tuple(accumulate(accepted_at[:-1]))
        return DraftCounts(
            calls=self.calls,
            offered=self.offered,
            drafts=sum(self.verified.values()),
            drafts_accepted=sum(
                drafts for (_, _, accepted), drafts in self.verified.items() if accepted
            ),
            drafted=sum(drafted_by_position),
            accepted=sum(accepted_by_position),
            drafted_by_position=drafted_by_position,
            accepted_by_position=accepted_by_position,
            reasons=dict(self.reasons),
        )
