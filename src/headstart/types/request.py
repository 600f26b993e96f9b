"""Inputs and outputs of the scheduler: requests and events.

These cross the process border, so they are plain values that pickle compactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headstart.types import DraftMode
from headstart.types.constraint import Constraint, ThoughtLimit
from headstart.types.errors import HeadstartError, RequestError
from headstart.types.media import MediaChunk, MediaQuestion
from headstart.types.sampling_params import SamplingParams
from headstart.types.speculation_stats import SpeculationStats


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeParams:
    """Speculation settings of one request. None: the server's setting."""

    mode: DraftMode | None = None
    types: tuple[str, ...] | None = None  # speculators that may draft, in this order
    n_max: int | None = None  # maximum draft tokens per step; 0 disables drafts
    n_min: int | None = None  # shorter drafts are dropped
    p_min: float | None = None  # models stop below this probability

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


MAX_SCALE = 100.0  # of an adapter, either sign: the cache holds 16-bit numbers, up to 65504


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation: a prompt of token ids and everything its text depends on."""

    request_id: str
    prompt: Sequence[int]  # at least one token
    media: tuple[tuple[int, MediaChunk], ...] = ()  # chunk and position of each image
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None  # None: until the model stops or the context is full
    stop: tuple[bytes, ...] = ()  # none empty
    min_indent: int = 0  # the text ends before a line with less indentation
    num_logprobs: int | None = None  # alternatives per token; None: no log probabilities
    post_sampling_probs: bool = False  # probabilities after the filters, not before
    cache_prompt: bool = True
    cache_reuse: int = 0  # minimum chunk of a cached prompt to shift; 0: no shifts
    num_keep: int = 0  # tokens at the beginning that no context shift drops; -1: the prompt
    num_discard: int = 0  # tokens that a context shift drops; 0: half of those it may drop
    slot_id: int | None = None  # preferred slot, if it is free
    priority: int = 0  # among the waiting requests of its tenant: lower goes first
    # time limit of generation, from the first token; the text ends with its line then
    max_seconds: float | None = None
    speculative: SpeculativeParams = field(default_factory=SpeculativeParams)
    constraint: Constraint | None = None  # allowed texts of the answer; None: any
    thoughts: ThoughtLimit | None = None  # reasoning budget; None: no limit
    shown_tokens: frozenset[int] = frozenset()  # control tokens that appear as text
    # of each LoRA adapter; (): the worker's defaults
    adapters: tuple[float, ...] = ()
    # hash of the API key, and the adapters' scales: text is never shared across
    namespace: str = ""
    wants_progress: bool = False  # ProgressEvents during prefill
    # PromptEvents; then the whole prompt is decoded, even if cached
    wants_prompt_scores: bool = False
    wants_provenance: bool = False  # `TokenEvent.step`
    # whether prompt and answer may be recorded; None: by the server's settings
    store: bool | None = None

    @property
    def is_private(self) -> bool:
        """Whether its text must not be kept on disk."""
        return self.store is False or not self.cache_prompt


_ALTERNATIVE = np.dtype([("id", "<i4"), ("logprob", "<f8")])


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probabilities of one emitted token and of the best alternatives. These are packed,
    because a whole vocabulary would be too many objects for the engine's loop.
    """

    token: int
    logprob: float
    packed: bytes = b""

    @staticmethod
    def pack(ids: Sequence[int] | NDArray[Any], logprobs: Sequence[float] | NDArray[Any]) -> bytes:
        """Pack alternatives, in any order except that ties keep theirs."""
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
    """The draft that one step verified for a request, with the step's times; only on request.

    The times are those of the whole batch.
    """

    draft: tuple[int, ...]  # tokens
    sources: tuple[str, ...]  # the speculator of each
    # probability that each and all before it are accepted; None with fixed lengths
    survival: tuple[float | None, ...]
    target_ms: float
    draft_ms: float
    # each speculator's name and first draft tokens, verified or not
    offers: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(slots=True)
