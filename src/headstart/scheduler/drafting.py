"""Who drafts for which slot, and how many of the tokens are verified.

Text speculators are asked first: a guess costs microseconds. Control then says whether a model
should run, for whom and how far, which draft each slot verifies, and how many of its tokens.
Lengths set by hand ("fixed") take the same path: the first speculator with a draft wins and all of
it is verified.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headstart.config import SpeculationConfig
from headstart.control.controller import Controller
from headstart.control.values import NO_ALLOWANCE, ModelDraftCall, Step
from headstart.errors import InvalidParameterError
from headstart.scheduler.batching import DraftLimit
from headstart.scheduler.draft_plan import (
    BELOW_BREAK_EVEN,
    DraftPlan,
    SpeculationPolicy,
    model_requests,
)
from headstart.scheduler.guarded_speculator import FAILED, GuardedSpeculator
from headstart.scheduler.proposal import NO_PROPOSAL, DraftTracker, Proposal
from headstart.scheduler.request import SpeculativeParams
from headstart.scheduler.slot import ActiveRequest, Slot
from headstart.scheduler.speculator_stats import SpeculatorStats
from headstart.types import Decoded, Draft, SequenceMode

log = logging.getLogger(__name__)


class Drafting:
    """All speculators of a worker, and control over them."""

    def __init__(
        self,
        speculators: Sequence[GuardedSpeculator],
        config: SpeculationConfig,
        controller: Controller,
        unusable: str = "",
        state: Path | None = None,
    ) -> None:
        """Take the speculators in order of preference.

        Args:
            unusable: why no draft can be verified, if so.
            state: file that keeps what control learned.
        """
        self.speculators = {speculator.name: speculator for speculator in speculators}
        self.controller = controller
        self.config = config
        self.unusable = unusable
        self._state = state
        self.observes = any(speculator.wants_logits for speculator in speculators)
        self.reasons: Counter[str] = Counter()
        for speculator in speculators:
            if speculator.speculator.scores_are_probabilities:
                controller.declare_model(speculator.name)

    def time_models(self, clock: Callable[[], float]) -> None:
        """Measure what draft models cost, before the first request."""
        for speculator in self.speculators.values():
            if speculator.is_model and (prices := speculator.time_decodes(clock)) is not None:
                self.controller.learn_draft_costs(speculator.name, *prices)

    def check(self, params: SpeculativeParams) -> None:
        """Raises InvalidParameterError if a request asks for drafts that this server cannot make.

        A bare `n_max` is no such wish: clients of llama-server always send it.
        """
        if not self.speculators:
            self._check_off(params)
        for name in params.types or ():
            if name not in self.speculators:
                loaded = ", ".join(self.speculators) or "none"
                raise InvalidParameterError(
                    f"speculative.types names {name!r} but this server loaded {loaded}; leave it "
                    "out or start with "
                    "--spec-type"
                )

    def _check_off(self, params: SpeculativeParams) -> None:
        wish = f"speculative.types names {params.types[0]!r}" if params.types else ""
        if params.mode is not None and params.mode is not SequenceMode.OFF:
            wish = f"speculative.mode is {params.mode.value}"
        if not wish:
            return
        started, remedy = "--spec off", "with --spec auto"
        if self.config.mode is not SequenceMode.OFF:
            started, remedy = "--spec-type none", "without it"
        raise InvalidParameterError(
            f"{wish} but this server was started with {started}; start it {remedy}, or leave the "
            "field out"
        )

    def policy(self, params: SpeculativeParams) -> SpeculationPolicy:
        """Merge a request's wishes with the server's settings."""
        mode = params.mode or self.config.mode
        if params.mode is None and params.n_max and mode is SequenceMode.OFF:
            mode = SequenceMode.AUTO  # the server drafts only on request, and this is one
        # the batch and the cache are made for no more
        limit = self.config.longest_draft(SequenceMode.AUTO)
        n_max = min(
            limit, self.config.longest_draft(mode) if params.n_max is None else params.n_max
        )
        types = tuple(self.speculators) if params.types is None else params.types
        loaded = tuple(dict.fromkeys(name for name in types if name in self.speculators))
        reason = self.unusable or ("" if self.speculators else "no speculator is loaded")
        if not reason and (mode is SequenceMode.OFF or n_max == 0 or not loaded):
            reason = "off" if params == SpeculativeParams() or not limit else "disabled by request"
        return SpeculationPolicy(
            mode,
            loaded,
            n_max,
            self.config.draft_min if params.n_min is None else params.n_min,
            self.config.draft_p_min if params.p_min is None else params.p_min,
            reason,
        )

    def propose(
        self,
        slots: Sequence[Slot],
        draft_limits: Sequence[DraftLimit],
        num_prompt_rows: int,
        limits: tuple[int, int],
    ) -> None:
        """Set `run.proposal` of every generating slot.

        Args:
            slots: those that generate.
            rooms: what each may verify.
            num_prompt_rows: prompt rows that will share the batch.
            limits: most rows and most outputs of the batch.
        """
        plans = [self._desk(slot, room) for slot, room in zip(slots, draft_limits, strict=True)]
        drafting = [d for d in plans if d.room > 0]
        if drafting:
            context = sum(len(d.active.tokens) for d in plans) // len(plans)
            step = Step(len(plans), len(plans) + num_prompt_rows, context, *limits)
            self._ask_text(drafting)
            for plan in drafting:
                self._choose_text(plan, step)
            sunk_ms = self._ask_models(drafting, step)
            lengths = self.controller.plan([d.offer() for d in plans], step, sunk_ms)
            for plan, length in zip(plans, lengths, strict=True):
                plan.settle_on(length)
        self._note_reasons(plans)

    def drop(self, slots: Sequence[Slot]) -> None:
        """The cache has no cells for drafts: verify none in this step."""
        for slot in slots:
            active = slot.active
            if active is not None and active.proposal.head.tokens:
                for draft in (active.proposal.head, active.proposal.tail):
                    if draft.tokens:
                        self._note_miss(active, draft.speculator, "context full")
                self._note_reason(active, "context full")
                active.proposal = NO_PROPOSAL

    def observe(self, decoded: Decoded) -> None:
        """Show the verified rows to the speculators that asked for them."""
        for speculator in self.speculators.values():
            speculator.observe(decoded)

    def settle(self, slot: Slot, emitted: Sequence[int], num_accepted: int) -> None:
        """The target emitted these tokens: book the draft, teach control and the speculators."""
        active = slot.active
        assert active is not None
        if active.policy is None or active.policy.reason:
            return
        if active.proposal.head.tokens:
            active.count_draft(num_accepted)
            self._book(active, num_accepted)
        for outcome in active.tracker.follow(slot.slot_id, emitted):
            self.controller.record(outcome)
        for speculator in self.speculators.values():
            speculator.accept(slot.slot_id, emitted, num_accepted)

    def end(self, slot: Slot) -> None:
        """The request leaves its slot."""
        active = slot.active
        if active is None or active.policy is None:
            return
        if not active.policy.reason:
            for speculator in self.speculators.values():
                speculator.end(slot.slot_id)
            self.controller.end(slot.slot_id, active.num_emitted)
        active.tracker, active.policy = DraftTracker(), None

    def describe(self) -> dict[str, Any]:
        """For /props: what is on, and why not."""
        return {
            "mode": self.config.mode.value,
            "types": list(self.speculators),
            "n_max": self.config.longest_draft(self.config.mode),
            "n_min": self.config.draft_min,
            "p_min": self.config.draft_p_min,
            "unusable": self.unusable,
            "speculators": {
                name: speculator.describe() for name, speculator in self.speculators.items()
            },
        }

    def close(self) -> None:
        """Write what is durable."""
        self.save()
        for speculator in self.speculators.values():
            speculator.close()

    def save(self) -> None:
        """Keep what control learned; a failure costs only that."""
        if self._state is None:
            return
        try:
            self.controller.save(self._state)
        except OSError as error:
            log.warning("what control learned is not kept: %s", error)

    def _desk(self, slot: Slot, room: DraftLimit) -> DraftPlan:
        active = slot.active
        assert active is not None
        if active.policy is None:
            active.policy = self.policy(active.request.speculative)
            if not active.policy.reason:
                self.controller.begin(slot.slot_id, active.request.namespace)
                for name in active.policy.types:
                    # of before, if it was put back into the queue
                    active.stats_by_speculator.setdefault(name, SpeculatorStats())
                for speculator in self.speculators.values():
                    speculator.begin(slot.slot_id, active.tokens, active.request.namespace)
        active.proposal = NO_PROPOSAL
        plan = DraftPlan(slot.slot_id, active, active.policy, min(room.tokens, active.policy.n_max))
        if active.policy.reason:
            plan.room, plan.reason = 0, active.policy.reason
        elif plan.room <= 0:
            plan.reason = room.reason
        return plan

    def _ask_text(self, plans: Sequence[DraftPlan]) -> None:
        for name, speculator in self.speculators.items():
            if speculator.is_model:
                continue
            asked = [d for d in plans if d.wants(speculator)]
            if not asked:
                continue
            for plan, draft in zip(
                asked, speculator.propose([d.request() for d in asked]), strict=True
            ):
                if self._book_answer(plan, speculator, draft):
                    plan.drafts[name] = draft

    def _choose_text(self, plan: DraftPlan, step: Step) -> None:
        """Fixed lengths take the first draft; auto takes the one that is worth most."""
        drafts = [plan.drafts[name] for name in plan.policy.types if name in plan.drafts]
        if not drafts:
            return
        lines = [[plan.active.tokens[-1], *draft.tokens] for draft in drafts]
        for draft, tokens in zip(drafts, lines, strict=True):
            plan.active.tracker.watch(draft, tokens)
        if plan.is_fixed:
            plan.take(Proposal(drafts[0]), [1.0] * len(drafts[0].tokens))
            return
        survivals = [
            self.controller.survival(draft.speculator, draft.confidence, plan.seq_id, tokens)
            for draft, tokens in zip(drafts, lines, strict=True)
        ]
        best = self.controller.best(survivals, step)
        if best is not None:
            plan.take(Proposal(drafts[best]), survivals[best])

    def _ask_models(self, plans: Sequence[DraftPlan], step: Step) -> float:
        """Let model speculators draft where control expects it to pay; returns the milliseconds
        spent.
        """
        spent = 0.0
        for speculator in self.speculators.values():
            candidates = [d for d in plans if d.wants(speculator)] if speculator.is_model else []
            if not candidates:
                continue
            allowances = self.controller.plan_model(
                speculator.name, [d.model_slot(speculator) for d in candidates], step
            )
            for plan, allowance in zip(candidates, allowances, strict=True):
                has_failed = not speculator.can_draft(plan.seq_id)  # to say its backlog
                plan.allowance = NO_ALLOWANCE if has_failed else allowance
                if not plan.allowance.max_tokens:
                    plan.miss(speculator, FAILED if has_failed else BELOW_BREAK_EVEN)
            if forced := [d for d in candidates if d.allowance.max_tokens]:
                spent += self._run_model(speculator, forced, step)
        return spent

    def _run_model(
        self, speculator: GuardedSpeculator, plans: Sequence[DraftPlan], step: Step
    ) -> float:
        num_caught_up = sum(plan.num_catch_up(speculator) for plan in plans)
        with model_requests(plans) as requests:
            drafts = speculator.propose(requests)
        milliseconds = 1000.0 * speculator.last_seconds
        seq_ids, allowances, scores = [], [], []
        for plan, draft in zip(plans, drafts, strict=True):
            if draft.is_ready:
                seq_ids.append(plan.seq_id)
                allowances.append(plan.allowance)
                scores.append(draft.confidence)
                num_caught_up += len(plan.proposal.head.tokens) if plan.continues else 0
            else:
                num_caught_up -= plan.num_catch_up(speculator)  # what it left for later
        if drafts[0].reason != FAILED:  # then for all, and nothing is known of what it read
            active = ModelDraftCall(
                speculator.name, seq_ids, allowances, scores, max(0, num_caught_up), milliseconds
            )
            self.controller.observe_draft(active, step)
        for plan, draft in zip(plans, drafts, strict=True):
            if self._book_answer(plan, speculator, draft):
                self._choose_model(plan, speculator, draft)
        return milliseconds

    def _choose_model(self, plan: DraftPlan, speculator: GuardedSpeculator, draft: Draft) -> None:
        """Append the model's draft to the text's, or take it instead if it is worth more."""
        head = plan.proposal.head if plan.continues else Draft()
        tokens = [head.tokens[-1] if head.tokens else plan.active.tokens[-1], *draft.tokens]
        plan.active.tracker.watch(draft, tokens, head.tokens)
        if plan.is_fixed:
            plan.take(Proposal(draft), [1.0] * len(draft.tokens))
            return
        survival = self.controller.survival(speculator.name, draft.confidence, plan.seq_id, tokens)
        if head.tokens:
            reached = plan.survival[-1]
            plan.take(Proposal(head, draft), [*plan.survival, *(reached * s for s in survival)])
        elif sum(survival) > sum(plan.survival):
            plan.take(Proposal(draft), survival)

    def _book_answer(self, plan: DraftPlan, speculator: GuardedSpeculator, draft: Draft) -> bool:
        """Count what a speculator answered; returns whether there is a draft."""
        has_draft = len(draft.tokens) > 0
        plan.active.stats_by_speculator[speculator.name].ask(has_draft)
        speculator.stats.ask(has_draft)
        if not has_draft:
            plan.miss(speculator, draft.reason or "no match")
        return has_draft

    def _book(self, active: ActiveRequest, num_accepted: int) -> None:
        """Count the draft that was verified for those who made it."""
        start = 0
        for draft in (active.proposal.head, active.proposal.tail):
            if num_drafted := len(draft.tokens):
                outcome = (start, num_drafted, max(0, min(num_drafted, num_accepted - start)))
                active.stats_by_speculator[draft.speculator].verify(outcome)
                self.speculators[draft.speculator].stats.verify(outcome)
                start += num_drafted

    def _note_reasons(self, plans: Sequence[DraftPlan]) -> None:
        """Say of every slot and speculator why nothing of it is verified in this step."""
        for plan in plans:
            active, proposal, speculators = (
                plan.active,
                plan.active.proposal,
                [self.speculators[name] for name in plan.policy.types],
            )
            if not proposal.head.tokens:
                self._note_reason(active, plan.reason or plan.why_not(speculators[0]))
            if not plan.policy.reason:
                for speculator in speculators:
                    if speculator.name not in (proposal.head.speculator, proposal.tail.speculator):
                        self._note_miss(active, speculator.name, plan.why_not(speculator))

    def _note_miss(self, active: ActiveRequest, speculator: str, reason: str) -> None:
        active.stats_by_speculator[speculator].miss(reason)
        self.speculators[speculator].stats.miss(reason)

    def _note_reason(self, active: ActiveRequest, reason: str) -> None:
        active.reasons[reason] += 1
        self.reasons[reason] += 1
