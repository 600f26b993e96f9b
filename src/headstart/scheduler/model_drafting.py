"""Model speculators at work: planned together, because each draft of theirs takes time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from headstart.control.controller import Controller
from headstart.control.values import Allowance, DraftCall, ModelSlot
from headstart.scheduler.grammar_drafts import GRAMMAR
from headstart.scheduler.guarded_speculator import FAILED, GuardedSpeculator
from headstart.scheduler.offers import askable, consider
from headstart.scheduler.step import BELOW_BREAK_EVEN, RESTING, StepPlan
from headstart.types import Draft, DraftRequest

# tokens; only to tell whether a model should continue or replace a text draft
_TYPICAL_MODEL_DRAFT = 2.0


@dataclass(slots=True)
class _Granted:
    """One answer for which a model may draft."""

    index: int
    allowance: Allowance
    catch_up: int  # tokens that it reads before it drafts as allowed, the newest one not counted
    rounds_behind: int | None  # in which it reads the text's draft; None: it begins anew


class ModelDrafting:
    """Asks the models of a worker."""

    def __init__(self, models: list[GuardedSpeculator], controller: Controller) -> None:
        self._models = models
        self._names = {model.name for model in models}
        self._controller = controller

    def ask(self, plan: StepPlan, may_draft: list[int]) -> None:
        """Let models draft where control expects it to pay, one at most for each answer."""
        asked: list[tuple[GuardedSpeculator, list[int]]] = []
        for model in self._models:
            candidates = askable(plan, may_draft, model, plan.sources)
            numbers = [plan.sequences[index].number for index in candidates]
            if any(plan.sequences[index].policy.is_fixed for index in candidates) or (
                numbers and self._controller.wanted(model.name, numbers)
            ):
                asked.append((model, candidates))
                plan.wishes[model.name] = [self._slot(plan, index, model) for index in candidates]
            else:  # `ModelDraftPlanner.sleeps` decides it
                plan.reasons.update(((index, model.name), RESTING) for index in candidates)
        allowances = self._controller.grant(plan) if asked else {}
        for model, indices in asked:
            self._ask_one(plan, model, indices, allowances[model.name])

    def _rounds_behind(self, plan: StepPlan, index: int, model: GuardedSpeculator) -> int | None:
        """Rounds in which it reads the text's draft, if it should continue that."""
        survival, sources = plan.survivals[index], plan.sources[index]
        if not survival or len(survival) >= plan.limits[index]:
            return None
        if not self._names.isdisjoint(sources):
            return None
        if plan.sequences[index].policy.is_fixed:  # then only what must come is continued
            if set(sources) != {GRAMMAR}:
                return None
        elif survival[-1] * _TYPICAL_MODEL_DRAFT <= _TYPICAL_MODEL_DRAFT - sum(survival):
            return None
        return model.rounds_behind(plan.sequences[index].seq_id, len(survival))

    def _slot(self, plan: StepPlan, index: int, model: GuardedSpeculator) -> ModelSlot:
        """What a model could do for an answer, for control."""
        sequence, survival = plan.sequences[index], plan.survivals[index]
        tokens, behind = sequence.text.words, self._rounds_behind(plan, index, model)
        is_behind = behind is not None
        return ModelSlot(
            sequence.number,
            plan.limits[index] - len(survival) if is_behind else plan.limits[index],
            model.num_catch_up(sequence.seq_id, tokens),
            recent=model.num_recent(sequence.seq_id, tokens),
            prefix=survival[-1] if is_behind else 1.0,
            to_beat=0.0 if is_behind else sum(survival),
            rounds_behind=behind or 0,
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
        """Let one of them draft as far as control allows."""
        granted = []
        slots = plan.wishes[model.name]
        for index, slot, allowance in zip(indices, slots, allowances, strict=True):
            has_failed = plan.sequences[index].seq_id in model.failed  # in `num_catch_up`
            if has_failed or not allowance.max_tokens:
                plan.miss(index, model.name, FAILED if has_failed else BELOW_BREAK_EVEN)
                continue
            if allowance.can_skip:
                plan.gaps[index] = model.name
            else:
                plan.gaps.pop(index, None)
            catch_up = slot.catch_up
            if allowance.can_skip and slot.recent is not None:
                catch_up = slot.recent
            behind = self._rounds_behind(plan, index, model)
            granted.append(_Granted(index, allowance, catch_up, behind))
        if granted:
            self._run(plan, model, granted)

    def _run(self, plan: StepPlan, model: GuardedSpeculator, granted: list[_Granted]) -> None:
        with _requests(plan, model, granted) as requests:
            drafts = model.propose(requests)
        milliseconds = 1000.0 * model.last_seconds
        has_failed = drafts[0].reason == FAILED  # then for all
        catch_up = None if has_failed else _num_read(plan, model, drafts, granted)
        allowances = [one.allowance for one in granted]
        behind = [one.rounds_behind or 0 for one in granted]
        indices = [one.index for one in granted]
        plan.calls.append(
            DraftCall(model.name, indices, drafts, milliseconds, allowances, behind, catch_up)
        )
        for one, draft in zip(granted, drafts, strict=True):
            if draft.tokens:
                self._choose(plan, one, draft)
            else:
                plan.miss(one.index, model.name, draft.reason or "no match")

    def _choose(self, plan: StepPlan, one: _Granted, draft: Draft) -> None:
        """Append the model's draft to the text's, or take it instead if it is worth more."""
        index = one.index
        before = plan.drafts[index] if one.rounds_behind is not None else []
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


def _num_left(plan: StepPlan, model: GuardedSpeculator, one: _Granted) -> int:
    """Tokens that the model left for later, of those that it reads before it drafts as allowed."""
    sequence = plan.sequences[one.index]
    seq_id, tokens = sequence.seq_id, sequence.text.words
    if one.allowance.can_skip and (recent := model.num_recent(seq_id, tokens)) is not None:
        return recent
    return model.num_catch_up(seq_id, tokens)


def _num_read(
    plan: StepPlan,
    model: GuardedSpeculator,
    drafts: list[Draft],
    granted: list[_Granted],
) -> int:
    """Tokens that the model read in a call, of those that it lacked for each answer."""
    num_read = 0
    for one, draft in zip(granted, drafts, strict=True):
        num_read += one.catch_up
        if not draft.is_ready:
            num_read -= _num_left(plan, model, one)
        elif one.rounds_behind == 0:
            num_read += len(plan.drafts[one.index])
    return max(0, num_read)


@contextmanager
def _requests(
    plan: StepPlan, model: GuardedSpeculator, granted: list[_Granted]
) -> Iterator[list[DraftRequest]]:
    """What a model is asked, for as long as it drafts.

    Where it continues a text draft, that draft stands at the end of the sequence's tokens
    meanwhile: O(draft), where a copy of the history would be O(context) a step.
    """
    requests = []
    with ExitStack() as loans:
        for one in granted:
            sequence = plan.sequences[one.index]
            text, state = sequence.text, sequence.text.legality
            words = text.tokens if model.sees_images else text.words
            images = [(start, chunk.for_draft) for start, chunk in sequence.media]
            before = plan.drafts[one.index] if one.rounds_behind is not None else []
            legality = None
            if state is not None and state.is_active and not state.is_over:
                legality = loans.enter_context(state.lookahead())
                legality.read_legal(before)
            if before:
                loans.callback(words.drop, len(words), len(words) + len(before))
                words.grow(before)
            requests.append(
                DraftRequest(
                    sequence.seq_id,
                    words,
                    one.allowance.max_tokens,
                    max(one.allowance.min_confidence, sequence.policy.p_min),
                    None if sequence.request.sampling.is_greedy else text.sampler.couple,
                    sequence.request.namespace,
                    legality,
                    len(before),
                    one.allowance.can_skip,
                    tuple((start, chunk) for start, chunk in images if chunk is not None),
                )
            )
        yield requests
