"""After the decode: emit what was verified, cut the cache, tell the speculators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headstart.sampling.logprobs import filtered_logprobs, token_logprobs
from headstart.sampling.verify import emit, emit_unverified
from headstart.scheduler.context_shift import shift_context
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.proposal import NO_PROPOSAL
from headstart.scheduler.request import TokenEvent, TokenLogprob, VerifiedDraft
from headstart.scheduler.slot import ActiveRequest
from headstart.types import Engine, Logits, MemoryKind, Vocab


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a request is over; see `FinishEvent`."""

    reason: str
    is_truncated: bool = False


LENGTH = Ending("length")
CONTEXT_FULL = Ending("length", is_truncated=True)


class Committer:
    """Turns the logits of one request into its next tokens and events."""

    def __init__(
        self, engine: Engine, vocab: Vocab, drafting: Drafting, *, shifts_context: bool = False
    ) -> None:
        self._engine = engine
        self._vocab = vocab
        self._drafting = drafting
        self._shifts_context = shifts_context
        self.target_ms = self.draft_ms = 0.0  # of the step that is being committed

    def commit(
        self, active: ActiveRequest, logits: Logits, now: float
    ) -> tuple[TokenEvent | None, Ending | None]:
        """Emit 0 to len(draft) + 1 tokens from logits of shape (len(draft) + 1, vocab_size).

        Returns the event that says so, and why the request is over if it is.
        """
        num_in_cache = active.num_decoded + active.num_rows
        if active.num_left <= 0:  # max_tokens 0: the request only wanted its prompt in the cache
            active.num_decoded = self._engine.rewind(active.slot_id, num_in_cache)
            return None, LENGTH
        emitted, num_accepted, logprobs = self._verify(active, logits)
        if active.first_token is None:
            active.first_token = now
        text, emitted = self._text(active, emitted, is_late=_is_late(active, now))
        num_accepted = min(num_accepted, len(emitted))
        guessed = active.proposal.sources[:num_accepted] if num_accepted else ()
        sources = (*guessed, *[""] * (len(emitted) - num_accepted))
        step = self._describe_step(active) if active.request.wants_provenance else None
        active.tokens.grow(emitted)
        self._cut_cache(active, num_in_cache)
        active.num_steps += 1
        tokens = tuple(emitted)  # speculators are shown what clients get, and cannot change it
        self._drafting.settle(active, tokens, num_accepted)
        active.proposal = NO_PROPOSAL
        shown = tuple(logprobs[: len(emitted)])
        request_id = active.request.request_id
        event = TokenEvent(request_id, tokens, text, sources, shown, step, active.slot_id)
        return event, self._ending(active, emitted[-1], now)

    def _describe_step(self, active: ActiveRequest) -> VerifiedDraft:
        draft = tuple(map(int, active.proposal.tokens))
        chances = tuple(map(float, active.chances[: len(draft)])) or (None,) * len(draft)
        sources = tuple(active.proposal.sources)
        return VerifiedDraft(draft, sources, chances, self.target_ms, self.draft_ms)

    def _verify(
        self, active: ActiveRequest, logits: Logits
    ) -> tuple[list[int], int, list[TokenLogprob]]:
        """Tokens to emit, how many of them were drafted, and log probabilities if wanted."""
        position, draft = len(active.tokens), active.proposal.tokens
        unverified = active.proposal.num_unverified
        if unverified is not None:
            active.is_valid = False
            return (
                emit_unverified(active.sampler, logits, draft, position, unverified),
                unverified,
                [],
            )
        logprobs: list[TokenLogprob] = []

        def note(row: int, token: int, legal: NDArray[np.bool_] | None) -> None:
            logprobs.append(_logprob(active, logits[row], token, position + row, legal))

        wants_logprobs = active.request.num_logprobs is not None
        final = self._eog(active)
        emitted = emit(
            active.sampler, logits, draft, position, final, note if wants_logprobs else None
        )
        return emitted, _num_accepted(emitted, draft), logprobs

    def _cut_cache(self, active: ActiveRequest, num_in_cache: int) -> None:
        """Drop what was rejected, and what was added to the rows of a hybrid model; where the
        memory cannot take back so little, read more again.
        """
        active.num_decoded = len(active.tokens) - 1
        if active.num_decoded < num_in_cache or self._engine.memory is MemoryKind.ROLLBACK:
            active.num_decoded = self._engine.rewind(active.slot_id, active.num_decoded)

    def _eog(self, active: ActiveRequest) -> frozenset[int]:
        return frozenset() if active.request.sampling.ignore_eos else self._vocab.eog_ids

    def _text(
        self, active: ActiveRequest, emitted: list[int], *, is_late: bool
    ) -> tuple[bytes, list[int]]:
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
