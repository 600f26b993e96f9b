"""What became of drafts, counted for each request, each speculator and all together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headstart.scheduler.draft_plan import DraftPlan
from headstart.scheduler.grammar_drafts import GRAMMAR
from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.scheduler.proposal import Proposal
from headstart.scheduler.slot import ActiveRequest
from headstart.types import Draft
from headstart.types.speculation_stats import SpeculationStats


class DraftCounts:
    """Of one worker."""

    def __init__(self, speculators: Mapping[str, GuardedSpeculator]) -> None:
        self.speculators = speculators
        self.stats = SpeculationStats()
        self.forced_stats = SpeculationStats()  # of tokens that a constraint forces

    def count_calls(
        self, plans: Sequence[DraftPlan], speculator: GuardedSpeculator, drafts: Sequence[Draft]
    ) -> None:
        """Count what a speculator answered, before anything else is done with it."""
        name, is_model = speculator.name, speculator.is_model
        for plan, draft in zip(plans, drafts, strict=True):
            has_draft = len(draft.tokens) > 0
            plan.active.by_speculator[name].count_call(has_draft=has_draft)
            speculator.stats.count_call(has_draft=has_draft)
            if plan.active.guesses is not None:
                plan.active.guesses.note(plan, name, draft, is_model=is_model)

    def count_verified(self, active: ActiveRequest, proposal: Proposal, num_accepted: int) -> None:
        """Count the draft that was verified, for the request and for those who made it."""
        start = 0
        for draft in proposal.drafts:
            num_drafted = len(draft.tokens)
            num_right = max(0, min(num_drafted, num_accepted - start))
            for stats in self._stats_of(active, draft.speculator):
                stats.count_verified(start, num_drafted, num_right)
            start += num_drafted
        for stats in (active.drafts, self.stats):
            stats.count_verified(0, start, num_accepted)

    def count_reasons(self, plans: Sequence[DraftPlan]) -> None:
        """Say of every request and speculator why nothing of it is verified in this step."""
        for plan in plans:
            active, types = plan.active, plan.policy.types
            drafted = active.proposal.speculators
            if not drafted:
                reason = plan.reason or plan.why_not(self.speculators[types[0]])
                self.count_reason(active, reason)
            for name in () if plan.policy.reason else types:
                if name not in drafted:
                    self.count_miss(active, name, plan.why_not(self.speculators[name]))

    def count_miss(self, active: ActiveRequest, speculator: str, reason: str) -> None:
        for stats in self._stats_of(active, speculator):
            stats.count_miss(reason)

    def _stats_of(self, active: ActiveRequest, speculator: str) -> tuple[SpeculationStats, ...]:
        """Where a speculator's drafts are counted: of the request, and of all together."""
        if speculator == GRAMMAR:
            own = active.by_speculator.setdefault(GRAMMAR, SpeculationStats())
            return own, self.forced_stats
        return active.by_speculator[speculator], self.speculators[speculator].stats

    def count_reason(self, active: ActiveRequest, reason: str) -> None:
        active.drafts.count_miss(reason)
        self.stats.count_miss(reason)
