"""A seat for one running request, and the request's progress on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headstart.sampling.sampler import Sampler
from headstart.scheduler.proposal import NO_PROPOSAL, DraftTracker, Proposal
from headstart.scheduler.request import DraftCounts, Request, RequestStats
from headstart.scheduler.speculator_stats import SpeculatorStats
from headstart.structures.indentation import Indentation
from headstart.structures.stop_strings import StopStrings

if TYPE_CHECKING:
    from headstart.scheduler.draft_plan import SpeculationPolicy


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """One request from submission to its last event.

    tokens[0 : num_decoded]      in the target's cache
    tokens[num_decoded : ]       not decoded yet: prompt to read, or the one token emitted last
    proposal.tokens              proposed; in the cache only between decode and commit
    """

    request: Request
    sampler: Sampler
    submitted: float  # clock readings, seconds
    tokens: list[int] = field(init=False)
    num_decoded: int = 0
    proposal: Proposal = NO_PROPOSAL
    tracker: DraftTracker = field(default_factory=DraftTracker)
    policy: SpeculationPolicy | None = None  # set while speculators know this sequence
    num_rows: int = 0  # rows of the batch being built or decoded, draft included
    stop: StopStrings = field(init=False)
    indent: Indentation = field(init=False)
    admitted: float | None = None
    first_token: float | None = None
    is_valid: bool = True  # False once tokens were accepted unseen
    num_cached: int = 0
    num_steps: int = 0
    num_drafts: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    accepted_histogram: list[int] = field(default_factory=list)
    # of each speculator that may draft for it
    stats_by_speculator: dict[str, SpeculatorStats] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)
        self.stop = StopStrings(self.request.stop)
        self.indent = Indentation(self.request.min_indent)

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def num_emitted(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def num_pending(self) -> int:
        """Known tokens that are not decoded; 1 while generating."""
        return len(self.tokens) - self.num_decoded

    @property
    def is_generating(self) -> bool:
        """Whether only a token that it emitted is left to decode, so that it may draft.

        The last token of a prompt is no such token, also where all before it came from the cache.
        """
        num_tokens = len(self.tokens)
        return num_tokens - self.num_decoded == 1 and num_tokens > len(self.request.prompt)

    @property
    def num_left(self) -> int:
        """Tokens this request may still emit; huge without max_tokens."""
        limit = self.request.max_tokens
        return 2**30 if limit is None else limit - self.num_emitted

    def count_draft(self, num_accepted: int) -> None:
        """Book the verified proposal."""
        self.num_drafts += 1
        self.num_drafted += len(self.proposal.head.tokens) + len(self.proposal.tail.tokens)
        self.num_accepted += num_accepted
        self.accepted_histogram += [0] * (num_accepted + 1 - len(self.accepted_histogram))
        self.accepted_histogram[num_accepted] += 1

    @property
    def drafted_by(self) -> dict[str, DraftCounts]:
        """What each speculator that might draft for it did."""
        return {name: stats.counts() for name, stats in self.stats_by_speculator.items()}

    def stats(self, slot_id: int, now: float) -> RequestStats:
        admitted = now if self.admitted is None else self.admitted
        first = now if self.first_token is None else self.first_token
        return RequestStats(
            slot_id=slot_id,
            is_valid=self.is_valid,
            num_prompt=self.num_prompt,
            num_cached=self.num_cached,
            num_emitted=self.num_emitted,
            num_steps=self.num_steps,
            num_drafts=self.num_drafts,
            num_drafted=self.num_drafted,
            num_accepted=self.num_accepted,
            accepted_histogram=tuple(self.accepted_histogram),
            drafted_by=self.drafted_by,
            reasons=dict(self.reasons),
            queue_seconds=admitted - self.submitted,
            prompt_seconds=first - admitted,
            generation_seconds=now - first,
        )


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence of the target's cache; it keeps its tokens for the next prompt."""

    slot_id: int  # also its seq_id
    active: ActiveRequest | None = None
    kept: list[int] = field(default_factory=list)  # in the cache while no request runs
    last_used: float = 0.0

    @property
    def cached(self) -> list[int]:
        """Tokens in the cache; while a request runs, a prefix of this list (see `num_cached`)."""
        return self.kept if self.active is None else self.active.tokens

    @property
    def num_cached(self) -> int:
        return len(self.kept) if self.active is None else self.active.num_decoded
