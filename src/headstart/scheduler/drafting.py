"""Who drafts for which slot, and how many of the tokens are verified.

Text speculators are asked first: a guess costs microseconds. Control then says whether a model
should run, for whom and how far, which draft each slot verifies, and how many of its tokens.
Lengths set by hand ("fixed") take the same path: the first speculator with a draft wins and all of
it is verified.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from headstart.config import SpeculationConfig
from headstart.control.controller import Controller
from headstart.control.cost_samples import Sample
from headstart.control.values import NO_SLOT_DRAFT, Step, with_gap
from headstart.scheduler.ask_timer import AskTimer
from headstart.scheduler.batching import DraftLimit
from headstart.scheduler.corpus import read_corpus
from headstart.scheduler.deferred import DeferredCalls
from headstart.scheduler.draft_counts import DraftCounts
from headstart.scheduler.draft_plan import BELOW_BREAK_EVEN, DraftPlan
from headstart.scheduler.grammar_drafts import GRAMMAR, constrained_name
from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.scheduler.guess_log import GuessLogs
from headstart.scheduler.host_cache import Data
from headstart.scheduler.model_drafting import ILLEGAL, ModelDrafting
from headstart.scheduler.proposal import NO_PROPOSAL, DraftTracker, Proposal
from headstart.scheduler.slot import ActiveRequest, Verified
from headstart.scheduler.speculation_policy import SpeculationPolicy, check_wishes, make_policy
from headstart.types import NO_DRAFT, Decoded, Draft
from headstart.types.report import SpeculatorReport
from headstart.types.request import CorpusEvent, CorpusQuestion, SpeculativeParams
from headstart.types.speculation_stats import SpeculationStats

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
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Take the speculators in order of preference.

        Args:
            unusable: why no draft can be verified, if so.
            state: file that keeps what control learned.
            clock: tells what asking takes, so that nobody is asked who cannot earn it.
        """
        self.speculators = {speculator.name: speculator for speculator in speculators}
        self.controller = controller
        self.config = config
        self.unusable = unusable
        self._state = state
        models = [one.name for one in speculators if one.is_model]
        texts = [one.name for one in speculators if not one.is_model]
        self.deferred = DeferredCalls()
        self._timer = AskTimer(controller, clock, texts, models, self.deferred)
        self.observes = any(speculator.wants_logits for speculator in speculators)
        self.guess_logs = GuessLogs(controller, speculators)
        self._counts = DraftCounts(self.speculators)
        self._models = ModelDrafting(
            self.speculators, controller, self._counts, self._timer, self.deferred
        )
        self.stats = self._counts.stats
        for speculator in speculators:
            if speculator.speculator.scores_are_probabilities:
                controller.trust_scores(speculator.name)
                controller.trust_scores(constrained_name(speculator.name))
                if speculator.is_model:
                    controller.trust_scores(with_gap(speculator.name))
                    controller.trust_scores(constrained_name(with_gap(speculator.name)))

    def time_models(self, clock: Callable[[], float]) -> None:
        """Measure what draft models cost, before the first request."""
        for speculator in self.speculators.values():
            if speculator.is_model and (prices := speculator.time_decodes(clock)) is not None:
                self.controller.learn_draft_costs(speculator.name, *prices)

    def check(self, params: SpeculativeParams) -> None:
        """Raises InvalidParameterError if a request asks for drafts that cannot be made here."""
        check_wishes(params, self.config, self.speculators)

    def policy(self, params: SpeculativeParams) -> SpeculationPolicy:
        """Merge a request's wishes with the server's settings."""
        return make_policy(params, self.config, self.speculators, self.unusable)

    def learn_costs(self, samples: Sequence[Sample], change_ms: float) -> None:
        """Some decodes of the target were timed before the first request."""
        self.controller.learn_costs(samples, change_ms)

    def prompt_rows(self, num_base_rows: int, bounds: tuple[int, int], milliseconds: float) -> int:
        """Prompt rows of a step beside so many others; see `Controller.prompt_rows`."""
        step = Step(max(1, num_base_rows), num_base_rows, 0)
        return self.controller.prompt_rows(*bounds, step, milliseconds)

    def observe_step(self, num_rows: int, context: int, milliseconds: float) -> None:
        """A decode of the target took this long; `context` in tokens per row."""
        observe = partial(self.controller.observe_step, num_rows, context, milliseconds)
        if self.controller.holds_width:  # the next step may get the width of this one
            observe()
        else:
            self.deferred.add(observe)

    def describe_control(self) -> dict[str, Any]:
        """What control believes, JSON-ready."""
        return self.controller.describe()

    def knows_costs(self, num_rows: int) -> bool:
        """Whether decodes of the target of up to so many rows were measured."""
        return self.controller.knows_costs(num_rows)

    def propose(
        self,
        generating: Sequence[ActiveRequest],
        limits: Sequence[DraftLimit],
        num_prompt_rows: int,
        batch_limits: tuple[int, int],
        *,
        can_pad: bool = False,
    ) -> int:
        """Set the `proposal` of every generating request; returns rows to add that nobody needs.

        Args:
            generating: the requests.
            limits: what each may verify.
            num_prompt_rows: prompt rows that will share the batch.
            batch_limits: most rows and most outputs of the batch.
            can_pad: rows may be added where a wider step takes less time.
        """
        can_pad, num_padding = can_pad and not num_prompt_rows, 0
        if self._timer.sleeps(generating):
            return self._propose_nothing(generating, batch_limits, can_pad=can_pad)
        plans = [self._plan(*one) for one in zip(generating, limits, strict=True)]
        drafting = [plan for plan in plans if plan.max_tokens > 0]
        if drafting or can_pad:
            context = sum(len(plan.active.tokens) for plan in plans) // len(plans)
            step = Step(len(plans), len(plans) + num_prompt_rows, context, *batch_limits, can_pad)
            self._timer.start()
            self._ask_text(drafting)
            for plan in drafting:
                self._choose_text(plan, step)
            self._timer.stop()
            sunk_ms = self._models.ask(drafting, step)
            self._timer.start()
            batch = self.controller.plan([plan.offer() for plan in plans], step, sunk_ms)
            for plan, length in zip(plans, batch.lengths, strict=True):
                plan.settle_on(length)
            num_padding = batch.num_padding_rows
            self._timer.finish(plans, batch, step)
        self.deferred.add(lambda: self._counts.count_reasons(plans))
        return num_padding

    def _propose_nothing(
        self,
        generating: Sequence[ActiveRequest],
        batch_limits: tuple[int, int],
        *,
        can_pad: bool,
    ) -> int:
        """Nobody is asked in this step, because nobody would earn it; returns padding rows."""
        for active in generating:
            active.proposal = NO_PROPOSAL
            self._counts.count_reason(active, BELOW_BREAK_EVEN)
            for name in active.by_speculator:
                self._counts.count_miss(active, name, BELOW_BREAK_EVEN)
        if not can_pad or (len(generating) == 1 and not self.controller.holds_width):
            return 0
        context = sum(len(active.tokens) for active in generating) // len(generating)
        step = Step(len(generating), len(generating), context, *batch_limits, can_pad)
        return self.controller.plan([NO_SLOT_DRAFT] * len(generating), step).num_padding_rows

    def drop(self, running: Sequence[ActiveRequest], reason: str = "context full") -> None:
        """There is no room for drafts: verify none in this step."""
        for active in running:
            if not active.proposal.drafts:
                continue
            for name in dict.fromkeys(active.proposal.speculators):
                self._counts.count_miss(active, name, reason)
            self._counts.count_reason(active, reason)
            active.proposal = NO_PROPOSAL

    def observe(self, decoded: Decoded) -> None:
        """Show the verified rows to the speculators that asked for them."""
        for speculator in self.speculators.values():
            speculator.observe(decoded)

    def settle(self, texts: Sequence[Verified]) -> None:
        """The target emitted these tokens: count the drafts, teach control and the speculators."""
        told = []
        for one in texts:
            active, proposal = one.active, one.active.proposal
            active.proposal = NO_PROPOSAL
            if active.policy is None or active.policy.reason:
                continue
            self.deferred.add(partial(self._learn, one, proposal))
            told.append((active.slot_id, one.emitted, one.num_accepted))
        for speculator in self.speculators.values():
            speculator.accept(told)
        for one in texts:
            self.guess_logs.follow(one.active)

    def _learn(self, one: Verified, proposal: Proposal) -> None:
        """Count a draft that was verified, and teach control what the text says of all drafts."""
        active = one.active
        if proposal.drafts:
            self._counts.count_verified(active, proposal, one.num_accepted)
        for outcome in active.tracker.follow(active.slot_id, one.emitted):
            self.controller.record(outcome)

    def end(self, active: ActiveRequest) -> None:
        """The request leaves its slot."""
        self.deferred.run()
        if active.policy is None:
            return
        if not active.policy.reason:
            for speculator in self.speculators.values():
                speculator.end(active.slot_id)
            self.controller.end(active.slot_id, active.num_emitted)
        active.tracker, active.policy = DraftTracker(), None

    def save_sequences(self, seq_id: int) -> dict[str, Data]:
        """By speculator, what it has in a cache of its own of an idle sequence."""
        saved = {name: one.save_sequence(seq_id) for name, one in self.speculators.items()}
        return {name: data for name, data in saved.items() if data is not None}

    def restore_sequences(self, seq_id: int, data: dict[str, Data]) -> None:
        """Give speculators back what they had; the others compute it again when they need it."""
        for name, saved in data.items():
            self.speculators[name].restore_sequence(seq_id, saved)

    def read_corpus(self, question: CorpusQuestion) -> CorpusEvent:
        """Texts that the speculators keep."""
        return read_corpus(self.speculators.values(), question)

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

    def report(self) -> tuple[SpeculatorReport, ...]:
        """What each speculator did since the start, and the forced tokens if there were any."""
        reports = [speculator.report() for speculator in self.speculators.values()]
        if self._counts.forced_stats.num_drafts:
            reports.append(SpeculatorReport(name=GRAMMAR, stats=self._counts.forced_stats.copy()))
        return tuple(reports)

    def close(self) -> None:
        """Write what is durable."""
        self.save()
        for speculator in self.speculators.values():
            speculator.close()

    def save(self) -> None:
        """Keep what control learned; a failure costs only that."""
        self.deferred.run()
        if self._state is None:
            return
        try:
            self.controller.save(self._state)
        except OSError as error:
            log.warning("what control learned is not kept: %s", error)

    def _plan(self, active: ActiveRequest, limit: DraftLimit) -> DraftPlan:
        """An empty plan; the first one of a request tells everybody that it begins to generate."""
        policy = active.policy or self._begin(active)
        active.proposal = NO_PROPOSAL
        longest = min(limit.num_tokens, policy.n_max, active.num_free)
        plan = DraftPlan(active.slot_id, active, policy, longest)
        if policy.reason:
            plan.max_tokens, plan.reason = 0, policy.reason
        elif plan.max_tokens <= 0:
            plan.reason = limit.reason
        return plan

    def _begin(self, active: ActiveRequest) -> SpeculationPolicy:
        policy = active.policy = self.policy(active.request.speculative)
        if not policy.reason:
            self.controller.begin(active.slot_id, active.request.namespace)
            self.guess_logs.begin(active)
            for name in policy.types:  # one that was preempted has counted already
                active.by_speculator.setdefault(name, SpeculationStats())
            for speculator in self.speculators.values():
                speculator.begin(active.slot_id, active.tokens, active.request.namespace)
        return policy

    def _ask_text(self, plans: Sequence[DraftPlan]) -> None:
        for name, speculator in self.speculators.items():
            if speculator.is_model:
                continue
            asked = self._timer.choose(name, [plan for plan in plans if plan.wants(speculator)])
            if not asked:
                continue
            drafts = speculator.propose([plan.request() for plan in asked])
            self._timer.note(speculator, len(asked))
            self.deferred.add(partial(self._counts.count_calls, asked, speculator, drafts))
            for plan, draft in zip(asked, drafts, strict=True):
                if plan.has_answer(speculator, draft):
                    plan.drafts[name] = draft

    def _choose_text(self, plan: DraftPlan, step: Step) -> None:
        """Fixed lengths take the first draft; auto takes the one that is worth most."""
        proposals = self._proposals(plan)
        if not proposals:
            return
        if plan.is_fixed:
            plan.take(proposals[0], [1.0] * len(proposals[0].tokens))
            return
        survivals = [plan.survival_of(proposal, self.controller) for proposal in proposals]
        best = self.controller.best(survivals, step)
        if best is not None:
            plan.take(proposals[best], survivals[best])

    def _proposals(self, plan: DraftPlan) -> list[Proposal]:
        """What the texts' drafts come to, or what must come if there are none."""
        is_free = plan.active.sampler.is_free
        if not plan.drafts and is_free:
            return []
        if not is_free and (closing := plan.active.sampler.closing()[: plan.max_tokens]):
            return [Proposal((Draft(list(closing), [1.0] * len(closing), GRAMMAR),))]
        proposals = []
        for name in plan.policy.types:
            if name not in plan.drafts:
                continue
            proposal = plan.legal(plan.drafts[name])
            self.deferred.add(partial(plan.watch, proposal))
            if name in proposal.speculators:
                proposals.append(proposal)
            else:
                del plan.drafts[name]
                plan.miss(self.speculators[name], ILLEGAL)
        if not proposals and plan.active.legality is not None:
            forced = plan.legal(NO_DRAFT)
            proposals = [forced] if forced.drafts else []
        return proposals
