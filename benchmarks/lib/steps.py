"""Plans and records of steps that no scheduler made: what control is asked, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from headstart.control.controller import Controller
from headstart.control.values import AskedAnswer, DraftCall, Step
from headstart.scheduler.policy import Policy
from headstart.scheduler.step import End, SequencePlan, StepPlan, StepRecord
from headstart.types import NO_DRAFT, Batch, Draft

NO_BATCH = Batch(1)  # nothing is decoded


@dataclass(frozen=True)
class SlotDraft:
    """One slot's draft: the survival of its tokens, and what the request asks of it."""

    survival: Sequence[float] = ()
    min_tokens: int = 0
    is_fixed: bool = False
    p_min: float = 0.0


def make_plan(
    step: Step, drafts: Sequence[SlotDraft] = (), numbers: Sequence[int] = ()
) -> StepPlan:
    """A plan of answers with these drafts; numbers: of the requests, else 0, 1, ..."""
    plan, num = StepPlan(NO_BATCH, 0.0, step=step, rows=step.rows), step.num_slots
    drafts = [*drafts, *[SlotDraft()] * (num - len(drafts))]
    for number, draft in zip(numbers or range(num), drafts, strict=True):
        policy = Policy(draft.is_fixed, (), 64, draft.min_tokens, draft.p_min)
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
        plan.calls.append(model_call([allowed(0)], [None], sunk_ms))
    controller.assign_rows(plan)
    return plan


def model_slot(
    number: int,
    max_tokens: int = 16,
    catch_up: int = 0,
    draft: SlotDraft | None = None,
    **fields: Any,
) -> AskedAnswer:
    """An answer that a draft model could draft for; draft: what the request asks of it."""
    (answer,) = make_plan(Step(1, 1, 0), [draft or SlotDraft()], [number]).answers
    return AskedAnswer(answer, max_tokens, NO_DRAFT, catch_up=catch_up, **fields)


def allowed(length: int, **fields: Any) -> AskedAnswer:
    """An answer that a draft model may draft so many tokens for."""
    return model_slot(0, length, num_granted=length, **fields)


def grant(
    controller: Controller, model_slots: Mapping[str, Sequence[AskedAnswer]], step: Step
) -> dict[str, list[AskedAnswer]]:
    """How far control lets each draft model draft for its slots."""
    # the slots may be asked about again
    asked = {name: [replace(slot) for slot in slots] for name, slots in model_slots.items()}
    controller.grant(asked, step)
    return asked


def make_record(plan: StepPlan, milliseconds: float = 0.0, num_prompt_rows: int = 0) -> StepRecord:
    """What the step did, in so many milliseconds: each answer emitted nothing that is known."""
    plan.num_rows = num_prompt_rows + plan.num_padding
    again = [0] * len(plan.answers)
    if plan.step is not None and plan.step.again:
        again = [*plan.step.again]
    for answer, num_again in zip(plan.answers, again, strict=True):
        answer.num_rows = 1 + answer.num_verified + num_again
        plan.num_rows += answer.num_rows
    seconds = milliseconds / 1000.0
    record = StepRecord(plan, seconds, seconds)
    record.context = plan.step.context if plan.step is not None else 0
    return record


def make_end(sequence: Any, num_emitted: int) -> End:
    """It is over."""
    stats: Any = SimpleNamespace(num_emitted=num_emitted)
    return End(sequence, "length", stats=stats)


def decode(
    controller: Controller, rows: int, context: int, milliseconds: float, num_new: int = 0
) -> None:
    """Tell control of a decode of so many rows, during which requests arrived."""
    seconds = milliseconds / 1000.0
    plan = StepPlan(NO_BATCH, 0.0, num_rows=rows, num_new=num_new)
    record = StepRecord(plan, seconds, seconds)
    record.context = context
    controller.read(record)


def model_call(
    granted: Sequence[AskedAnswer],
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
    asked = [replace(one, draft=draft) for one, draft in zip(granted, drafts, strict=True)]
    return DraftCall(name, asked, milliseconds, is_model=True, catch_up=catch_up)


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
    own = zip(call.asked, plan.answers, strict=False)
    call = replace(call, asked=[replace(one, answer=answer) for one, answer in own])
    plan.calls.append(call)
    plan.is_asynchronous = True  # then no time is read from the record
    record = make_record(plan)
    for one in call.drafted:
        answer, length = one.answer, len(one.draft.tokens)
        answer.num_verified = length
        answer.sources = [call.speculator] * length
        right = length if num_right is None else num_right
        answer.emitted = (0,) * (1 + right)
    controller.read(record)
