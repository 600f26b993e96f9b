"""Asks draft models for all answers together, because each of their drafts takes time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from headstart.control.controller import Controller
from headstart.control.values import AskedAnswer, DraftCall
from headstart.scheduler.guarded_speculator import FAILED, GuardedSpeculator
from headstart.scheduler.offers import GRAMMAR, askable, consider
from headstart.scheduler.step import BELOW_BREAK_EVEN, SequencePlan, StepPlan
from headstart.types import NO_DRAFT, DraftRequest


def ask_models(
    models: Sequence[GuardedSpeculator],
    resting: Mapping[str, str],
    controller: Controller,
    plan: StepPlan,
    answers: list[SequencePlan],
) -> None:
    """Let models draft where control expects it to pay; at most one per answer.

    resting: by model, why control does not ask it in this step, "" if it does; lengths set by hand
    are always honoured.
    """
    asked = dict[str, list[AskedAnswer]]()
    for model in models:
        slots = asked[model.name] = list[AskedAnswer]()
        reason = resting[model.name]
        for answer in askable(answers, model, {}):
            if not reason or answer.sequence.policy.is_fixed:
                slots.append(_asked(answer, model))
            else:
                answer.reasons[model.name] = reason
    if not any(asked.values()):
        return
    assert plan.step is not None
    controller.grant(asked, plan.step)
    for model in models:
        granted = list[AskedAnswer]()
        for one in asked[model.name]:
            if one.answer.sequence.seq_id in model.failed:  # in `num_catch_up`
                one.answer.miss(model.name, FAILED)
            elif not one.num_granted:
                one.answer.miss(model.name, one.reason or BELOW_BREAK_EVEN)
            else:
                granted.append(one)
        if granted:
            plan.calls.append(_draft(model, granted))
            for one in granted:
                if one.draft.tokens:
                    _choose(one, controller)
                else:
                    one.answer.miss(model.name, one.draft.reason)


def _asked(answer: SequencePlan, model: GuardedSpeculator) -> AskedAnswer:
    """An answer as control's planner sees it, for one model."""
    sequence = answer.sequence
    tokens, num_before = sequence.model_tokens, _num_continued(answer, model)
    return AskedAnswer(
        answer,
        answer.limit - num_before,
        NO_DRAFT,
        catch_up=model.call("num_catch_up", sequence.seq_id, tokens, otherwise=0),
        num_before=num_before,
        to_beat=0.0 if num_before else sum(answer.survival),
        num_answered=sequence.num_emitted,
        num_left=sequence.num_left,
    )


def _num_continued(answer: SequencePlan, model: GuardedSpeculator) -> int:
    """Forced tokens that the model should continue: they are certain, and reading them takes it
    less time than drafting them. Otherwise 0.
    """
    is_forced = set(answer.sources) == {GRAMMAR} and len(answer.draft) < answer.limit
    return len(answer.draft) if is_forced and model.speculator.continues_drafts else 0


def _draft(model: GuardedSpeculator, granted: list[AskedAnswer]) -> DraftCall:
    """Let the model draft for these answers."""
    with _requests(granted) as requests:
        drafts = model.propose(requests)
    call = DraftCall(model.name, granted, 1000.0 * model.last_seconds, is_model=True)
    for one, draft in zip(granted, drafts, strict=True):
        one.draft = draft
    if all(draft.reason != FAILED for draft in drafts):
        call.catch_up = max(0, sum([_num_read(one, model) for one in granted]))
    return call


def _num_read(one: AskedAnswer, model: GuardedSpeculator) -> int:
    """Tokens that the model decoded for this answer before it drafted."""
    if one.draft.is_ready:
        return one.catch_up + one.num_before
    seq_id, tokens = one.answer.sequence.seq_id, one.answer.sequence.model_tokens
    return one.catch_up - int(model.call("num_catch_up", seq_id, tokens, otherwise=0))


def _choose(one: AskedAnswer, controller: Controller) -> None:
    """Append the model's draft to the forced tokens; without any, take it if it is worth more."""
    answer, before = one.answer, one.answer.draft[: one.num_before]
    found = consider(answer, one.draft, controller, before)
    if found is None:
        return
    tokens, sources, survival = found
    if before:
        answer.take(before + tokens, answer.sources + sources, answer.survival + survival)
    elif answer.sequence.policy.is_fixed or sum(survival) > sum(answer.survival):
        answer.take(tokens, sources, survival)


@contextmanager
def _requests(granted: list[AskedAnswer]) -> Iterator[list[DraftRequest]]:
    """Requests to a model, valid while it drafts.

    Forced tokens to continue are appended to the sequence's tokens meanwhile: O(draft), while
    copying the history would be O(context) per step.
    """
    requests = []
    with ExitStack() as loans:
        for one in granted:
            sequence, before = one.answer.sequence, one.answer.draft[: one.num_before]
            state = sequence.legality
            tokens = sequence.model_tokens
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
                    one.num_granted,
                    max(one.min_confidence, sequence.policy.p_min),
                    None if sequence.request.sampling.is_greedy else sequence.sampler.couple,
                    sequence.request.namespace,
                    legality,
                )
            )
        yield requests
