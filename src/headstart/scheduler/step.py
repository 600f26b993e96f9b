"""The plan of a step says what it will do, the record what it did.

`Scheduler.plan` writes the plan, the engine decodes `plan.batch`, `Scheduler.commit` writes the
record. All statistics, learning and logging is based on the record (`readers`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headstart.control.values import DraftCall, Step
from headstart.scheduler.sequence import Sequence
from headstart.types import Batch, Draft, Rows, passes
from headstart.types.constraint import NO_LIMIT
from headstart.types.errors import HeadstartError
from headstart.types.request import RequestStats, TokenLogprob

BELOW_BREAK_EVEN = "below break-even"


@dataclass(slots=True)
class Offer:
    """Tokens that one speculator proposed for an answer, whether they are verified or not."""

    draft: Draft  # named as control knows the speculator here
    line: list[int]  # the token before the draft, then the draft's tokens
    after: list[int]  # draft tokens of other speculators that precede it


@dataclass(slots=True, eq=False)
class SequencePlan:
    """What a step does for one sequence, an answer with its draft, or a prompt; and its results.

    Why no draft is verified (`reason`); what is noted later counts: the policy or the room
    (`limit_drafts`); a speculator has none (`miss`), until one has (`take`); the draft does not pay
    (`_note_reasons`), or there is no memory for it (`drop`).

    Why nothing of one speculator is (`reason_of`): the answer may not draft; else its own reason
    (`reasons`); else that of the draft that was taken, or "outbid" if it is verified.
    """

    sequence: Sequence
    is_prompt: bool = False

    # rows in the batch, set by `batching.build`
    seq_id: int = -1  # of its cells
    start: int = 0  # cached tokens before the decode
    num_rows: int = 0  # 0: it is not decoded in this step
    num_outputs: int = 0

    limit: int = 0  # maximum draft tokens
    draft: list[int] = field(default_factory=list)
    # of each draft token: its speculator, and its probability of survival
    sources: list[str] = field(default_factory=list)
    survival: list[float] = field(default_factory=list)
    num_verified: int = 0  # draft tokens, from the first
    saved_ms: float = 0.0  # expected savings of the draft
    reason: str = ""  # why there is no draft, or none is verified
    reasons: dict[str, str] = field(default_factory=dict)  # by speculator, why none of its tokens
    offers: list[Offer] = field(default_factory=list)

    # results, set by `Committer.commit`
    emitted: tuple[int, ...] = ()  # empty: prefill
    num_accepted: int = 0
    text: bytes = b""
    logprobs: tuple[TokenLogprob, ...] = ()
    scores: tuple[TokenLogprob, ...] = ()  # of a prompt's tokens

    def take(self, draft: list[int], sources: list[str], survival: list[float]) -> None:
        """Set the draft, replacing the one before."""
        self.draft, self.sources, self.survival, self.reason = draft, sources, survival, ""

    def miss(self, speculator: str, reason: str) -> None:
        """Record why a speculator has no draft."""
        self.reasons[speculator] = reason
        if not self.draft:
            self.reason = reason

    def reason_of(self, speculator: str) -> str:
        """Why no token of this speculator is verified."""
        if self.limit > 0 and (own := self.reasons.get(speculator)):
            return own
        if self.limit <= 0 or self.draft:
            return self.reason or "outbid"
        return BELOW_BREAK_EVEN

    def drop(self, reason: str) -> None:
        """Verify no draft."""
        self.reasons |= dict.fromkeys(self.sources, reason)
        self.reason, self.num_verified = reason, 0


@dataclass(slots=True)
class StepPlan:
    """What one step does; decided once its batch is launched."""

    batch: Batch
    started: float  # clock readings, seconds
    num_running: int = 0  # sequences with cells; those without rows wait for this step, too
    num_new: int = 0  # requests since the last plan that found others running, and a free slot
    answers: list[SequencePlan] = field(default_factory=list)  # in the order of their rows
    prompts: list[SequencePlan] = field(default_factory=list)  # behind them, if they have rows
    num_rows: int = 0  # of the batch, padding included
    num_padding: int = 0  # rows without outputs, because a wider step takes less time
    rows: Rows = Rows.TOGETHER

    step: Step | None = None  # the step as control sees it; None: it is not asked
    calls: list[DraftCall] = field(default_factory=list)
    asking_ms: float = 0.0  # of asking text speculators, assigning rows, and learning
    copies_ms: list[float] = field(default_factory=list)  # of saving states before drafts

    max_prompt_rows: int = 0
    max_scored: int = NO_LIMIT  # prompt rows whose log probabilities are reported
    drafted: float = 0.0  # when the drafts were chosen
    launched: float = 0.0  # when the decode was running and the last record read
    is_asynchronous: bool = False  # whether the device computes in parallel

    def drop_drafts(self, reason: str) -> None:
        """Disable drafts and padding in this step."""
        self.answers = [SequencePlan(one.sequence, reason=reason) for one in self.answers]
        self.num_padding, self.step = 0, None

    def shrink(self, reason: str) -> bool:
        """Save cells: drop the padding first, then all drafts. Returns whether there were any."""
        if self.num_padding:
            self.num_padding = 0
            return True
        drafting = [answer for answer in self.answers if answer.num_verified]
        for answer in drafting:
            answer.drop(reason)
        return bool(drafting)


@dataclass(slots=True)
class End:
    """A request that ended, and why."""

    sequence: Sequence
    reason: str = "error"  # that of `FinishEvent`, unless it failed
    is_truncated: bool = False
    error: HeadstartError | None = None
    # set when it is detached
    stats: RequestStats = field(default_factory=RequestStats)  # without draft counts
    rest: bytes = b""  # text withheld because it could have begun a stop string


@dataclass(slots=True)
class StepRecord:
    """What one step did. Written by `Scheduler.commit`, then immutable. It holds no logits."""

    plan: StepPlan
    now: float  # when the logits had arrived
    finished: float = 0.0
    results: list[SequencePlan] = field(default_factory=list)  # those with rows, in their order
    context: int = 0  # mean number of tokens that a row attended to
    ended: list[End] = field(default_factory=list)

    def __post_init__(self) -> None:
        attended = 0
        for one in (*self.plan.answers, *self.plan.prompts):
            if one.num_rows:
                self.results.append(one)
                attended += one.num_rows * (one.start + one.num_rows // 2)
        self.context = attended // max(1, self.plan.num_rows)

    @property
    def passes(self) -> list[int]:
        """Rows of each pass over the model."""
        plan = self.plan
        if plan.rows is Rows.TOGETHER or len(self.results) == 1:
            return [plan.num_rows]
        answers = [answer.num_rows for answer in plan.answers]
        if plan.rows is Rows.PADDED:
            return [plan.num_rows + len(answers) * max(answers, default=0) - sum(answers)]
        drafts = [rows for rows in answers if rows > 1]
        others = [1] * answers.count(1) + [one.num_rows for one in plan.prompts]
        return passes(drafts) + passes(others)

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
        """Whether `target_ms` is the decode's time: it did not fail, and the device did not wait
        for readers of the last record.
        """
        plan, waited = self.plan, self.now - self.plan.launched
        is_waited_for = not plan.is_asynchronous or waited > 0.05 * (self.now - plan.drafted)
        return plan.num_rows > 0 and is_waited_for


ReadRecord = Callable[[StepRecord], None]
"""Counts, learns or shows what a step did, perhaps while a device computes the next one. It may
call neither engine nor speculators.
"""
