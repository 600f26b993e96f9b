"""After the decode: emit what was verified, cut the cache, tell the speculators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from headstart.sampling.logprobs import filtered_logprobs, token_logprobs
from headstart.sampling.verify import Note, emit
from headstart.scheduler.checkpoints import note_chunk
from headstart.scheduler.context_shift import shift_context
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.prompt_scores import score_prompt
from headstart.scheduler.slot import ActiveRequest, Verified
from headstart.types import CacheKind, Engine, Logits, Vocab
from headstart.types.errors import EngineError, HeadstartError, InvalidParameterError
from headstart.types.request import Event, TokenEvent, TokenLogprob, VerifiedDraft


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a request is over; see `FinishEvent`."""

    reason: str
    is_truncated: bool = False


LENGTH = Ending("length")
CONTEXT_FULL = Ending("length", is_truncated=True)
_ITS_OWN = ("",)  # source of a token that nobody guessed


@dataclass(slots=True)
class Committed:
    """What became of the requests of a batch."""

    events: list[Event] = field(default_factory=list)
    num_emitted: int = 0  # tokens
    ended: list[tuple[ActiveRequest, Ending]] = field(default_factory=list)
    failed: list[tuple[ActiveRequest, HeadstartError]] = field(default_factory=list)


class Committer:
    """Turns the logits of a batch into its requests' next tokens and events."""

    def __init__(
        self, engine: Engine, vocab: Vocab, drafting: Drafting, *, shifts_context: bool = False
    ) -> None:
        self._engine = engine
        self._vocab = vocab
        self._drafting = drafting
        self._shifts_context = shifts_context
        self.target_ms = self.draft_ms = 0.0  # of the step that is being committed

    def commit(self, in_batch: Sequence[ActiveRequest], logits: Logits, now: float) -> Committed:
        """Emit what the rows of a batch say, in the order of their outputs.

        All rows are read before anything else is done: they go through the processor's caches,
        and would throw out again and again what the rest of the work needs.
        """
        done = Committed()
        verified = self._verify_all(in_batch, logits, now, done)
        settled = [one for one in verified if self._emit(one, now, done)]
        self._drafting.settle(settled)
        for one in settled:
            ending = self._ending(one.active, one.emitted[-1], now)
            if ending is not None:
                done.ended.append((one.active, ending))
        return done

    def _verify_all(
        self, in_batch: Sequence[ActiveRequest], logits: Logits, now: float, done: Committed
    ) -> list[Verified]:
        """What was sampled for each request that has an output; chunks of prompts are noted."""
        offset, verified = 0, list[Verified]()
        for active in in_batch:
            request = active.request
            if request.wants_prompt_scores and not active.is_generating:
                scores, offset = score_prompt(active, logits, offset)
                done.events += scores
            if active.num_rows < active.num_pending:  # a chunk of the prompt, no outputs
                note_chunk(active, self._engine)
                if active.wants_progress:
                    done.events.append(active.progress(now))
                continue
            if active.wants_progress:
                progress = active.progress(now)
                done.events.append(replace(progress, num_processed=active.num_prompt))
            end = offset + 1 + len(active.proposal.tokens)
            rows, offset = logits[offset:end], end
            if active.num_left <= 0:  # max_tokens 0: it only wanted its prompt in the cache
                num_in_cache = active.num_decoded + active.num_rows
                active.num_decoded = self._engine.rewind(active.slot_id, num_in_cache)
                done.ended.append((active, LENGTH))
                continue
            try:
                verified.append(self._verify(active, rows))
            except (EngineError, InvalidParameterError) as error:  # of this request alone
                done.failed.append((active, error))
        return verified

    def _emit(self, one: Verified, now: float, done: Committed) -> bool:
        """Append the tokens to the text, up to where it ends; False if the request failed."""
        active = one.active
        if active.first_token is None:
            active.first_token = now
        text, emitted = self._text(active, one.emitted, is_late=_is_late(active, now))
        num_in_cache = active.num_decoded + active.num_rows
        one.num_accepted = min(one.num_accepted, len(emitted))
        sources = _ITS_OWN * (len(emitted) - one.num_accepted)
        if one.num_accepted:
            sources = (*active.proposal.sources[: one.num_accepted], *sources)
        step = self._describe_step(active) if active.request.wants_provenance else None
        active.tokens.grow(emitted)
        try:
            self._cut_cache(active, num_in_cache)
        except EngineError as error:
            done.failed.append((active, error))
            return False
        active.num_steps += 1
        # a tuple: speculators are shown what clients get, and cannot change it
        one.emitted = tokens = tuple(emitted)
        shown = tuple(one.logprobs[: len(tokens)])
        done.num_emitted += len(tokens)
        request_id = active.request.request_id
        done.events.append(
            TokenEvent(request_id, tokens, text, sources, shown, step, active.slot_id)
        )
        return True

    def _describe_step(self, active: ActiveRequest) -> VerifiedDraft:
        draft = tuple(map(int, active.proposal.tokens))
        chances = tuple(map(float, active.chances[: len(draft)])) or (None,) * len(draft)
        sources = tuple(active.proposal.sources)
        return VerifiedDraft(draft, sources, chances, self.target_ms, self.draft_ms)

    def _verify(self, active: ActiveRequest, logits: Logits) -> Verified:
        """What to emit: 0 to len(draft) + 1 tokens, from logits of shape (len(draft) + 1,
        vocab_size).
        """
        position, draft = len(active.tokens), active.proposal.tokens
        logprobs: list[TokenLogprob] = []
        wants_logprobs = active.request.num_logprobs is not None
        note = _note_into(logprobs, active, logits, position) if wants_logprobs else None
        emitted = emit(active.sampler, logits, draft, position, self._eog(active), note)
        return Verified(active, emitted, _num_accepted(emitted, draft), logprobs)

    def _cut_cache(self, active: ActiveRequest, num_in_cache: int) -> None:
        """Drop what was rejected, and what was added to the rows of a hybrid model; where the
        memory cannot take back so little, read more again.
        """
        active.num_decoded = len(active.tokens) - 1
        if active.num_decoded < num_in_cache or self._engine.cache_kind is CacheKind.ROLLBACK:
            active.num_decoded = self._engine.rewind(active.slot_id, active.num_decoded)

    def _eog(self, active: ActiveRequest) -> frozenset[int]:
        return frozenset() if active.request.sampling.ignore_eos else self._vocab.eog_ids

    def _text(
        self, active: ActiveRequest, emitted: Sequence[int], *, is_late: bool
    ) -> tuple[bytes, Sequence[int]]:
        """Text that is certain to belong to the answer, and the tokens up to where it ends."""
        if not active.request.stop and not active.request.min_indent and not is_late:
            if not active.request.shown_tokens:
                return b"".join(map(self._vocab.token_bytes, emitted)), emitted
            return b"".join(self._shown(active, token) for token in emitted), emitted
        shown = []
        for index, token in enumerate(emitted):
            text, word = active.stop.feed(active.indent.feed(self._shown(active, token)))
            shown.append(text)
            if word is not None or active.indent.is_over or (is_late and self._ends_line(token)):
                return b"".join(shown), emitted[: index + 1]
        return b"".join(shown), emitted

    def _shown(self, active: ActiveRequest, token: int) -> bytes:
        """What the client reads of a token."""
        is_spelled = token in active.request.shown_tokens
        return self._vocab.token_text(token) if is_spelled else self._vocab.token_bytes(token)

    def _ending(self, active: ActiveRequest, last: int, now: float) -> Ending | None:
        """Why the request is over after this token, if it is."""
        if active.stop.found:
            return Ending("word")
        if last in self._eog(active) or (active.legality and active.legality.is_over):
            return Ending("eos")
        if active.num_left <= 0 or active.indent.is_over:
            return LENGTH
        if len(active.tokens) >= self._engine.context_size and not self._shift(active):
            return CONTEXT_FULL
        return LENGTH if _is_late(active, now) and self._ends_line(last) else None

    def _shift(self, active: ActiveRequest) -> bool:
        """Make room in the context, where that is wanted; speculators begin anew behind it."""
        if not self._shifts_context or not shift_context(active, self._engine, self._vocab):
            return False
        self._drafting.end(active)
        return True

    def _ends_line(self, token: int) -> bool:
        return b"\n" in self._vocab.token_bytes(token)


