"""Drafts under a constraint: cut where they are illegal, with forced tokens in between.

Tokens that must come are drafts that cost nothing and are never wrong. No speculator gets credit
for them: they have a name of their own in the draft, and what speculators are worth next to them is
learned apart from what they are worth in free text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.structures.prefix import common_prefix_length
from headstart.types import Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.sampling.grammar.state import GrammarState, Lookahead

GRAMMAR = "grammar"  # the name under which forced tokens are drafted


def constrained_name(speculator: str) -> str:
    """The name under which control learns what a speculator is worth in constrained text."""
    return f"{speculator}+{GRAMMAR}"


def splice(
    legality: GrammarState, draft: Draft, max_tokens: int, before: Sequence[int] = ()
) -> tuple[Draft, ...]:
    """The legal beginning of a draft in parts: the speculator's own tokens and forced ones.

    Args:
        legality: where the text stands.
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


def _parts(ahead: Lookahead, draft: Draft, max_tokens: int) -> tuple[Draft, ...]:
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
