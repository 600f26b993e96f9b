"""After the decode: emit verified tokens, cut the cache, tell speculators, end requests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headstart.sampling.logprobs import filtered_logprobs, token_logprobs
from headstart.sampling.verify import emit, emit_forced
from headstart.scheduler.counters import Counters
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.proposal import NO_PROPOSAL
from headstart.scheduler.request import Event, FinishEvent, TokenEvent, TokenLogprob
from headstart.scheduler.slot import ActiveRequest, Slot
from headstart.types import Engine, Logits, Vocab


class Committer:
    """Turns the logits of one slot into its next tokens and events."""

    def __init__(
        self,
        engine: Engine,
        vocab: Vocab,
        drafting: Drafting,
        counters: Counters,
        events: list[Event],
    ) -> None:
        self._engine = engine
        self._vocab = vocab
        self._drafting = drafting
        self._counters = counters
        self._events = events

    def commit(self, slot: Slot, logits: Logits, now: float) -> int:
        """Emit 0 to len(draft) + 1 tokens from logits of shape (len(draft) + 1, vocab_size)."""
        active = slot.active
        assert active is not None
        num_in_cache = active.num_decoded + active.num_rows
        if active.num_left <= 0:  # max_tokens 0: the request only wanted its prompt in the cache
            active.num_decoded = num_in_cache
            self.finish(slot, "length", now)
            return 0
        position = len(active.tokens)
        draft = active.proposal.tokens
        wants_logprobs = active.request.num_logprobs is not None
        logprobs: list[TokenLogprob] = []

        def note(row: int, token: int) -> None:
            logprobs.append(_logprob(active, logits[row], token, position + row))

        forced = active.proposal.head.num_forced
        if forced is None:
            emitted = emit(
                active.sampler,
                logits,
                draft,
                position,
                self._eog(active),
                note if wants_logprobs else None,
            )
            num_accepted = _num_accepted(emitted, draft)
        else:
            emitted = emit_forced(active.sampler, logits, draft, position, forced)
            num_accepted, active.is_valid = forced, False
        self._begin_timing(active, now)
        text, stopping_word, emitted = self._text(active, emitted, is_late=_is_late(active, now))
        num_accepted = min(num_accepted, len(emitted))
        sources = (*active.proposal.sources[:num_accepted], *[""] * (len(emitted) - num_accepted))
        active.tokens += emitted
        active.num_decoded = len(active.tokens) - 1
        if active.num_decoded < num_in_cache and not self._engine.truncate(
            slot.slot_id, active.num_decoded
        ):
            # this memory cannot take back so much: read it all again
            self._engine.clear(slot.slot_id)
            active.num_decoded = 0
        active.num_steps += 1
        if draft:
            self._counters.add_draft(len(draft), num_accepted)
        self._drafting.settle(slot, emitted, num_accepted)
        active.proposal = NO_PROPOSAL
        shown = tuple(logprobs[: len(emitted)])
        self._events.append(
            TokenEvent(active.request.request_id, tuple(emitted), text, sources, shown)
        )
        self._finish_if_over(slot, emitted[-1], stopping_word, now)
        return len(emitted)

    def finish(
        self,
        slot: Slot,
        reason: str,
        now: float,
        *,
        stopping_word: str = "",
        truncated: bool = False,
    ) -> None:
        """End the request; the slot keeps its cache for the next prompt."""
        active = slot.active
        assert active is not None
        if rest := active.stop.flush():
            self._events.append(TokenEvent(active.request.request_id, (), rest, ()))
        self._drafting.end(slot)
        stats = active.stats(slot.slot_id, now)
        self._counters.add_request(stats)
        self._events.append(
            FinishEvent(active.request.request_id, reason, stats, stopping_word, truncated)
        )
        slot.kept = active.tokens[: active.num_decoded]
        slot.active, slot.last_used = None, now

    def _eog(self, active: ActiveRequest) -> frozenset[int]:
        return frozenset() if active.request.sampling.ignore_eos else self._vocab.eog_ids

    def _begin_timing(self, active: ActiveRequest, now: float) -> None:
        if active.first_token is None:
            active.first_token = now

    def _text(
        self, active: ActiveRequest, emitted: list[int], *, is_late: bool
    ) -> tuple[bytes, str, list[int]]:
        """Text to show, the stop string if one was completed, and the tokens up to the end of the
        text.
        """
        if not active.request.stop and not active.request.min_indent and not is_late:
            return b"".join(map(self._vocab.token_bytes, emitted)), "", emitted
        shown = []
        for index, token in enumerate(emitted):
            text, word = active.stop.feed(active.indent.feed(self._vocab.token_bytes(token)))
            shown.append(text)
            if word is not None or active.indent.is_over or (is_late and self._ends_line(token)):
                return (
                    b"".join(shown),
                    (word or b"").decode("utf-8", "replace"),
                    emitted[: index + 1],
                )
        return b"".join(shown), "", emitted

    def _finish_if_over(self, slot: Slot, last: int, stopping_word: str, now: float) -> None:
        active = slot.active
        assert active is not None
        if stopping_word:
            self.finish(slot, "word", now, stopping_word=stopping_word)
        elif last in self._eog(active):
            self.finish(slot, "eos", now)
        elif active.num_left <= 0 or active.indent.is_over:
            self.finish(slot, "length", now)
        elif len(active.tokens) >= self._engine.context_size:
            self.finish(slot, "length", now, truncated=True)
        elif _is_late(active, now) and self._ends_line(last):
            self.finish(slot, "length", now)

    def _ends_line(self, token: int) -> bool:
        return b"\n" in self._vocab.token_bytes(token)


def _is_late(active: ActiveRequest, now: float) -> bool:
    """Whether its time is over: it ends with the line it is in, as at llama-server, not inside a
    word.
    """
    limit = active.request.max_seconds
    return limit is not None and active.first_token is not None and now - active.first_token > limit


def _num_accepted(emitted: list[int], draft: list[int]) -> int:
    """Emitted tokens that were drafted: all but the last one, and that too if the turn ended inside
    the draft.
    """
    last = len(emitted) - 1
    return last + 1 if last < len(draft) and emitted[last] == draft[last] else last


def _logprob(
    active: ActiveRequest, logits: NDArray[np.float32], token: int, position: int
) -> TokenLogprob:
    """What the client is told of one token; the sampler must stand before it."""
    num_top = active.request.num_logprobs or 0
    if active.request.post_sampling_probs:
        return TokenLogprob(
            token,
            *filtered_logprobs(*active.sampler.probabilities(logits, position), token, num_top),
        )
    return TokenLogprob(token, *token_logprobs(logits, token, num_top))
