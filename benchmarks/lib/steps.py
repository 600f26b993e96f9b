"""Plans and records of steps that no scheduler made: what control is asked, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from headstart.control import Allowance, Controller, ModelSlot, Step
from headstart.control.values import NO_ALLOWANCE, DraftCall
from headstart.scheduler.policy import Policy
from headstart.scheduler.sequence import Ending
from headstart.scheduler.step import End, SequencePlan, StepPlan, StepRecord
from headstart.types import Batch, Draft, DraftMode

NO_BATCH = Batch(1)  # nothing is decoded


@dataclass(frozen=True)
class SlotDraft:
    """One slot's draft: the survival of its tokens, and what the request asks of it."""

    survival: Sequence[float] = ()
    min_tokens: int = 0
    is_fixed: bool = False


def make_plan(
    step: Step, drafts: Sequence[SlotDraft] = (), numbers: Sequence[int] = ()
) -> StepPlan:
    """A plan of answers with these drafts; numbers: of the requests, else 0, 1, ..."""
    plan, num = StepPlan(NO_BATCH, 0.0, shape=step, is_even=step.is_even), step.num_slots
    drafts = [*drafts, *[SlotDraft()] * (num - len(drafts))]
    for number, draft in zip(numbers or range(num), drafts, strict=True):
        mode = DraftMode.FIXED if draft.is_fixed else DraftMode.AUTO
        policy = Policy(mode, (), 64, draft.min_tokens, 0.0)
        text = SimpleNamespace(legality=None)
        sequence: Any = SimpleNamespace(number=number, policy=policy, text=text)
        plan.answers.append(SequencePlan(sequence, survival=list(draft.survival)))
    return plan


def lengths(plan: StepPlan) -> list[int]:
    """Draft tokens that each answer verifies."""
    return [answer.num_verified for answer in plan.answers]


def assign_rows(
    controller: Controller, drafts: Sequence[SlotDraft], step: Step, sunk_ms: float = 0.0
) -> StepPlan:
    """The plan with what control gives to these drafts, which took so long."""
    plan = make_plan(step, drafts)
    if sunk_ms:
        plan.calls.append(model_call([Allowance()], [None], sunk_ms))
    controller.assign_rows(plan)
    return plan


def grant(
    controller: Controller, model_slots: Mapping[str, Sequence[ModelSlot]], step: Step
) -> dict[str, list[Allowance]]:
    """How far control lets each draft model draft for its slots."""
    granted, nobody = controller.grant(model_slots, step), ("", NO_ALLOWANCE)
    return {
        name: [
            allowance if drafter == name else NO_ALLOWANCE
            for drafter, allowance in (granted.get(slot.number, nobody) for slot in slots)
        ]
        for name, slots in model_slots.items()
    }


def make_record(plan: StepPlan, milliseconds: float = 0.0, num_prompt_rows: int = 0) -> StepRecord:
    """What the step did, in so many milliseconds: each answer emitted nothing that is known."""
    plan.num_rows = num_prompt_rows + plan.num_padding
    for answer in plan.answers:
        answer.num_rows = 1 + answer.num_verified
        plan.num_rows += answer.num_rows
    seconds = milliseconds / 1000.0
    record = StepRecord(plan, seconds, seconds)
    record.context = plan.shape.context if plan.shape is not None else 0
    return record


def make_end(sequence: Any, num_emitted: int) -> End:
    """It is over."""
    stats: Any = SimpleNamespace(num_emitted=num_emitted)
    return End(sequence, Ending("length"), stats)


def decode(controller: Controller, rows: int, context: int, milliseconds: float) -> None:
    """Tell control of a decode of so many rows."""
    seconds = milliseconds / 1000.0
    record = StepRecord(StepPlan(NO_BATCH, 0.0, num_rows=rows), seconds, seconds)
    record.context = context
    controller.read(record)


def model_call(
    allowances: Sequence[Allowance],
    scores: Sequence[Sequence[float] | None],
    milliseconds: float,
    catch_up: int = 0,
    *,
    name: str = "model",
) -> DraftCall:
    """A draft model's call; scores: of its drafts, None: it only read."""
    drafts = [
        Draft((), (), name, is_ready=False) if one is None else Draft([0] * len(one), one, name)
        for one in scores
    ]
    answers = make_plan(Step(len(drafts), len(drafts), 0)).answers
    return DraftCall(name, answers, drafts, milliseconds, [], [*allowances], catch_up)


def ran(
    controller: Controller,
    call: DraftCall,
    step: Step,
    num_right: int | None = None,
    *,
    number: int = 1,
) -> None:
    """Tell control of a draft model's call for this request; so many tokens of the draft are right,
    or all.

    All are verified, in a step that takes as long as expected.
    """
    plan = make_plan(step, numbers=[*range(number, number + step.num_slots)])
    call = replace(call, answers=plan.answers[: len(call.drafts)])
    plan.calls.append(call)
    plan.is_asynchronous = True  # then no time is read from the record
    record = make_record(plan)
    results = dict(zip(plan.answers, record.results, strict=True))
    for answer, _, draft in call.drafted:
        answer.num_verified = length = len(draft.tokens)
        answer.sources = [call.speculator] * length
        right = length if num_right is None else num_right
        results[answer].emitted = (0,) * (1 + right)
    controller.read(record)
