"""Asks draft models for all answers together, because each of their drafts takes time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from headstart.control.controller import Controller
from headstart.control.values import NO_ALLOWANCE, Allowance, DraftCall, ModelSlot
from headstart.scheduler.guarded_speculator import FAILED, GuardedSpeculator
from headstart.scheduler.offers import GRAMMAR, askable, consider
from headstart.scheduler.step import BELOW_BREAK_EVEN, RESTING, SequencePlan, StepPlan
from headstart.types import Draft, DraftRequest

# tokens; only for deciding whether a model continues or replaces a text draft
_TYPICAL_MODEL_DRAFT = 2.0


class ModelDrafting:
    """Asks the draft models of a worker."""

    def __init__(self, models: list[GuardedSpeculator], controller: Controller) -> None:
        self._models = models
        self._names = {model.name for model in models}
        self._controller = controller

    def ask(self, plan: StepPlan, may_draft: list[SequencePlan]) -> None:
        """Let models draft where control expects it to pay; at most one per answer."""
        asked = list[tuple[GuardedSpeculator, list[SequencePlan]]]()
        slots = dict[str, list[ModelSlot]]()
        for model in self._models:
            candidates = askable(may_draft, model, {})
            if any(answer.sequence.policy.is_fixed for answer in candidates) or (
                candidates and self._controller.may_ask_model_now(model.name)
            ):
                asked.append((model, candidates))
                slots[model.name] = [self._slot(answer, model) for answer in candidates]
            else:  # decided by `ModelDraftPlanner.steps_to_skip`
                for answer in candidates:
                    answer.reasons[model.name] = RESTING
        if asked:
            assert plan.shape is not None
            granted = self._controller.grant(slots, plan.shape)
            for model, candidates in asked:
                call = _call(model, candidates, slots[model.name], granted)
                if call.answers:
                    self._draft(call, model)
                    plan.calls.append(call)

    def _num_continued(self, answer: SequencePlan, model: GuardedSpeculator) -> int:
        """Length of the text speculators' draft if the model should continue it, otherwise 0."""
        survival, sources = answer.survival, answer.sources
        if not model.speculator.continues_drafts or not survival:
            return 0
        if len(survival) >= answer.limit or not self._names.isdisjoint(sources):
            return 0
        if answer.sequence.policy.is_fixed:  # continue forced tokens only
            is_worth_it = set(sources) == {GRAMMAR}
        else:
            more = _TYPICAL_MODEL_DRAFT * survival[-1]
            is_worth_it = more > _TYPICAL_MODEL_DRAFT - sum(survival)
        return len(survival) if is_worth_it else 0

    def _slot(self, answer: SequencePlan, model: GuardedSpeculator) -> ModelSlot:
        """An answer as control's planner sees it, for one model."""
        sequence, survival = answer.sequence, answer.survival
        tokens, num_before = sequence.text.speculator_tokens, self._num_continued(answer, model)
        return ModelSlot(
            sequence.number,
            answer.limit - num_before,
            model.num_catch_up(sequence.seq_id, tokens),
            num_before=num_before,
            prefix=survival[-1] if num_before else 1.0,
            to_beat=0.0 if num_before else sum(survival),
            num_left=sequence.num_left,
            fixed_confidence=sequence.policy.p_min if sequence.policy.is_fixed else None,
            recent=model.num_recent(sequence.seq_id, tokens),
        )

    def _draft(self, call: DraftCall, model: GuardedSpeculator) -> None:
        """Let the model draft for the answers of the call, which take what is worth it."""
        num_unread = 0
        for answer, slot, allowance in zip(call.answers, call.slots, call.allowances, strict=True):
            answer.skipping_model = model.name if allowance.can_skip else ""
            num_unread += slot.num_recent if allowance.can_skip else slot.catch_up
        with _requests(call, model) as requests:
            call.drafts = model.propose(requests)
        call.milliseconds = 1000.0 * model.last_seconds
        if call.drafts[0].reason != FAILED:  # a failure affects all drafts
            call.catch_up = max(0, num_unread - _num_left(call, model))
        for answer, slot, draft in zip(call.answers, call.slots, call.drafts, strict=True):
            if draft.tokens:
                self._choose(answer, draft, answer.draft[: slot.num_before])
            else:
                answer.miss(model.name, draft.reason)

    def _choose(self, answer: SequencePlan, draft: Draft, before: list[int]) -> None:
        """Append the model's draft to the text draft `before`; without one, take it if it is worth
        more.
        """
        found = consider(answer, draft, self._controller, before)
        if found is None:
            return
        tokens, sources, survival = found
        if before:
            answer.take(before + tokens, answer.sources + sources, answer.survival + survival)
        elif answer.sequence.policy.is_fixed or sum(survival) > sum(answer.survival):
            answer.take(tokens, sources, survival)


def _call(
    model: GuardedSpeculator,
    answers: list[SequencePlan],
    slots: list[ModelSlot],
    granted: dict[int, tuple[str, Allowance]],
) -> DraftCall:
    """A call for those of the answers that control grants to this model."""
    call = DraftCall(model.name, [], [], 0.0)
    for answer, slot in zip(answers, slots, strict=True):
        name, allowance = granted.get(slot.number, ("", NO_ALLOWANCE))
        if answer.sequence.seq_id in model.failed:  # in `num_catch_up`
            answer.miss(model.name, FAILED)
        elif name != model.name or not allowance.max_tokens:
            answer.miss(model.name, BELOW_BREAK_EVEN)
        else:
            call.answers.append(answer)
            call.slots.append(slot)
            call.allowances.append(allowance)
    return call


def _num_left(call: DraftCall, model: GuardedSpeculator) -> int:
    """Tokens still undecoded by the model, minus tokens of text drafts that it decoded."""
    num_left = 0
    answers = zip(call.answers, call.slots, call.allowances, call.drafts, strict=True)
    for answer, slot, allowance, draft in answers:
        if draft.is_ready:
            num_left -= slot.num_before
            continue
        sequence = answer.sequence
        seq_id, tokens = sequence.seq_id, sequence.text.speculator_tokens
        recent = model.num_recent(seq_id, tokens) if allowance.can_skip else None
        num_left += model.num_catch_up(seq_id, tokens) if recent is None else recent
    return num_left


@contextmanager
def _requests(call: DraftCall, model: GuardedSpeculator) -> Iterator[list[DraftRequest]]:
    """Requests to a model, valid while it drafts.

    A text draft to continue is appended to the sequence's tokens meanwhile: O(draft), while copying
    the history would be O(context) per step.
    """
    requests = []
    with ExitStack() as loans:
        answers = zip(call.answers, call.slots, call.allowances, strict=True)
        for answer, slot, allowance in answers:
            sequence, before = answer.sequence, answer.draft[: slot.num_before]
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
