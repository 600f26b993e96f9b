"""From a speculator's draft to what can be verified of it, and what that is worth."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from headstart.control.controller import Controller
from headstart.control.values import with_gap
from headstart.scheduler.grammar_drafts import GRAMMAR, constrained_name, splice
from headstart.scheduler.guarded_speculator import FAILED, GuardedSpeculator
from headstart.scheduler.step import Offer, StepPlan
from headstart.types import Draft, DraftMode

ILLEGAL = "illegal under the constraint"


def may_ask(
    plan: StepPlan, index: int, speculator: GuardedSpeculator, found: Collection[str]
) -> bool:
    """Whether this speculator may draft for an answer.

    found: who made the draft that there is, or drafts. With lengths set by hand, the first in the
    order of `--spec-type` that has a draft wins.
    """
    sequence, name = plan.sequences[index], speculator.name
    types = sequence.policy.types
    if name not in types:
        return False
    if not speculator.can_draft(sequence.seq_id):
        plan.reasons[index, name] = FAILED
        return False
    if not found or not is_fixed(plan, index):
        return True
    at = types.index(name)
    return all(other == GRAMMAR or types.index(other) > at for other in found)


def is_fixed(plan: StepPlan, index: int) -> bool:
    """Whether the user set the length of the drafts by hand."""
    return plan.sequences[index].policy.mode is DraftMode.FIXED


def legal_parts(
    plan: StepPlan, index: int, draft: Draft, before: list[int] | None = None
) -> tuple[Draft, ...]:
    """What can be verified of a draft: its own tokens and forced ones. Control will follow it.

    before: draft tokens that it continues.
    """
    before = before or []
    legality = plan.sequences[index].text.legality
    parts: tuple[Draft, ...] = (draft,)
    if legality is not None:
        parts = splice(legality, draft, plan.limits[index] - len(before), before)
    _offer(plan, index, parts, before)
    return parts


def candidate(
    plan: StepPlan,
    index: int,
    parts: tuple[Draft, ...],
    controller: Controller,
    before: list[int] | None = None,
) -> tuple[list[int], list[str], list[float]]:
    """Tokens, their speculators and their survival, of a draft or of what continues one."""
    sequence = plan.sequences[index]
    tokens, sources, survival = list[int](), list[str](), list[float]()
    is_by_hand = is_fixed(plan, index)
    reached = plan.survivals[index][-1] if before else 1.0
    previous = before[-1] if before else sequence.text.tokens[-1]
    for part in parts:
        num = len(part.tokens)
        if is_by_hand:
            survival += [1.0] * num
        elif part.speculator == GRAMMAR:
            survival += [reached] * num
        else:
            name, line = control_name(plan, index, part.speculator), [previous, *part.tokens]
            own = controller.survival(name, part.confidence, sequence.number, line)
            survival += own if reached == 1.0 else [reached * s for s in own]
        tokens += part.tokens
        sources += [part.speculator] * num
        previous, reached = tokens[-1], survival[-1]
    return tokens, sources, survival


def control_name(plan: StepPlan, index: int, speculator: str) -> str:
    """The name under which control knows this speculator here."""
    if plan.gaps.get(index) == speculator:
        speculator = with_gap(speculator)
    legality = plan.sequences[index].text.legality
    is_constrained = legality is not None and legality.is_active
    return constrained_name(speculator) if is_constrained else speculator


def _offer(plan: StepPlan, index: int, parts: tuple[Draft, ...], before: list[int]) -> None:
    """Note a speculator's own tokens, up to the next forced ones: control follows them."""
    after = list(before)
    for part in parts:
        if part.speculator == GRAMMAR:
            after += part.tokens
            continue
        name = control_name(plan, index, part.speculator)
        known = part if name == part.speculator else replace(part, speculator=name)
        previous = after[-1] if after else plan.sequences[index].text.tokens[-1]
        plan.offers.append(Offer(index, known, [previous, *part.tokens], after))
        return
