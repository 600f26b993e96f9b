"""One generating slot while its draft for this step is being decided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from headstart.control.controller import Controller
from headstart.control.values import (
    NO_ALLOWANCE,
    NO_SLOT_DRAFT,
    Allowance,
    ModelSlot,
    SlotDraft,
    with_gap,
)
from headstart.sampling.grammar.draft_legality import MatcherLegality
from headstart.scheduler.grammar_drafts import GRAMMAR, constrained_name, splice
from headstart.scheduler.guarded_speculator import FAILED, GuardedSpeculator
from headstart.scheduler.proposal import NO_PROPOSAL, Proposal
from headstart.scheduler.slot import ActiveRequest
from headstart.scheduler.speculation_policy import SpeculationPolicy
from headstart.types import Draft, DraftMode, DraftRequest

BELOW_BREAK_EVEN = "below break-even"
_OUTBID = "outbid"
# tokens; only to tell whether a model should continue or replace a text draft
_TYPICAL_MODEL_DRAFT = 2.0


@dataclass(slots=True)
class DraftPlan:
    """What is on offer for one slot: the texts' drafts, then one proposal."""

    seq_id: int
    active: ActiveRequest
    policy: SpeculationPolicy
    max_tokens: int  # most draft tokens that can be verified
    proposal: Proposal = NO_PROPOSAL
    survival: Sequence[float] = ()  # of the proposal's tokens
    has_model_draft: bool = False  # whether some of them are a model's
    drafts: dict[str, Draft] = field(default_factory=dict)  # of text speculators
    # decodes in which the model being asked reads the text's draft; None: it cannot continue it
    rounds_behind: int | None = 0
    allowance: Allowance = NO_ALLOWANCE  # to it
    skipping: str = ""  # the model that leaves out the middle of the text
    reason: str = ""  # why there is no draft
    # why a speculator has none, where it is its own doing
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def is_fixed(self) -> bool:
        return self.policy.mode is DraftMode.FIXED

    def wants(self, speculator: GuardedSpeculator) -> bool:
        """Whether this speculator should be asked; with fixed lengths the first in order that has a
        draft wins.

        Texts are asked before models, so a model that stands before the one that has a draft is
        asked too.
        """
        if speculator.name not in self.policy.types or not speculator.can_draft(self.seq_id):
            return False
        if not self.is_fixed:
            return True
        taken = [name for name in self.proposal.speculators if name != GRAMMAR]
        return not any(self._is_before(name, speculator.name) for name in taken or self.drafts)

    def why_not(self, speculator: GuardedSpeculator) -> str:
        """Why no draft of this speculator is verified; what it says itself comes first."""
        if self.max_tokens <= 0:
            return self.reason
        if own := self.reasons.get(speculator.name):
            return own
        if not speculator.can_draft(self.seq_id):
            return FAILED
        return (self.reason or _OUTBID) if self.survival else BELOW_BREAK_EVEN

    def has_answer(self, speculator: GuardedSpeculator, draft: Draft) -> bool:
        """Whether what this speculator answered is a draft; else the plan keeps the reason."""
        if draft.tokens:
            return True
        self.miss(speculator, draft.reason or "no match")
        return False

    def miss(self, speculator: GuardedSpeculator, reason: str) -> None:
        """This speculator has no draft, for a reason of its own."""
        self.reasons[speculator.name] = reason
        if not self.survival:
            self.reason = reason

    def _is_before(self, name: str, other: str) -> bool:
        return self.policy.types.index(name) < self.policy.types.index(other)

    def request(self) -> DraftRequest:
        """For a text speculator: as far as there is room."""
        active = self.active
        return DraftRequest(
            self.seq_id, active.tokens, self.max_tokens, namespace=active.request.namespace
        )

    def model_request(self) -> DraftRequest:
        """For a model: as far as control allows."""
        active = self.active
        choose = None if active.request.sampling.is_greedy else active.sampler.couple
        confidence = max(self.allowance.min_confidence, self.policy.p_min)
        return DraftRequest(
            self.seq_id,
            active.tokens,
            self.allowance.max_tokens,
            confidence,
            choose,
            active.request.namespace,
            self._draft_legality(),
            len(self.proposal.tokens) if self.continues else 0,
            self.allowance.can_skip,
        )

    def _draft_legality(self) -> MatcherLegality | None:
        """What a model may pick from, where the request is constrained."""
        legality = self.active.legality
        if legality is None:
            return None
        before = self.proposal.tokens if self.continues else ()
        return MatcherLegality.behind(legality, before, self.active.sampler.vocab_size)

    @property
    def lead(self) -> int:
        """Decodes of the model being asked before its own first token."""
        return self.rounds_behind or 0 if self.continues else 0

    @property
    def continues(self) -> bool:
        """Whether a model should continue the text draft rather than replace it."""
        if self.rounds_behind is None or not self.survival or self.has_model_draft:
            return False
        if len(self.survival) >= self.max_tokens:
            return False
        if self.is_fixed:  # then only what must come is continued
            return set(self.proposal.speculators) == {GRAMMAR}
        return self.survival[-1] * _TYPICAL_MODEL_DRAFT > _TYPICAL_MODEL_DRAFT - sum(self.survival)

    def legal(self, draft: Draft, before: Sequence[int] = ()) -> Proposal:
        """What can be verified of a draft that stands behind these tokens of the proposal."""
        legality = self.active.legality
        if legality is None:
            return Proposal((draft,))
        return Proposal(splice(legality, draft, self.max_tokens - len(before), before))

    def control_name(self, speculator: str) -> str:
        """The name under which control knows this speculator here."""
        if speculator == self.skipping:
            speculator = with_gap(speculator)
        legality = self.active.legality
        is_constrained = legality is not None and legality.is_active
        return constrained_name(speculator) if is_constrained else speculator

    def survival_of(
        self, proposal: Proposal, controller: Controller, before: Sequence[int] = ()
    ) -> list[float]:
        """Survival of each token, behind these of the proposal so far."""
        survival: list[float] = []
        reached = self.survival[-1] if before else 1.0
        previous = before[-1] if before else self.active.tokens[-1]
        for draft in proposal.drafts:
            if draft.speculator == GRAMMAR:
                survival += [reached] * len(draft.tokens)
            else:
                name, line = self.control_name(draft.speculator), [previous, *draft.tokens]
                own = controller.survival(name, draft.confidence, self.seq_id, line)
                survival += own if reached == 1.0 else [reached * s for s in own]
            previous, reached = draft.tokens[-1], survival[-1]
        return survival

    def watch(self, proposal: Proposal, before: Sequence[int] = ()) -> None:
        """Follow what becomes of a speculator's own tokens, up to the next forced ones."""
        after = [*before]
        for draft in proposal.drafts:
            if draft.speculator != GRAMMAR:
                name = self.control_name(draft.speculator)
                known = draft if name == draft.speculator else replace(draft, speculator=name)
                previous = after[-1] if after else self.active.tokens[-1]
                self.active.tracker.watch(known, [previous, *draft.tokens], after)
                return
            after += draft.tokens

    def num_catch_up(self, speculator: GuardedSpeculator) -> int:
        """Tokens that the model reads before it drafts as allowed, the newest one not counted."""
        if self.allowance.can_skip:
            recent = speculator.num_recent(self.seq_id, self.active.tokens)
            if recent is not None:
                return recent
        return speculator.num_catch_up(self.seq_id, self.active.tokens)

    def address(self, speculator: GuardedSpeculator) -> None:
        """This model is the one being asked."""
        length = len(self.survival)
        self.rounds_behind = speculator.rounds_behind(self.seq_id, length) if length else 0

    def model_slot(self, speculator: GuardedSpeculator) -> ModelSlot:
        """What a model could do here, for control."""
        self.address(speculator)
        length, continued = len(self.survival), self.continues
        return ModelSlot(
            self.seq_id,
            self.max_tokens - length if continued else self.max_tokens,
            speculator.num_catch_up(self.seq_id, self.active.tokens),
            recent=speculator.num_recent(self.seq_id, self.active.tokens),
            prefix=self.survival[-1] if continued else 1.0,
            rival=0.0 if continued else sum(self.survival),
            lead=self.lead,
            num_answered=self.active.num_emitted,
            num_left=self.active.num_left,
            fixed_confidence=self.policy.p_min if self.is_fixed else None,
        )

    def take(self, proposal: Proposal, survival: Sequence[float]) -> None:
        self.proposal, self.survival, self.reason = proposal, survival, ""

    def offer(self) -> SlotDraft:
        """For the budget."""
        survival = self.survival
        if not survival:
            return NO_SLOT_DRAFT
        if not survival[-1]:  # what is never accepted is not worth looking at
            survival = survival[: survival.index(0.0)]
        return SlotDraft(survival, self.policy.shortest, self.is_fixed)

    def settle_on(self, length: int) -> None:
        """Verify the first `length` tokens of the proposal."""
        if self.active.request.wants_provenance:  # with fixed lengths nobody asked control
            self.active.chances = () if self.is_fixed else self.survival
        if not self.survival:
            return
        if length < len(self.survival) and not length:
            self.reason = (
                "shorter than n_min"
                if len(self.survival) < self.policy.shortest
                else BELOW_BREAK_EVEN
            )
        verified = self.active.proposal = self.proposal.cut(length)
        for name in self.proposal.speculators if length else ():
            if name not in verified.speculators:
                self.reasons[name] = BELOW_BREAK_EVEN


@contextmanager
def model_requests(plans: Sequence[DraftPlan]) -> Iterator[list[DraftRequest]]:
    """What a model is asked, for as long as it drafts.

    Where it continues a text draft, that draft stands at the end of the request's tokens meanwhile:
    O(draft), where a copy of the history would be O(context) a step.
    """
    lent = [(plan.active.tokens, len(plan.active.tokens)) for plan in plans if plan.continues]
    for plan in plans:
        if plan.continues:
            plan.active.tokens.grow(plan.proposal.tokens)
    try:
        yield [plan.model_request() for plan in plans]
    finally:
        for tokens, length in lent:
            tokens.drop(length, len(tokens))
