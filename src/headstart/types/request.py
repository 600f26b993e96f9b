"""What goes into the scheduler and what comes out: requests and events.

These cross the process border, so they are plain frozen values that pickle small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.types import DraftMode
from headstart.types.constraint import Constraint, ThoughtLimit
from headstart.types.errors import RequestError
from headstart.types.media import MediaChunk, MediaQuestion
from headstart.types.sampling_params import SamplingParams
from headstart.types.speculation_stats import SpeculationStats


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeParams:
    """Speculation of one request. None means: as the server was started."""

    mode: DraftMode | None = None
    types: tuple[str, ...] | None = None  # speculators that may draft, in this order
    n_max: int | None = None  # most draft tokens a step; 0 switches drafting off
    n_min: int | None = None  # shorter drafts are dropped
    p_min: float | None = None  # a model drafter stops below this probability

    def __post_init__(self) -> None:
        for name in ("n_max", "n_min"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise RequestError(f"speculative.{name} is {value} but must be 0 or more")
        if self.n_max and self.n_min is not None and self.n_min > self.n_max:
            raise RequestError(
                f"speculative.n_min is {self.n_min} but must not exceed speculative.n_max, which "
                f"is {self.n_max}"
            )
        if self.p_min is not None and not 0.0 <= self.p_min <= 1.0:
            raise RequestError(f"speculative.p_min is {self.p_min} but must be from 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation: a prompt of token ids and everything its text depends on."""

    request_id: str
    prompt: Sequence[int]  # at least one token
    media: tuple[tuple[int, MediaChunk], ...] = ()  # images in it, and where each begins
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None  # None: until the model stops or the context is full
    stop: tuple[bytes, ...] = ()  # none empty
    min_indent: int = 0  # the text ends before a new line with less white space in front
    num_logprobs: int | None = None  # alternatives per token; None: no log probabilities
    post_sampling_probs: bool = False  # probabilities after the filters instead of before
    cache_prompt: bool = True
    cache_reuse: int = 0  # least tokens of a piece of a kept prompt that is moved; 0: none is
    num_keep: int = 0  # tokens at the beginning that no context shift drops; -1: the prompt
    num_discard: int = 0  # tokens that a context shift drops; 0: half of those it may drop
    slot_id: int | None = None  # a wish; served by this slot if it is free
    priority: int = 0  # among the requests of its tenant that wait: lower goes first
    # of generation, after the first token; then the text ends with its line
    max_seconds: float | None = None
    speculative: SpeculativeParams = field(default_factory=SpeculativeParams)
    constraint: Constraint | None = None  # which texts the answer may have; None: any
    thoughts: ThoughtLimit | None = None  # after which they are ended; None: no limit
    shown_tokens: frozenset[int] = frozenset()  # control tokens whose spelling is text
    # of each LoRA adapter; none: as the worker was started
    adapters: tuple[float, ...] = ()
    # hash of the API key, and the adapters' scales: text does not cross it
    namespace: str = ""
    wants_progress: bool = False  # ProgressEvents while the prompt is read
    # PromptEvents; the whole prompt is read then, whatever is cached
    wants_prompt_scores: bool = False
    wants_provenance: bool = False  # `TokenEvent.step`
    # whether prompt and answer may be recorded; None: as the server's settings say
    store: bool | None = None

    @property
    def is_private(self) -> bool:
        """Whether no prompt that is kept on the disk may hold its text."""
        return self.store is False or not self.cache_prompt


_ALTERNATIVE = np.dtype([("id", "<i4"), ("logprob", "<f8")])


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of one emitted token and of the likeliest alternatives, which are packed:
    those of a whole vocabulary are too many objects for the engine's loop.
    """

    token: int
    logprob: float
    packed: bytes = b""

    @staticmethod
    def pack(ids: Sequence[int] | NDArray[Any], logprobs: Sequence[float] | NDArray[Any]) -> bytes:
        """Alternatives, in any order but for equal ones."""
        alternatives = np.empty(len(ids), _ALTERNATIVE)
        alternatives["id"], alternatives["logprob"] = ids, logprobs
        return alternatives.tobytes()

    @property
    def num_alternatives(self) -> int:
        return len(self.packed) // _ALTERNATIVE.itemsize

    def alternatives(self) -> list[tuple[int, float]]:
        """Tokens and their log probabilities, best first."""
        found = np.frombuffer(self.packed, _ALTERNATIVE)
        best_first: list[tuple[int, float]] = found[
            (-found["logprob"]).argsort(kind="stable")
        ].tolist()
        return best_first


@dataclass(frozen=True, slots=True)
class VerifiedDraft:
    """What one step verified for a request, and what the step took; for those who want to see it.

    The times are those of the whole batch, whoever else was in it.
    """

    draft: tuple[int, ...]  # tokens
    sources: tuple[str, ...]  # the speculator of each
    chances: tuple[float | None, ...]  # that each is accepted; None where control did not say
    target_ms: float
    draft_ms: float
    # what each speculator offered by itself, verified or not: its name, and the first tokens
    offers: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(slots=True)
class TokenEvent:
    """Tokens emitted by one step.

    `text` holds the bytes that are now certain to belong to the answer: bytes that may begin a
    stop string are held back until it is decided. It may end inside a UTF-8 character.
    """

    request_id: str
    tokens: tuple[int, ...]
    text: bytes
    sources: tuple[str, ...]  # per token: the speculator that drafted it, "" for the target's own
    logprobs: tuple[TokenLogprob, ...] = ()
    step: VerifiedDraft | None = None  # where the request wants provenance
    slot_id: int = -1


@dataclass(slots=True)
class StepTokens:
    """What one step emitted, as the engine process sends it: a `TokenEvent` per row, in columns."""

    request_ids: list[str]
    slot_ids: list[int]
    texts: list[bytes]
    counts: list[int]  # tokens of each row
    tokens: list[int]  # of all rows, and the source of each
    sources: list[str]
    # by row, of requests that want them
    logprobs: dict[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    steps: dict[int, VerifiedDraft] = field(default_factory=dict)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle without the names of the fields: there is one for every step."""
        columns = self.request_ids, self.slot_ids, self.texts, self.counts
        return StepTokens, (*columns, self.tokens, self.sources, self.logprobs, self.steps)

    def events(self) -> list[TokenEvent]:
        """The rows, each as the event of its request."""
        events, tokens, sources = list[TokenEvent](), tuple(self.tokens), tuple(self.sources)
        end = 0
        for row, request_id in enumerate(self.request_ids):
            start, end = end, end + self.counts[row]
            events.append(
                TokenEvent(
                    request_id,
                    tokens[start:end],
                    self.texts[row],
                    sources[start:end],
                    self.logprobs.get(row, ()),
                    self.steps.get(row),
                    self.slot_ids[row],
                )
            )
        return events


