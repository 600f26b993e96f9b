"""How long the thoughts of an answer may be."""

from __future__ import annotations

from dataclasses import dataclass

NO_LIMIT = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtLimit:
    """The reasoning budget of an answer and its markers."""

    max_tokens: int  # of each thought; the marks are not counted
    start: (
        bytes  # what thoughts begin with, control tokens spelled out; empty: they only begin once
    )
    end: bytes
    closing: tuple[int, ...]  # the tokens that end them; at least one
    is_thinking: bool  # whether the prompt has opened them
    further_ends: tuple[bytes, ...] = ()  # other marks with which they may end
