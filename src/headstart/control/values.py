"""What goes into control and what comes out: plain values. Times in milliseconds.

They are never changed; why some are not frozen is said in `types`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from headstart.types import Draft

# of the time may go into each of: plain steps while others draft; asking a speculator, and probing
# a model, that did not earn it
TRIAL_SHARE = 0.005
MOST_TRIALS = 8.0  # times of asking, or of probing, that can be saved up
# rates of moving averages: of what may change at once, and of what lasts
FAST, SLOW = 0.2, 0.05
WEIGHT = 6.0  # pseudo-counts of what is believed before anything was counted
FADE = 0.998  # of counts, and of a request's shift, with each further one


@cache
def with_gap(speculator: str) -> str:
    """The name under which control knows what a model is like that leaves out text."""
    return f"{speculator}+gap"


@dataclass(slots=True)
class Step:
    """The batch that is being planned, before any draft row is added."""

    num_slots: int  # sequences that emit at least one token in this step, >= 1
    num_base_rows: int  # rows without drafts: one per slot, plus prompt rows
    context: int  # tokens in the cache that a row attends to, mean over the slots
    max_rows: int = 2048  # most rows in one decode
    max_outputs: int = 2048  # most rows with logits in one decode
    can_pad: bool = False  # rows without a purpose may be added
    # the target computes as many rows for every slot as for the one with the longest draft, and no
    # prompts beside them
    is_even: bool = False
    num_reading: int = 0  # sequences whose prompts are read beside
    max_draft_rows: int = field(init=False)  # that fit

    def __post_init__(self) -> None:
        left = min(self.max_rows - self.num_base_rows, self.max_outputs - self.num_slots)
        self.max_draft_rows = max(0, left)

    def num_computed(self, lengths: Sequence[int]) -> int:
        """Rows that drafts of these lengths add."""
        return self.num_slots * max(lengths, default=0) if self.is_even else sum(lengths)


@dataclass(frozen=True, slots=True)
class ModelSlot:
    """One slot that a draft model could draft for."""

    number: int
    max_tokens: int  # most tokens it may draft
    catch_up: int = 0  # tokens the draft model has to read first, the newest one not counted
    prefix: float = 1.0  # survival of the text draft that the model would continue; 1 without one
    to_beat: float = 0.0  # tokens: what is expected of a text draft that the model's would replace
    num_left: int = 2**30  # most that may still come
    fixed_confidence: float | None = None  # the user's p_min with a length set by hand; None: auto
    recent: int | None = None  # as `catch_up`, if it leaves out the middle; None: it cannot

    @property
    def can_skip(self) -> bool:
        """Whether the model has far less to read if it leaves out the middle."""
        return self.recent is not None and 2 * self.recent <= self.catch_up and self.catch_up > 0

    @property
    def num_recent(self) -> int:
        """The least that the model has to read."""
        return self.recent if self.recent is not None and self.can_skip else self.catch_up


@dataclass(frozen=True, slots=True)
class Allowance:
    """How far a draft model may go for one slot; 0 tokens: do not draft this time."""

    max_tokens: int = 0
    min_confidence: float = 0.0
    can_skip: bool = False  # it leaves out the middle of the text
    is_probe: bool = False  # not expected to pay: its time is saved for


NO_ALLOWANCE = Allowance()


@dataclass(slots=True)
class DraftCall:
    """One time that a speculator was asked, for some answers at once."""

    speculator: str
    indices: list[int]  # of the answers
    drafts: list[Draft]
    milliseconds: float
    # of a draft model, by answer, else empty: how far it might go
    allowances: list[Allowance] = field(default_factory=list)
    catch_up: int | None = None  # tokens that it read, for all; None: it failed, or is no model

    @property
    def is_probe(self) -> bool:
        """Whether its time was saved for."""
        return any(allowance.is_probe for allowance in self.allowances)

    @property
    def drafted(self) -> list[tuple[int, Allowance, Draft]]:
        """The answers for which a model got as far as drafting."""
        every = zip(self.indices, self.allowances, self.drafts, strict=True)
        return [one for one in every if one[2].is_ready]

    @property
    def rounds(self) -> int:
        """Passes of a draft model: one per token, and one for a token below the limit."""
        return max(
            [
                min(allowance.max_tokens, len(draft.tokens) + 1)
                for _, allowance, draft in self.drafted
            ],
            default=0,
        )
