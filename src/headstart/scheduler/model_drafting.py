"""Asks draft models for all answers together, because each of their drafts takes time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from headstart.control.controller import Controller
from headstart.control.values import Allowance, DraftCall, ModelSlot
from headstart.scheduler.guarded_speculator import FAILED, GuardedSpeculator
from headstart.scheduler.offers import GRAMMAR, askable, consider
from headstart.scheduler.step import BELOW_BREAK_EVEN, RESTING, StepPlan
from headstart.types import Draft, DraftRequest

# tokens; only for deciding whether a model continues or replaces a text draft
_TYPICAL_MODEL_DRAFT = 2.0


class ModelDrafting:
    """Asks the draft models of a worker."""

    def __init__(self, models: list[GuardedSpeculator], controller: Controller) -> None:
        self._models = models
        self._names = {model.name for model in models}
        self._controller = controller

    def ask(self, plan: StepPlan, may_draft: list[int]) -> None:
        """Let models draft where control expects it to pay; at most one per answer."""
        asked: list[tuple[GuardedSpeculator, list[int]]] = []
        for model in self._models:
            candidates = askable(plan, may_draft, model, plan.sources)
            if any(plan.sequences[index].policy.is_fixed for index in candidates) or (
                candidates and self._controller.may_ask_model_now(model.name)
            ):
                asked.append((model, candidates))
                slots = [self._slot(plan, index, model) for index in candidates]
                plan.model_slots[model.name] = slots
            else:  # decided by `ModelDraftPlanner.steps_to_skip`
                plan.reasons.update(((index, model.name), RESTING) for index in candidates)
        allowances = self._controller.grant(plan) if asked else {}
        for model, indices in asked:
            self._ask_one(plan, model, indices, allowances[model.name])

    def _continued(self, plan: StepPlan, index: int, model: GuardedSpeculator) -> list[int]:
        """The text speculators' draft if the model should continue it, otherwise []."""
        survival, sources = plan.survivals[index], plan.sources[index]
        if not model.speculator.continues_drafts or not survival:
            return []
        if len(survival) >= plan.limits[index] or not self._names.isdisjoint(sources):
            return []
        if plan.sequences[index].policy.is_fixed:  # continue forced tokens only
            is_worth_it = set(sources) == {GRAMMAR}
        else:
            more = _TYPICAL_MODEL_DRAFT * survival[-1]
            is_worth_it = more > _TYPICAL_MODEL_DRAFT - sum(survival)
        return plan.drafts[index] if is_worth_it else []

    def _slot(self, plan: StepPlan, index: int, model: GuardedSpeculator) -> ModelSlot:
        """An answer as control's planner sees it, for one model."""
        sequence, survival = plan.sequences[index], plan.survivals[index]
        tokens = sequence.text.speculator_tokens
        is_behind = bool(self._continued(plan, index, model))
        return ModelSlot(
            sequence.number,
            plan.limits[index] - len(survival) if is_behind else plan.limits[index],
            model.num_catch_up(sequence.seq_id, tokens),
            recent=model.num_recent(sequence.seq_id, tokens),
            prefix=survival[-1] if is_behind else 1.0,
            to_beat=0.0 if is_behind else sum(survival),
            num_left=sequence.num_left,
            fixed_confidence=sequence.policy.p_min if sequence.policy.is_fixed else None,
        )

    def _ask_one(
        self,
        plan: StepPlan,
        model: GuardedSpeculator,
        indices: list[int],
        allowances: list[Allowance],
    ) -> None:
        """Let one model draft as far as control allows."""
        call, num_unread = DraftCall(model.name, [], [], 0.0), 0
        slots, before = plan.model_slots[model.name], list[list[int]]()
        for index, slot, allowance in zip(indices, slots, allowances, strict=True):
            has_failed = plan.sequences[index].seq_id in model.failed  # in `num_catch_up`
            if has_failed or not allowance.max_tokens:
                plan.miss(index, model.name, FAILED if has_failed else BELOW_BREAK_EVEN)
                continue
            if allowance.can_skip:
                plan.skipping_models[index] = model.name
            else:
                plan.skipping_models.pop(index, None)
            num_unread += slot.num_recent if allowance.can_skip else slot.catch_up
            call.indices.append(index)
            call.allowances.append(allowance)
            before.append(self._continued(plan, index, model))
        if not call.indices:
            return
        with _requests(plan, model, call, before) as requests:
            call.drafts = model.propose(requests)
        call.milliseconds = 1000.0 * model.last_seconds
        if call.drafts[0].reason != FAILED:  # a failure affects all drafts
            call.catch_up = max(0, num_unread - _num_left(plan, model, call, before))
        plan.calls.append(call)
        for index, known, draft in zip(call.indices, before, call.drafts, strict=True):
            if draft.tokens:
                self._choose(plan, index, draft, known)
            else:
                plan.miss(index, model.name, draft.reason or "no match")

    def _choose(self, plan: StepPlan, index: int, draft: Draft, before: list[int]) -> None:
        """Append the model's draft to the text draft `before`; without one, take it if it is worth
        more.
        """
        found = consider(plan, index, draft, self._controller, before)
        if found is None:
            return
        tokens, sources, survival = found
        if before:
            plan.take(
                index,
                before + tokens,
                plan.sources[index] + sources,
                plan.survivals[index] + survival,
            )
        elif plan.sequences[index].policy.is_fixed or sum(survival) > sum(plan.survivals[index]):
            plan.take(index, tokens, sources, survival)


def _num_left(
    plan: StepPlan, model: GuardedSpeculator, call: DraftCall, before: list[list[int]]
) -> int:
    """Tokens still undecoded by the model, minus tokens of text drafts that it decoded."""
    num_left = 0
    answers = zip(call.indices, call.allowances, call.drafts, before, strict=True)
    for index, allowance, draft, known in answers:
        if draft.is_ready:
            num_left -= len(known)
            continue
        sequence = plan.sequences[index]
        seq_id, tokens = sequence.seq_id, sequence.text.speculator_tokens
        recent = model.num_recent(seq_id, tokens) if allowance.can_skip else None
        num_left += model.num_catch_up(seq_id, tokens) if recent is None else recent
    return num_left


@contextmanager
def _requests(
    plan: StepPlan, model: GuardedSpeculator, call: DraftCall, continued: list[list[int]]
) -> Iterator[list[DraftRequest]]:
    """Requests to a model, valid while it drafts.

    A text draft to continue is appended to the sequence's tokens meanwhile: O(draft), while copying
    the history would be O(context) per step.
    """
    requests = []
    with ExitStack() as loans:
        answers = zip(call.indices, call.allowances, continued, strict=True)
        for index, allowance, before in answers:
            sequence = plan.sequences[index]
            text, state = sequence.text, sequence.text.legality
            tokens = text.tokens if model.sees_images else text.speculator_tokens
            images = [(start, chunk.for_draft) for start, chunk in sequence.media]
            legality = None
            if state is not None and state.is_active and not state.is_over:
                legality = loans.enter_context(state.lookahead())
                legality.read_legal(before)
            if before:
                loans.callback(tokens.drop, len(tokens), len(tokens) + len(before))
                tokens.grow(before)
            requests.append(
                DraftRequest(
                    sequence.seq_id,
                    tokens,
                    allowance.max_tokens,
                    max(allowance.min_confidence, sequence.policy.p_min),
                    None if sequence.request.sampling.is_greedy else text.sampler.couple,
                    sequence.request.namespace,
                    legality,
                    len(before),
                    allowance.can_skip,
                    tuple((start, chunk) for start, chunk in images if chunk is not None),
                )
            )
        yield requests
