"""The plan of a step says what it will do, the record what it did.

`Scheduler.plan` writes the plan, the engine decodes `plan.batch`, `Scheduler.commit` writes the
record. All statistics, learning and logging is based on the record (`readers`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headstart.control.values import DraftCall, ModelSlot, Step
from headstart.scheduler.sequence import Ending, Sequence
from headstart.types import Batch, Draft
from headstart.types.request import RequestStats, TokenLogprob

BELOW_BREAK_EVEN = "below break-even"
OUTBID = "outbid"
RESTING = "resting: its drafts did not pay"


@dataclass(slots=True)
class Offer:
    """Tokens that one speculator proposed for an answer, whether they are verified or not."""

    index: int  # of the answer in the plan
    draft: Draft  # named as control knows the speculator here
    line: list[int]  # the token before the draft, then the draft's tokens
    after: list[int]  # draft tokens of other speculators that precede it


@dataclass(slots=True)
class StepPlan:
    """What one step does. Columns have one entry per sequence, answers first.

    Read only once its batch is launched.
    """

    batch: Batch
    started: float  # clock readings, seconds
    sequences: list[Sequence] = field(default_factory=list)  # in the order of their rows
    num_generating: int = 0  # answers among `sequences`; the others are prompts
    prompts: list[Sequence] = field(default_factory=list)  # prompts that may be decoded now
    num_rows: list[int] = field(default_factory=list)
    num_outputs: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # cached tokens before the decode
    is_even: bool = False  # every answer gets as many rows as the longest; see `Step.is_even`
    decoded: list[tuple[int, Sequence]] = field(default_factory=list)  # sequences that have rows

    # by answer: maximum draft tokens; the current draft; the speculator of each of its tokens, and
    # its probability of survival; how many tokens, from the first, are verified
    limits: list[int] = field(default_factory=list)
    drafts: list[list[int]] = field(default_factory=list)
    sources: list[list[str]] = field(default_factory=list)
    survivals: list[list[float]] = field(default_factory=list)
    num_verified: list[int] = field(default_factory=list)
    # (answer, speculator) -> why none of its tokens are verified; speculator "": why no draft
    reasons: dict[tuple[int, str], str] = field(default_factory=dict)
    skipping_models: dict[int, str] = field(default_factory=dict)  # answer -> model that skips text

    offers: list[Offer] = field(default_factory=list)
    calls: list[DraftCall] = field(default_factory=list)
    # by draft model, what it could do for each answer it may draft for
    model_slots: dict[str, list[ModelSlot]] = field(default_factory=dict)
    asking_ms: float = 0.0  # of asking text speculators, assigning rows, and learning
    copies_ms: list[float] = field(default_factory=list)  # of saving states before drafts
    saved_ms: list[float] = field(default_factory=list)  # expected savings of each answer's draft
    shape: Step | None = None  # the step as control sees it; None: it is not asked

    max_prompt_rows: int = 0
    max_scored: int = 2**30  # prompt rows whose log probabilities are reported
    num_padding: int = 0  # rows without a token, because a wider step takes less time
    drafted: float = 0.0  # when the drafts were chosen
    launched: float = 0.0  # when the decode was running and the last record read
    is_asynchronous: bool = False  # whether the device computes in parallel

    def answer(self, answers: list[Sequence]) -> None:
        """Set the answers that generate, without drafts so far."""
        num = len(answers)
        self.sequences, self.num_generating = answers, num
        # one empty list for all: entries are replaced, never changed
        self.drafts, self.sources, self.survivals = [[]] * num, [[]] * num, [[]] * num
        self.num_verified, self.limits = [0] * num, [0] * num

    def take(self, index: int, draft: list[int], sources: list[str], survival: list[float]) -> None:
        """Set the draft of an answer, replacing the one before."""
        self.drafts[index], self.sources[index], self.survivals[index] = draft, sources, survival
        self.reasons.pop((index, ""), None)

    def miss(self, index: int, speculator: str, reason: str) -> None:
        """Record why a speculator has no draft for an answer."""
        self.reasons[index, speculator] = reason
        if not self.drafts[index]:
            self.reasons[index, ""] = reason

    def reason(self, index: int, speculator: str) -> str:
        """Why no token of this speculator is verified."""
        if self.limits[index] > 0 and (own := self.reasons.get((index, speculator))):
            return own
        if self.limits[index] <= 0 or self.drafts[index]:
            return self.reasons.get((index, ""), OUTBID)
        return BELOW_BREAK_EVEN

    def drop(self, index: int, reason: str) -> None:
        """Verify no draft for this answer."""
        for name in dict.fromkeys(self.sources[index]):
            self.reasons[index, name] = reason
        self.reasons[index, ""] = reason
        self.num_verified[index] = 0

    def drop_all(self, reason: str) -> None:
        """Disable drafts in this step."""
        for index in range(self.num_generating):
            self.drop(index, reason)
            self.limits[index] = 0
        self.num_padding, self.shape = 0, None

    def shrink(self, reason: str) -> None:
        """Save cells: drop the padding first, then all drafts."""
        if self.num_padding:
            self.num_padding = 0
            return
        for index, length in enumerate(self.num_verified):
            if length:
                self.drop(index, reason)


@dataclass(slots=True)
class End:
    """A request that ended."""

    sequence: Sequence
    ending: Ending
    stats: RequestStats  # without draft counts
    rest: bytes = b""  # text withheld because it could have begun a stop string


@dataclass(slots=True)
class StepRecord:
    """What one step did. Columns have one entry per sequence of the plan.

    Written by `Scheduler.commit`, then immutable. It holds no logits.
    """

    plan: StepPlan
    now: float  # when the logits had arrived
    finished: float = 0.0
    emitted: list[tuple[int, ...]] = field(default_factory=list)  # empty: prefill
    num_accepted: list[int] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    logprobs: list[tuple[TokenLogprob, ...]] = field(default_factory=list)
    scores: dict[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)  # by prompt's index
    seq_ids: list[int] = field(default_factory=list)  # of the cells in use
    cache_lengths: list[int] = field(default_factory=list)  # cached tokens after the decode
    context: int = 0  # mean number of tokens that a row attended to
    ended: list[End] = field(default_factory=list)
    num_rows: int = field(init=False)  # of the batch, padding included

    def __post_init__(self) -> None:
        self.num_rows = sum(self.plan.num_rows) + self.plan.num_padding

    @property
    def num_emitted(self) -> int:
        return sum(map(len, self.emitted))

    @property
    def num_computed(self) -> int:
        """Rows that the decode computed."""
        answers = self.plan.num_rows[: self.plan.num_generating]
        spare = len(answers) * max(answers, default=0) - sum(answers)
        return self.num_rows + spare * self.plan.is_even

    @property
    def target_ms(self) -> float:
        """Milliseconds of the decode."""
        return 1000.0 * (self.now - self.plan.drafted)

    @property
    def cost_ms(self) -> float:
        """Milliseconds of the decode plus per-row work after it (sampling, text, speculators)."""
        return 1000.0 * (self.finished - self.plan.drafted)

    @property
    def draft_ms(self) -> float:
        """Milliseconds before the decode: admission and drafting."""
        return 1000.0 * (self.plan.drafted - self.plan.started)

    @property
    def is_timing_reliable(self) -> bool:
        """Whether `target_ms` is the decode's time: the device did not wait for readers of the last
        record.
        """
        plan = self.plan
        waited = self.now - plan.launched
        return not plan.is_asynchronous or waited > 0.05 * (self.now - plan.drafted)


ReadRecord = Callable[[StepRecord], None]
"""Counts, learns or shows what a step did, perhaps while a device computes the next one. It may
call neither engine nor speculators.
"""
