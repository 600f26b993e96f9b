"""Model speculators at work: planned together, because each draft of theirs takes time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from headstart.control.controller import Controller
from headstart.control.values import Allowance, ModelDraftCall, Step
from headstart.scheduler.ask_timer import AskTimer
from headstart.scheduler.deferred import DeferredCalls
from headstart.scheduler.draft_counts import DraftCounts
from headstart.scheduler.draft_plan import BELOW_BREAK_EVEN, DraftPlan, model_requests
from headstart.scheduler.guarded_speculator import FAILED, GuardedSpeculator
from headstart.scheduler.proposal import NO_PROPOSAL
from headstart.types import Draft

ILLEGAL = "illegal under the constraint"


class ModelDrafting:
    """Asks the models of a worker."""

    def __init__(
        self,
        speculators: Mapping[str, GuardedSpeculator],
        controller: Controller,
        counts: DraftCounts,
        timer: AskTimer,
        deferred: DeferredCalls,
    ) -> None:
        self._speculators = speculators
        self._controller = controller
        self._counts = counts
        self._timer = timer
        self._deferred = deferred

    def ask(self, plans: Sequence[DraftPlan], step: Step) -> float:
        """Let model speculators draft where control expects it to pay, one at most for each slot;
        returns the milliseconds spent, those of probes left out: they are saved for.
        """
        asked = {}
        for speculator in self._speculators.values():
            if not speculator.is_model:
                continue
            candidates = [plan for plan in plans if plan.wants(speculator)]
            if not candidates:
                continue
            is_fixed = any(plan.is_fixed for plan in candidates)
            if is_fixed or self._controller.wants_model(speculator.name):
                asked[speculator.name] = candidates
        if not asked:
            return 0.0
        started = self._timer.now()
        slots = {
            name: [plan.model_slot(self._speculators[name]) for plan in candidates]
            for name, candidates in asked.items()
        }
        allowances = self._controller.plan_models(slots, step)
        self._timer.time_models(list(asked), step, started)
        return sum(
            self._ask_model(self._speculators[name], candidates, allowances[name], step)
            for name, candidates in asked.items()
        )

    def _ask_model(
        self,
        speculator: GuardedSpeculator,
        candidates: Sequence[DraftPlan],
        allowances: Sequence[Allowance],
        step: Step,
    ) -> float:
        """Let one of them draft as far as control allows; returns as `ask`."""
        allowed = []
        for plan, allowance in zip(candidates, allowances, strict=True):
            plan.address(speculator)
            has_failed = not speculator.can_draft(plan.seq_id)  # asked what it has to catch up
            if has_failed or not allowance.max_tokens:
                plan.miss(speculator, FAILED if has_failed else BELOW_BREAK_EVEN)
            else:
                plan.allowance = allowance
                plan.skipping = speculator.name if allowance.can_skip else ""
                allowed.append(plan)
        return self._run_model(speculator, allowed, step) if allowed else 0.0

    def _run_model(
        self, speculator: GuardedSpeculator, plans: Sequence[DraftPlan], step: Step
    ) -> float:
        num_caught_up = sum(plan.num_catch_up(speculator) for plan in plans)
        with model_requests(plans) as requests:
            drafts = speculator.propose(requests)
        milliseconds = 1000.0 * speculator.last_seconds
        seq_ids, allowances, scores, leads = [], [], [], []
        for plan, draft in zip(plans, drafts, strict=True):
            if draft.is_ready:
                seq_ids.append(plan.seq_id)
                allowances.append(plan.allowance)
                scores.append(draft.confidence)
                leads.append(plan.lead)
                if plan.continues and not plan.lead:
                    num_caught_up += len(plan.proposal.tokens)
            else:
                num_caught_up -= plan.num_catch_up(speculator)  # what it left for later
        if drafts[0].reason != FAILED:  # then for all, and nothing is known of what it read
            call = ModelDraftCall(
                speculator.name,
                seq_ids,
                allowances,
                scores,
                max(0, num_caught_up),
                milliseconds,
                leads,
            )
            if self._controller.is_probe(speculator.name):
                milliseconds = 0.0
            self._deferred.add(partial(self._controller.observe_draft, call, step))
        self._counts.count_calls(plans, speculator, drafts)
        for plan, draft in zip(plans, drafts, strict=True):
            if plan.has_answer(speculator, draft):
                self._choose_model(plan, speculator, draft)
        return milliseconds

    def _choose_model(self, plan: DraftPlan, speculator: GuardedSpeculator, draft: Draft) -> None:
        """Append the model's draft to the text's, or take it instead if it is worth more."""
        head = plan.proposal if plan.continues else NO_PROPOSAL
        before = head.tokens
        proposal = plan.legal(draft, before)
        self._deferred.add(lambda: plan.watch(proposal, before))
        if speculator.name not in proposal.speculators:
            plan.miss(speculator, ILLEGAL)
            return
        if plan.is_fixed:
            own = [1.0] * len(proposal.tokens)
        else:
            own = plan.survival_of(proposal, self._controller, before)
        if before:
            plan.take(head + proposal, [*plan.survival, *own])
        elif plan.is_fixed or sum(own) > sum(plan.survival):
            plan.take(proposal, own)
        plan.has_model_draft = speculator.name in plan.proposal.speculators
