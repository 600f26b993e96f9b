"""Turns a speculator's draft into tokens that can be verified, with their value.

Under a constraint a draft is cut at its first illegal token, and forced tokens are inserted: they
cost nothing and are never wrong. No speculator gets credit for them: they have their own name in
the draft, and the value of speculators under constraints is learned separately from their value in
free text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headstart.control.controller import Controller
from headstart.control.values import constrained
from headstart.scheduler.guarded_speculator import FAILED, GuardedSpeculator
from headstart.scheduler.step import Offer, SequencePlan
from headstart.structures.prefix import common_prefix_length
from headstart.types import Draft

if TYPE_CHECKING:
    from headstart.sampling.grammar.state import GrammarState

GRAMMAR = "grammar"  # the name under which forced tokens are drafted


Candidate = tuple[list[int], list[str], list[float]]
"""Draft tokens, the speculator of each, and their survival."""


def askable(
    answers: list[SequencePlan],
    speculator: GuardedSpeculator,
    found: Mapping[SequencePlan, Collection[str]],
) -> list[SequencePlan]:
    """The answers that this speculator may draft for.

    With fixed lengths, the first in the order of `--spec-type` that has a draft wins.

    found: by answer that has taken no draft yet, the speculators that have one.
    """
    name, may_draft = speculator.name, []
    for answer in answers:
        policy, cells = answer.sequence.policy, answer.sequence.cells
        types, others = policy.types, found.get(answer, answer.sources)
        if name not in types or cells is None:
            continue
        if cells.seq_id in speculator.failed:
            answer.reasons[name] = FAILED
        elif answer.sequence.num_again and speculator.speculator.needs_states:
            answer.reasons[name] = "the target's states are missing"
        elif not (others and policy.is_fixed) or all(
            one == GRAMMAR or types.index(one) > types.index(name) for one in others
        ):
            may_draft.append(answer)
    return may_draft


def consider(
    answer: SequencePlan, draft: Draft, controller: Controller, before: Sequence[int] = ()
) -> Candidate | None:
    """The legal part of a draft, with forced tokens; None if no token of the draft is legal.

    before: forced tokens that this draft continues.
    """
    legality = answer.sequence.legality
    if legality is None:
        return candidate(answer, (draft,), controller, before) if draft.tokens else None
    parts = splice(legality, draft, answer.limit - len(before), before)
    if draft.tokens and all(part.speculator != draft.speculator for part in parts):
        answer.miss(draft.speculator, "illegal under the constraint")
        return None
    return candidate(answer, parts, controller, before) if parts else None


def candidate(
    answer: SequencePlan,
    parts: tuple[Draft, ...],
    controller: Controller,
    before: Sequence[int] = (),
) -> Candidate:
    """A draft, or the continuation of one, as it may be verified. Control tracks the speculator's
    own tokens up to the first forced ones.
    """
    sequence = answer.sequence
    tokens: list[int] = []
    sources: list[str] = []
    survival: list[float] = []
    is_fixed = sequence.policy.is_fixed
    reached = 1.0
    previous = before[-1] if before else sequence.tokens[-1]
    offer: Offer | None = None
    for part in parts:
        own, name = [1.0 if is_fixed else reached] * len(part.tokens), part.speculator
        if name != GRAMMAR:
            if sequence.legality is not None:
                name = control_name(answer, name)
            line = [previous, *part.tokens]
            if offer is None:
                known = part if name == part.speculator else replace(part, speculator=name)
                offer = Offer(known, line, [*before, *tokens])
                answer.offers.append(offer)
            if not is_fixed:
                own = controller.survival(name, part.confidence, sequence.number, line)
                own = own if reached == 1.0 else [reached * s for s in own]
        survival += own
        tokens += part.tokens
        sources += [part.speculator] * len(part.tokens)
        previous, reached = tokens[-1], survival[-1]
    return tokens, sources, survival


def control_name(answer: SequencePlan, speculator: str) -> str:
    """The name under which control tracks this speculator for this answer."""
    legality = answer.sequence.legality
    is_constrained = legality is not None and legality.is_active
    return constrained(speculator) if is_constrained else speculator


def splice(
    legality: GrammarState, draft: Draft, max_tokens: int, before: Sequence[int] = ()
) -> tuple[Draft, ...]:
    """The legal beginning of a draft in parts: the speculator's own tokens and forced ones.

    Args:
        legality: state of the text's constraint.
        draft: what a speculator drafts; may be empty.
        max_tokens: of all parts together.
        before: tokens of the proposal that the draft continues.
    """
    with legality.lookahead() as ahead:
        if not legality.is_active:
            num_legal = ahead.read_legal([*before, *draft.tokens]) - len(before)
            return (_part(draft, 0, min(num_legal, max_tokens)),) if num_legal > 0 else ()
        if ahead.read_legal(before) < len(before):
            return ()
        return _parts(ahead, draft, max_tokens)


def _parts(ahead: GrammarState, draft: Draft, max_tokens: int) -> tuple[Draft, ...]:
    parts: list[Draft] = []
    at, end = 0, len(draft.tokens)  # draft.tokens[0 : at] are used, those from `end` on are wrong
    while max_tokens:
        if forced := ahead.forced()[:max_tokens]:
            agreeing = common_prefix_length(forced, draft.tokens[at:end])
            at, end = (at + agreeing, end) if agreeing == min(len(forced), end - at) else (at, at)
            if ahead.read_legal(forced) < len(forced):
                break
            parts.append(Draft(forced, [1.0] * len(forced), GRAMMAR))
            max_tokens -= len(forced)
            continue
        start = at
        while at < min(end, start + max_tokens) and not (at > start and ahead.forced()):
            if not ahead.read_legal(draft.tokens[at : at + 1]):
                end = at
            else:
                at += 1
                if ahead.is_over:
                    end = at
        if at == start:
            break
        parts.append(_part(draft, start, at))
        max_tokens -= at - start
    return tuple(parts)


def _part(draft: Draft, start: int, end: int) -> Draft:
    return Draft(draft.tokens[start:end], draft.confidence[start:end], draft.speculator)
