"""Inputs and outputs of control: plain values. Times in milliseconds.

A stage fills in what it decides; nothing else changes them. `types` explains why none is frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING

from headstart.types import Draft, Rows, passes
from headstart.types.constraint import NO_LIMIT

if TYPE_CHECKING:
    from headstart.scheduler.step import SequencePlan

# share of the time that may go into each of: plain steps while others draft; asking a speculator,
# and probing a model, that did not pay
TRIAL_SHARE = 0.005
# rates of moving averages: for quantities that may jump, and for lasting ones
FAST, SLOW = 0.2, 0.05
WEIGHT = 6.0  # pseudo-counts of a prior
FADE = 0.998  # of counts and of a request's shift, per further one


@cache
def constrained(speculator: str) -> str:
    """The name under which control tracks a speculator in constrained text."""
    return f"{speculator}+grammar"


@dataclass(slots=True)
class Step:
    """The batch being planned, before any draft row is added."""

    num_slots: int  # sequences that emit at least one token in this step, >= 1
    num_base_rows: int  # rows without drafts: one per slot, `again`, and prompt rows
    context: int  # tokens in the cache that a row attends to, mean over the slots
    max_rows: int = 2048  # maximum rows per decode
    max_outputs: int = 2048  # maximum rows with logits per decode
    can_pad: bool = False  # padding rows may be added
    rows: Rows = Rows.TOGETHER  # others have prompts in other steps
    again: Sequence[int] = ()  # rows by slot that are decoded again; (): none
    num_reading: int = 0  # running sequences without an answer: their prompts wait for this step
    num_first: int = 0  # of these, how many get their first token from it
    max_draft_rows: int = field(init=False)  # free rows

    def __post_init__(self) -> None:
        left = min(self.max_rows - self.num_base_rows, self.max_outputs - self.num_slots)
        self.max_draft_rows = max(0, left)

    def most_rows(self, longest: int) -> int:
        """Most rows of a pass if no draft has more than `longest` tokens."""
        most = self.num_slots * longest
        if self.rows is not Rows.PADDED:
            most = min(most, max(longest, self.max_draft_rows))
        return self.num_base_rows + most

    def milliseconds(self, lengths: Sequence[int], curve: Sequence[float]) -> float:
        """Time with drafts of these lengths; `curve`: of a pass by rows."""
        base = self.num_base_rows
        if self.rows is Rows.PADDED:
            return curve[base + self.num_slots * max(lengths, default=0)]
        if self.rows is Rows.TOGETHER:
            return curve[base + sum(lengths)]
        more = [sum(both) for both in zip_longest(self.again, lengths, fillvalue=0)]
        drafts = [1 + rows for rows in more if rows]
        return sum([curve[rows] for rows in passes(drafts)]) + curve[self.num_slots - len(drafts)]

    def draft_ms(self, lengths: Sequence[int], curve: Sequence[float]) -> float:
        """Milliseconds that drafts of these lengths add."""
        return self.milliseconds(lengths, curve) - self.milliseconds((), curve)


@dataclass(slots=True)
class AskedAnswer:
    """An answer that a speculator may draft for; how far, if it is a model; and what it drafted."""

    answer: SequencePlan
    max_tokens: int  # most tokens it may draft
    draft: Draft
    # the rest is for models
    catch_up: int = 0  # tokens to decode first, without the newest one
    num_before: int = 0  # forced tokens that the model would continue
    to_beat: float = 0.0  # tokens: what is expected of a text draft that the model's would replace
    num_answered: int = 0  # tokens of the answer so far
    num_left: int = NO_LIMIT  # most tokens still to come
    # set by `ModelDraftPlanner.grant`
    num_granted: int = 0  # tokens it may draft; 0: it is not called
    min_confidence: float = 0.0
    is_probe: bool = False  # not expected to pay: paid from the probe budget
    reason: str = ""  # why it is not called, if not for its price

    @property
    def number(self) -> int:
        """The number of the request."""
        return self.answer.sequence.number


@dataclass(slots=True)
class DraftCall:
    """One call of a speculator, for several answers at once."""

    speculator: str
    asked: list[AskedAnswer]
    milliseconds: float
    is_model: bool = False
    catch_up: int | None = None  # tokens decoded first, in total; None: it failed, or is no model

    @property
    def is_probe(self) -> bool:
        """Whether it is paid from the probe budget."""
        return any(one.is_probe for one in self.asked)

    @property
    def drafted(self) -> list[AskedAnswer]:
        """The answers for which a model was ready to draft."""
        return [one for one in self.asked if one.draft.is_ready]

    @property
    def rounds(self) -> int:
        """Passes of a draft model: one per token, and one for a token below the limit."""
        return max(
            [min(one.num_granted, len(one.draft.tokens) + 1) for one in self.drafted], default=0
        )
