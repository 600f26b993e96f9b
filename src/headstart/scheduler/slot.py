"""A request that was admitted or waits for it, and the slots whose caches requests use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headstart.control.counterfactual import Counterfactual
from headstart.sampling.sampler import Sampler
from headstart.sampling.thoughts import NO_LIMIT, ThoughtCounter
from headstart.scheduler.owned_tokens import OwnedTokens
from headstart.scheduler.proposal import NO_PROPOSAL, DraftTracker, Proposal
from headstart.scheduler.speculation_policy import SpeculationPolicy
from headstart.text.indentation import Indentation
from headstart.text.stop_strings import StopStrings
from headstart.types import Engine, Vocab
from headstart.types.request import ProgressEvent, Request, RequestStats, TokenLogprob
from headstart.types.speculation_stats import SpeculationStats

if TYPE_CHECKING:
    from headstart.sampling.grammar.compiled import Compiled
    from headstart.sampling.grammar.state import GrammarState
    from headstart.scheduler.guess_log import GuessLog

NO_SLOT = -1
ALL_EXACT = 2**30


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """One request from submission to its last event.

    tokens[0 : num_exact]        if in the cache, computed behind the tokens before them
    tokens[0 : num_decoded]      in the target's cache
    tokens[num_decoded : ]       not decoded yet: prompt to read, or the one token emitted last
    proposal.tokens              proposed; in the cache only between decode and commit
    """

    request: Request
    submitted: float  # clock readings, seconds
    prompt_namespace: str = ""  # whose cached text it may use, and whose its own is
    sampler: Sampler = field(init=False)  # made when it is admitted
    compiled: Compiled | None = None  # the request's constraint
    legality: GrammarState | None = None  # where its text stands in it
    tokens: OwnedTokens = field(init=False)
    slot_id: int = NO_SLOT  # also its seq_id
    num_decoded: int = 0
    num_exact: int = ALL_EXACT  # less where cells were moved, see `context_shift`
    num_dropped: int = 0  # tokens of the text that context shifts took out
    num_awaited: int = 0  # tokens that the leader has to read before they are shared
    leader: ActiveRequest | None = None  # reads the same prefix; this one waits and shares it
    proposal: Proposal = NO_PROPOSAL
    # that its tokens are accepted, as control expects it; only where the request wants provenance
    chances: Sequence[float] = ()
    tracker: DraftTracker = field(default_factory=DraftTracker)
    guesses: GuessLog | None = None  # where it is asked what others would have given
    counterfactual: Counterfactual | None = None  # the answer to that
    policy: SpeculationPolicy | None = None  # set while speculators know this sequence
    pauses: list[int] = field(default_factory=list)  # lengths at which reading makes a checkpoint
    num_rows: int = 0  # rows of the batch being built or decoded, draft included
    stop: StopStrings = field(init=False)
    indent: Indentation = field(init=False)
    admitted: float | None = None
    is_resumed: bool = False  # it was preempted: what is read again is not counted
    first_token: float | None = None
    num_cached: int = 0  # prompt tokens that were not decoded for this request
    num_scored: int = 0  # last position of the prompt whose log probability was told
    num_steps: int = 0
    drafts: SpeculationStats = field(default_factory=SpeculationStats)
    by_speculator: dict[str, SpeculationStats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokens = OwnedTokens(self.request.prompt)
        self.stop = StopStrings(self.request.stop)
        self.indent = Indentation(self.request.min_indent)

    def begin(self, engine: Engine, vocab: Vocab) -> None:
        """Make what chooses its tokens.

        Raises:
            InvalidParameterError: its constraint cannot be followed.
        """
        self.sampler = Sampler(self.request.sampling, engine, vocab.eog_ids)
        self.sampler.read(self.tokens)
        if self.compiled is not None:
            self.legality = self.sampler.legality = self.compiled.begin()
        if self.request.thoughts is not None:
            self.sampler.thoughts = ThoughtCounter(self.request.thoughts, vocab.token_text)

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def num_emitted(self) -> int:
        return len(self.tokens) + self.num_dropped - len(self.request.prompt)

    @property
    def num_pending(self) -> int:
        """Known tokens that are not decoded; 1 while generating."""
        return len(self.tokens) - self.num_decoded

    @property
    def is_generating(self) -> bool:
        """Whether only a token that it emitted is left to decode, so that it may draft.

        The last token of a prompt is no such token, even if all before it came from the cache.
        """
        num_tokens = len(self.tokens)
        num_answered = num_tokens + self.num_dropped - len(self.request.prompt)
        return num_tokens - self.num_decoded == 1 and num_answered > 0

    @property
    def num_left(self) -> int:
        """Tokens this request may still emit; huge without max_tokens."""
        request = self.request
        if request.max_tokens is None:
            return 2**30
        return request.max_tokens + len(request.prompt) - len(self.tokens) - self.num_dropped

    @property
    def num_free(self) -> int:
        """Tokens that may come before its thoughts must end; huge without such a limit."""
        thoughts = self.sampler.thoughts
        return NO_LIMIT if thoughts is None else thoughts.num_free

    @property
    def wants_progress(self) -> bool:
        """Whether its client is to hear how far its prompt is read: not once it has an answer."""
        return self.request.wants_progress and self.first_token is None

    def progress(self, now: float) -> ProgressEvent:
        """How much of the prompt is read."""
        since, num_cached = now - (self.admitted or now), min(self.num_cached, self.num_decoded)
        return ProgressEvent(
            self.request.request_id, self.num_prompt, num_cached, self.num_decoded, since
        )

    @property
    def _num_unread(self) -> int:
        """Prompt tokens that were neither cached nor read."""
        if self.first_token is not None:
            return 0
        return self.num_prompt - max(self.num_cached, min(self.num_decoded, self.num_prompt))

    def summarize(self, now: float) -> RequestStats:
        """Counts and times so far."""
        admitted = now if self.admitted is None else self.admitted
        first = now if self.first_token is None else self.first_token
        return RequestStats(
            slot_id=self.slot_id,
            num_prompt=self.num_prompt,
            num_cached=self.num_cached,
            num_unread=self._num_unread,
            num_emitted=self.num_emitted,
            num_steps=self.num_steps,
            drafts=self.drafts,
            by_speculator=self.by_speculator,
            counterfactual=self.counterfactual if self.request.wants_counterfactual else None,
            queue_seconds=admitted - self.submitted,
            prompt_seconds=first - admitted,
            generation_seconds=now - first,
        )


@dataclass(slots=True)
class Verified:
    """What the rows of a request say."""

    active: ActiveRequest
    emitted: Sequence[int]
    num_accepted: int  # of them, drafted
    logprobs: list[TokenLogprob]


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence of the target's cache; it keeps its tokens for the next prompt."""

    slot_id: int  # also its seq_id
    active: ActiveRequest | None = None
    kept: list[int] = field(default_factory=list)  # in the cache while no request uses the slot
    kept_exact: int = ALL_EXACT  # of `kept`, as `ActiveRequest.num_exact`
    num_prompt: int = 0  # of `kept`, what was asked; the rest is the answer
    namespace: str = ""  # whose text it holds
    last_used: float = 0.0

    def hold(
        self, tokens: list[int], num_exact: int = ALL_EXACT, num_prompt: int | None = None
    ) -> None:
        """Note what the cache holds while no request uses the slot; without `num_prompt` all of it
        was asked.
        """
        self.kept, self.kept_exact = tokens, num_exact
        self.num_prompt = len(tokens) if num_prompt is None else min(num_prompt, len(tokens))

    @property
    def num_exact(self) -> int:
        """Tokens of the cache that any request may use, see `ActiveRequest.num_exact`."""
        return self.kept_exact if self.active is None else self.active.num_exact

    @property
    def cached(self) -> list[int]:
        """Tokens in the cache; of a running request, the first `num_cached` of this list."""
        return self.kept if self.active is None else self.active.tokens

    @property
    def num_cached(self) -> int:
        return len(self.kept) if self.active is None else self.active.num_decoded