class TokenEvent:
    """Tokens emitted by one step.

    `text` holds the bytes that certainly belong to the answer: bytes that may begin a stop string
    are withheld. It may end inside a UTF-8 character.
    """

    is_last: ClassVar[bool] = False
    request_id: str
    tokens: tuple[int, ...]
    text: bytes
    sources: tuple[str, ...]  # per token: the speculator that drafted it, or "" for the target
    logprobs: tuple[TokenLogprob, ...] = ()
    step: VerifiedDraft | None = None  # if the request wants provenance
    slot_id: int = -1

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle without field names: there are as many per step as answers."""
        drafted = self.sources, self.logprobs, self.step
        return TokenEvent, (self.request_id, self.tokens, self.text, *drafted, self.slot_id)


@dataclass(frozen=True, slots=True)
class PromptEvent:
    """Log probabilities of the next tokens of the prompt; its first token has none."""

    is_last: ClassVar[bool] = False
    request_id: str
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """Progress of the prefill; counts of tokens, seconds since admission."""

    is_last: ClassVar[bool] = False
    request_id: str
    num_prompt: int
    num_cached: int
    num_processed: int
    seconds: float


@dataclass(slots=True, kw_only=True)
class RequestStats:
    """Counts and times of one request, or sums over several. Times in seconds."""

    slot_id: int = -1
    num_prompt: int = 0  # tokens
    num_cached: int = 0  # of these, taken from the prompt cache
    num_unread: int = 0  # of these, not decoded before it ended
    num_emitted: int = 0  # tokens
    num_steps: int = 0  # verify steps, including those without a draft
    num_near_ties: int = 0  # tokens whose lead was within the numerical noise of widths
    drafts: SpeculationStats = field(default_factory=SpeculationStats)  # of all speculators
    by_speculator: dict[str, SpeculationStats] = field(
        default_factory=lambda: defaultdict(SpeculationStats)
    )
    queue_seconds: float = 0.0
    prompt_seconds: float = 0.0
    generation_seconds: float = 0.0  # from the first token on

    @property
    def num_timed(self) -> int:
        """Tokens emitted in `generation_seconds`: all but the first."""
        return max(0, self.num_emitted - 1)

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted per verify step, >= 1."""
        return self.num_emitted / self.num_steps if self.num_steps else 0.0

    def add(self, other: RequestStats) -> None:
        """Add the counts and times of another request."""
        for name in [one.name for one in fields(self) if one.default == 0]:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.drafts.add(other.drafts)
        for name, stats in other.by_speculator.items():
            self.by_speculator[name].add(stats)


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The last event of a request that ended normally.

    reason: "eos" (the model ended its turn), "word" (a stop string), "length" (max_tokens, context,
    the first end of a line after max_seconds, or a line indented less than n_indent), "cancelled".
    """

    is_last: ClassVar[bool] = True
    request_id: str
    reason: str
    stats: RequestStats
    stopping_word: str = ""
    truncated: bool = False  # the context was full: the text ended, or lost its beginning


@dataclass(frozen=True, slots=True)
class SlotAction:
    """Save, restore or erase an idle slot's prompt; the reply: tokens, bytes, seconds."""

    request_id: str
    action: str  # save, restore or erase
    slot_id: int
    path: str = ""  # file; empty for erase
    namespace: str = ""  # of the client: only its own texts can be saved
    adapters: tuple[float, ...] = ()  # as in `Request`


UNKNOWN_ANSWER = "no active completion for this id"


@dataclass(frozen=True, slots=True)
class ThoughtsEnd:
    """End the thoughts of a running answer; the reply: the reason if that failed, or ""."""

    request_id: str
    answer: str  # id of the request that is thinking
    namespace: str  # of the client: only its own answers are found


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Texts to convert to vectors or scores; answered by `EmbeddingEvent`s."""

    request_id: str
    texts: tuple[Sequence[int], ...]  # token ids; none empty
    namespace: str = ""  # as in `Request`
    media: tuple[tuple[int, MediaChunk], ...] = ()  # images in any of the texts, by their first id

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.texts))


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingEvent:
    """The next vectors of an embedding request; together they cover its texts, in order."""

    request_id: str
    # per text (1, size); unpooled (tokens, size), in pieces if long
    vectors: tuple[NDArray[np.float32], ...]
    num_tokens: int  # of the request
    seconds: float  # since it was submitted
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class ReplyEvent:
    """The only event of a command that generates nothing, such as a slot action."""

    is_last: ClassVar[bool] = True
    request_id: str
    value: Any  # depends on the command


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """The last event of a request that failed."""

    is_last: ClassVar[bool] = True
    request_id: str
    error: HeadstartError
    stats: RequestStats | None = None  # None: refused before it ran


Event = (
    TokenEvent
    | PromptEvent
    | ProgressEvent
    | FinishEvent
    | ReplyEvent
    | EmbeddingEvent
    | ErrorEvent
)


# commands that a worker accepts
Work = Request | SlotAction | ThoughtsEnd | EmbeddingRequest | MediaQuestion