@dataclass(frozen=True, slots=True)
class PromptEvent:
    """Log probabilities of the next tokens of the prompt; its first token has none."""

    request_id: str
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """How much of the prompt is decoded; counts of tokens, seconds since admission."""

    request_id: str
    num_prompt: int
    num_cached: int
    num_processed: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """Counts and times of one request. Times in seconds."""

    slot_id: int = -1
    num_prompt: int = 0  # tokens
    num_cached: int = 0  # of them, taken from the prompt cache
    num_unread: int = 0  # of them, not read before it ended
    num_emitted: int = 0  # tokens
    num_steps: int = 0  # verify steps, those without a draft included
    num_near_ties: int = 0  # tokens that were chosen by less than widths of decodes change
    drafts: SpeculationStats = field(default_factory=SpeculationStats)  # all of them together
    by_speculator: Mapping[str, SpeculationStats] = field(default_factory=dict)
    queue_seconds: float = 0.0
    prompt_seconds: float = 0.0
    generation_seconds: float = 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted per verify step, >= 1."""
        return self.num_emitted / self.num_steps if self.num_steps else 0.0


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The last event of a request that ended well.

    reason: "eos" (the model ended its turn), "word" (a stop string), "length" (max_tokens, context,
    or the first end of a line after max_seconds), "cancelled".
    """

    request_id: str
    reason: str
    stats: RequestStats
    stopping_word: str = ""
    truncated: bool = False  # the context was full: the text ended, or lost what stood in front


@dataclass(frozen=True, slots=True)
class SlotAction:
    """Save, restore or erase what an idle slot keeps; the reply: tokens, bytes, seconds."""

    request_id: str
    action: str  # save, restore or erase
    slot_id: int
    path: str = ""  # of the file; none to erase
    namespace: str = ""  # of who asks: only its own texts can be saved
    adapters: tuple[float, ...] = ()  # as in `Request`


@dataclass(frozen=True, slots=True)
class ThoughtsEnd:
    """End the thoughts of an answer that is being generated; the reply: why not, if so."""

    request_id: str
    answer: str  # the request whose thoughts they are
    namespace: str  # of who asks: only its own answers are found


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Texts to be turned into vectors or scores; answered by `EmbeddingEvent`s."""

    request_id: str
    texts: tuple[Sequence[int], ...]  # token ids; none empty
    namespace: str = ""  # as in `Request`
    media: tuple[tuple[int, MediaChunk], ...] = ()  # in any of the texts; by the first of their ids

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.texts))


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingEvent:
    """The next vectors of an embedding request; together they are those of its texts, in order."""

    request_id: str
    # of each text (1, size); unpooled (tokens, size), of a long one in pieces
    vectors: tuple[NDArray[np.float32], ...]
    num_tokens: int  # of the request
    seconds: float  # since it was submitted
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class ReplyEvent:
    """The only event of what was done and generates nothing, such as a slot action."""

    request_id: str
    value: Any  # see what was asked


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """The last event of a request that failed: the name of an exception class and its message."""

    request_id: str
    error: str
    message: str
    details: Mapping[str, object] = field(default_factory=dict)  # attributes of the exception
    stats: RequestStats | None = None  # None: it was refused before it ran


def error_event(request_id: str, error: Exception, stats: RequestStats | None = None) -> ErrorEvent:
    """The event for an exception that ended a request."""
    details = {k: v for k, v in vars(error).items() if isinstance(v, int | str)}
    return ErrorEvent(request_id, type(error).__name__, str(error), details, stats)


Event = (
    TokenEvent
    | PromptEvent
    | ProgressEvent
    | FinishEvent
    | ReplyEvent
    | EmbeddingEvent
    | ErrorEvent
)
# what is submitted
Work = Request | SlotAction | ThoughtsEnd | EmbeddingRequest | MediaQuestion