def _is_late(active: ActiveRequest, now: float) -> bool:
    """Whether its time is over: it ends with the line it is in, as at llama-server, not inside a
    word.
    """
    limit = active.request.max_seconds
    return limit is not None and active.first_token is not None and now - active.first_token > limit


def _num_accepted(emitted: Sequence[int], draft: Sequence[int]) -> int:
    """Emitted tokens that were drafted: all but the last one, and that too if the turn ended inside
    the draft.
    """
    last = len(emitted) - 1
    return last + 1 if last < len(draft) and emitted[last] == draft[last] else last


def _note_into(
    logprobs: list[TokenLogprob], active: ActiveRequest, logits: Logits, position: int
) -> Note:
    """What tells clients of each token while the sampler stands before it."""

    def note(row: int, token: int, legal: NDArray[np.bool_] | None) -> None:
        logprobs.append(_logprob(active, logits[row], token, position + row, legal))

    return note


def _logprob(
    active: ActiveRequest,
    logits: NDArray[np.float32],
    token: int,
    position: int,
    legal: NDArray[np.bool_] | None,
) -> TokenLogprob:
    """What the client is told of one token; the sampler must stand before it."""
    num_top = active.request.num_logprobs or 0
    if active.request.post_sampling_probs:
        left = active.sampler.probabilities(logits, position, legal)
        return TokenLogprob(token, *filtered_logprobs(*left, token, num_top))
    return TokenLogprob(token, *token_logprobs(logits, token, num_top))
