"""Plans and records of steps that no scheduler made: what control is asked, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from headstart.control import Allowance, Controller, ModelSlot, Step
from headstart.control.values import DraftCall
from headstart.scheduler.policy import Policy
from headstart.scheduler.sequence import Ending
from headstart.scheduler.step import End, StepPlan, StepRecord
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
    sequences: list[Any] = [
        SimpleNamespace(
            number=number,
            policy=Policy(
                DraftMode.FIXED if draft.is_fixed else DraftMode.AUTO, (), 64, draft.min_tokens, 0.0
            ),
            text=SimpleNamespace(legality=None),
        )
        for number, draft in zip(numbers or range(num), drafts, strict=True)
    ]
    plan.answer(sequences)
    plan.survivals = [list(draft.survival) for draft in drafts]
    return plan


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
    """How far control lets draft models draft."""
    plan = make_plan(step)
    plan.model_slots = {name: list(slots) for name, slots in model_slots.items()}
    return controller.grant(plan)


def make_record(plan: StepPlan, milliseconds: float = 0.0, num_prompt_rows: int = 0) -> StepRecord:
    """What the step did, in so many milliseconds: each answer emitted nothing that is known."""
    plan.num_rows = [1 + length for length in plan.num_verified]
    if num_prompt_rows:
        plan.num_rows.append(num_prompt_rows)
    emitted: list[tuple[int, ...]] = [()] * len(plan.sequences)
    seconds = milliseconds / 1000.0
    record = StepRecord(plan, seconds, seconds, emitted)
    record.context = plan.shape.context if plan.shape is not None else 0
    return record


def make_end(sequence: Any, num_emitted: int) -> End:
    """It is over."""
    stats: Any = SimpleNamespace(num_emitted=num_emitted)
    return End(sequence, Ending("length"), stats)


def decode(controller: Controller, rows: int, context: int, milliseconds: float) -> None:
    """Tell control of a decode of so many rows."""
    seconds = milliseconds / 1000.0
    record = StepRecord(StepPlan(NO_BATCH, 0.0, num_rows=[rows]), seconds, seconds)
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
    """A draft model's call for the first answers; scores: of its drafts, None: it only read."""
    drafts = [
        Draft((), (), name, is_ready=False) if one is None else Draft([0] * len(one), one, name)
        for one in scores
    ]
    indices = list(range(len(drafts)))
    return DraftCall(name, indices, drafts, milliseconds, [*allowances], catch_up)


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
    plan.calls.append(call)
    plan.is_asynchronous = True  # then no time is read from the record
    record = make_record(plan)
    for index, _, draft in call.drafted:
        length = len(draft.tokens)
        plan.num_verified[index], plan.sources[index] = length, [call.speculator] * length
        right = length if num_right is None else num_right
        record.emitted[index] = (0,) * (1 + right)
    controller.read(record)
