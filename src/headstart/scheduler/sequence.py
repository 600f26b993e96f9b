"""The unit of scheduling: a request with its text, and the cells of the cache that it uses."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from headstart.sampling.sampler import Sampler
from headstart.sampling.thoughts import ThoughtCounter
from headstart.scheduler.policy import Policy
from headstart.structures.prefix import common_prefix_length, packed
from headstart.structures.suffix_index import SEPARATOR
from headstart.structures.tenants import tenant_of
from headstart.text.stop_strings import StopCriteria
from headstart.types import Engine, Filters, Vocab
from headstart.types.constraint import NO_LIMIT
from headstart.types.media import LoadedChunk, chunk_begin, readable
from headstart.types.request import ProgressEvent, Request, RequestStats


class OwnedTokens(list[int]):
    """A list of tokens, changed only by `grow` and `drop`.

    Speculators get this list itself at every step, because a copy would take O(context). One that
    sorted or extended it would change the text, so the mutating methods of a list raise.
    """

    __slots__ = ()

    grow = list.extend

    def drop(self, start: int, end: int) -> None:
        """Remove tokens[start:end]."""
        list.__delitem__(self, slice(start, end))

    def __reduce_ex__(self, protocol: object) -> tuple[type[list[int]], tuple[list[int]]]:
        return list, ([*self],)  # a copy is a plain list

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        raise TypeError(
            "the tokens of a request belong to the scheduler and cannot be changed; change a copy: "
            "list(tokens)"
        )

    append = clear = extend = insert = pop = remove = reverse = sort = _refuse
    __delitem__ = __iadd__ = __imul__ = __setitem__ = _refuse


if TYPE_CHECKING:
    from concurrent.futures import Future

    from headstart.sampling.grammar.compiled import Compiled
    from headstart.sampling.grammar.state import GrammarState
    from headstart.scheduler.prompt_store import StoredPrompt


@dataclass(slots=True, eq=False)
class Cells:
    """One sequence of the target's cache; it keeps its tokens for the next prompt.

    tokens[0 : num_exact]   if decoded, computed after the tokens that precede them now
    tokens[0 : length]      in the cache
    tokens[length : ]       of a running text: prompt to decode, or the one token emitted last,
                            perhaps with accepted ones before it (`Sequence.num_again`); all of an
                            idle one if it was emptied, perhaps moved to main memory
    """

    seq_id: int
    tokens: list[int] = field(default_factory=list)  # shared with the text that runs here
    length: int = 0
    num_exact: int = NO_LIMIT  # less if cells were shifted, see `context_shift`
    num_prompt: int = 0  # tokens of the prompt in an idle sequence; the rest is the answer
    namespace: str = ""  # owner of the text
    is_private: bool = False  # the text is never written to the disk
    last_used: float = 0.0  # seconds since the epoch
    num_bytes: int = 0  # of the copy of an idle sequence; 0: not copied yet
    user: Sequence | None = None
    _packed: tuple[list[int], array[int]] = ([], array("i"))  # `tokens`, and `packed`

    @property
    def packed(self) -> array[int]:
        """The text of an idle sequence in the format of stored prompts, made once: O(context)."""
        if self._packed[0] is not self.tokens:
            self._packed = self.tokens, packed(self.tokens)
        return self._packed[1]

    @property
    def has_media(self) -> bool:
        """Whether there are images in the text of an idle sequence."""
        return bool(np.frombuffer(self.packed, np.intc).min(initial=0) < 0)

    def hold(
        self, tokens: list[int], num_exact: int = NO_LIMIT, num_prompt: int | None = None
    ) -> None:
        """Record the cache's contents while no request uses it; without `num_prompt` all of it is
        prompt.
        """
        self.tokens, self.length, self.num_exact = tokens, len(tokens), num_exact
        self.num_bytes = 0
        self.num_prompt = len(tokens) if num_prompt is None else min(num_prompt, len(tokens))

    def num_common(self, namespace: str, tokens: list[int], *, exact: bool = True) -> int:
        """Leading tokens of a text that are cached here and that it may use, in whole images; with
        `exact` only those computed after the tokens that precede them now.
        """
        if self.namespace != namespace:
            return 0
        known = min(self.length, self.num_exact) if exact else self.length
        known = min(known, common_prefix_length(self.tokens, tokens))
        return chunk_begin(tokens, known)


@dataclass(slots=True, eq=False)
class Sequence:
    """One request from submission to its last event.

    After admission only `Committer` and `context_shift` change its text.
    """

    number: int  # unique; counts and estimates about the request are kept under it
    request: Request
    policy: Policy
    submitted: float  # clock readings, seconds
    prompt_namespace: str = ""  # namespace of the cached text that it may use and add to
    tokens: OwnedTokens = field(init=False)  # prompt and answer so far
    # the same list, or with placeholders for images: tokens for models, separators for texts
    model_tokens: OwnedTokens = field(init=False)
    text_tokens: OwnedTokens = field(init=False)
    stop: StopCriteria = field(init=False)
    sampler: Sampler = field(init=False)  # made at admission
    legality: GrammarState | None = None  # state of its constraint
    end_tokens: frozenset[int] = frozenset()  # tokens that end it
    num_dropped: int = 0  # tokens removed by context shifts
    num_scored: int = 0  # last position of the prompt whose log probability was reported
    tenant: str = field(init=False)  # owner of the request
    num_prompt: int = field(init=False)
    num_as_prompt: int = field(init=False)  # first tokens, decoded as a prompt; see `batching`
    most_tokens: int = field(init=False)  # of prompt and answer; huge without max_tokens
    cells: Cells | None = None  # None: it is waiting, or has left
    chosen: Cells | None = None  # that it gets once their contents are in main memory
    constraint_queued: float = 0.0  # when it began to wait for its constraint
    compiled: Future[Compiled] | None = None  # the request's constraint, once compiling began
    leader: Sequence | None = None  # prefills the same prefix; this request waits and shares it
    stored: StoredPrompt | None = None  # in main memory; this request waits until it is restored
    num_awaited: int = 0  # tokens of `leader` or `stored` that it waits for
    loading: Future[StoredPrompt | None] | None = None  # from the disk; see `offloading`
    load_by: float = 0.0  # clock reading after which it no longer waits for that
    lookup: Future[Filters] | None = None  # of its sampler; see `begin_filters`
    pauses: list[int] = field(default_factory=list)  # prompt lengths at which to take a checkpoint
    media: tuple[tuple[int, LoadedChunk], ...] = ()  # position and chunk of each of its images
    num_cached: int = 0  # prompt tokens that were not decoded for this request
    num_again: int = 0  # accepted tokens decoded again, from the state before a rejected draft
    is_resumed: bool = False  # was preempted: tokens decoded again are not counted
    has_started_over: bool = False  # after logits that were not numbers, its own or another's
    held_since: float | None = None  # it waits for cells, and for a turn; see `cell_order`
    admitted: float | None = None
    first_token: float | None = None

    def __post_init__(self) -> None:
        request = self.request
        self.tenant = tenant_of(request.namespace)
        self.num_prompt, limit = len(request.prompt), request.max_tokens
        self.num_as_prompt = self.num_prompt
        self.most_tokens = NO_LIMIT if limit is None else self.num_prompt + limit
        self.tokens = self.model_tokens = self.text_tokens = OwnedTokens(request.prompt)
        if request.media:
            self.model_tokens = OwnedTokens(readable(self.tokens))
            self.text_tokens = OwnedTokens(readable(self.tokens, SEPARATOR))
        self.stop = StopCriteria(request.stop, request.min_indent)

    def begin(self, engine: Engine, vocab: Vocab) -> None:
        """Create the sampler.

        Not called at submission: hundreds of waiting requests would waste memory.

        Raises:
            RequestError: its constraint cannot be applied.
        """
        request = self.request
        filters = None if self.lookup is None else self.lookup.result()
        sampler = Sampler(request.sampling, engine, vocab.eog_ids, filters)
        sampler.begin(self.tokens)
        if not request.sampling.ignore_eos:
            self.end_tokens = vocab.eog_ids
        if self.compiled is not None:
            self.legality = sampler.legality = self.compiled.result().begin()
        if request.thoughts is not None:
            sampler.thoughts = ThoughtCounter(request.thoughts, vocab.token_text)
        self.sampler = sampler

    @property
    def packed(self) -> array[int]:
        """The text in the format of stored prompts."""
        return packed(self.tokens if self.num_emitted else self.request.prompt)

    @property
    def seq_id(self) -> int:
        assert self.cells is not None
        return self.cells.seq_id

    @property
    def num_emitted(self) -> int:
        return len(self.tokens) + self.num_dropped - self.num_prompt

    @property
    def num_decoded(self) -> int:
        return 0 if self.cells is None else self.cells.length

    @property
    def num_pending(self) -> int:
        """Known tokens not decoded yet; while generating the newest, and `num_again` before it."""
        return len(self.tokens) - self.num_decoded

    @property
    def is_generating(self) -> bool:
        """Whether only tokens that it emitted last are left to decode, so that it may draft.

        False before the last token of a prompt, even if all others came from the cache.
        """
        return self.num_pending == 1 + self.num_again and self.num_emitted > 0

    @property
    def pending_media(self) -> tuple[LoadedChunk, int] | None:
        """The image to decode next, and how many of its cells are decoded."""
        at = self.num_decoded
        if not self.media or self.tokens[at] >= 0:
            return None
        start, chunk = next(one for one in reversed(self.media) if one[0] <= at)
        return chunk, at - start

    @property
    def is_scored(self) -> bool:
        """Whether its rows are those of a prompt whose tokens are scored."""
        return self.request.wants_prompt_scores and not self.is_generating

    def rows_alike(self, num_rows: int) -> int:
        """Rows, up to `num_rows`, that can be decoded together: text, or one image's cells."""
        if (pending := self.pending_media) is not None:
            chunk, num_known = pending
            num_left = chunk.num_cells - num_known
            return num_left if chunk.is_whole else min(num_rows, num_left)
        at = self.num_decoded
        return min([num_rows, *(start - at for start, _ in self.media if start > at)])

    @property
    def num_left(self) -> int:
        """Tokens this request may still emit; huge without max_tokens."""
        return self.most_tokens - len(self.tokens) - self.num_dropped

    def progress(self, now: float, num_processed: int) -> ProgressEvent:
        since, num_cached = now - (self.admitted or now), min(self.num_cached, num_processed)
        return ProgressEvent(
            self.request.request_id, self.num_prompt, num_cached, num_processed, since
        )

    def summarize(self, now: float) -> RequestStats:
        """Counts and times so far; `StepOutcomes` adds those of drafts."""
        admitted = now if self.admitted is None else self.admitted
        first = now if self.first_token is None else self.first_token
        num_unread = 0
        if self.first_token is None:  # neither cached nor decoded
            num_read = min(self.num_decoded, self.num_prompt)
            num_unread = self.num_prompt - max(self.num_cached, num_read)
        return RequestStats(
            slot_id=-1 if self.cells is None else self.cells.seq_id,
            num_prompt=self.num_prompt,
            num_cached=self.num_cached,
            num_unread=num_unread,
            num_emitted=self.num_emitted,
            num_near_ties=0 if self.admitted is None else self.sampler.num_near_ties,
            queue_seconds=admitted - self.submitted,
            prompt_seconds=first - admitted,
            generation_seconds=now - first,
        )


def num_shared(cells: Cells, sequence: Sequence) -> int:
    """Leading tokens of the request that are cached here and that it may use.

    The last token is always decoded again: its logits are needed.
    """
    tokens, exact = sequence.tokens, cells.user is not None or not sequence.request.cache_reuse
    return min(len(tokens) - 1, cells.num_common(sequence.prompt_namespace, tokens, exact=exact))
