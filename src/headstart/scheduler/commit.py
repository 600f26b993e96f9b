"""After the decode: emit what was verified, cut the cache, tell the speculators, end the request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headstart.sampling.logprobs import filtered_logprobs, token_logprobs
from headstart.sampling.verify import emit, emit_granted
from headstart.scheduler.counters import Counters
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.proposal import NO_PROPOSAL
from headstart.scheduler.request import Event, FinishEvent, TokenEvent, TokenLogprob
from headstart.scheduler.slot import Run, Slot
from headstart.types import Engine, Logits, Vocab


class Committer:
    """Turns the logits of one slot into its next tokens and events."""

    def __init__(
        self, engine: Engine, vocab: Vocab, drafting: Drafting, counters: Counters, events: list[Event]
    ) -> None:
        self._engine = engine
        self._vocab = vocab
        self._drafting = drafting
        self._counters = counters
        self._events = events

    def commit(self, slot: Slot, logits: Logits, now: float) -> int:
        """Emit 0 to len(draft) + 1 tokens from logits of shape (len(draft) + 1, vocab_size)."""
        run = slot.run
        assert run is not None
        num_in_cache = run.num_decoded + run.num_rows
        if run.num_left <= 0:  # max_tokens 0: the request only wanted its prompt in the cache
            run.num_decoded = num_in_cache
            self.finish(slot, "length", now)
            return 0
        position = len(run.tokens)
        draft = run.proposal.tokens
        wants_logprobs = run.request.num_logprobs is not None
        logprobs: list[TokenLogprob] = []

        def note(row: int, token: int) -> None:
            logprobs.append(_logprob(run, logits[row], token, position + row))

        granted = run.proposal.head.num_granted
        if granted is None:
            emitted = emit(run.sampler, logits, draft, position, self._eog(run), note if wants_logprobs else None)
            num_accepted = _num_accepted(emitted, draft)
        else:
            emitted = emit_granted(run.sampler, logits, draft, position, granted)
            num_accepted, run.is_valid = granted, False
        self._begin_timing(run, now)
        text, stopping_word, emitted = self._text(run, emitted, is_late=_is_late(run, now))
        num_accepted = min(num_accepted, len(emitted))
        sources = (*run.proposal.sources[:num_accepted], *[""] * (len(emitted) - num_accepted))
        run.tokens += emitted
        run.num_decoded = len(run.tokens) - 1
        if run.num_decoded < num_in_cache and not self._engine.truncate(slot.slot_id, run.num_decoded):
            self._engine.clear(slot.slot_id)  # this memory cannot take back so much: read it all again
            run.num_decoded = 0
        run.num_steps += 1
        if draft:
            self._counters.add_draft(len(draft), num_accepted)
        self._drafting.settle(slot, emitted, num_accepted)
        run.proposal = NO_PROPOSAL
        shown = tuple(logprobs[: len(emitted)])
        self._events.append(TokenEvent(run.request.request_id, tuple(emitted), text, sources, shown))
        self._finish_if_over(slot, emitted[-1], stopping_word, now)
        return len(emitted)

    def finish(self, slot: Slot, reason: str, now: float, *, stopping_word: str = "", truncated: bool = False) -> None:
        """End the request; the slot keeps its cache for the next prompt."""
        run = slot.run
        assert run is not None
        if rest := run.stop.flush():
            self._events.append(TokenEvent(run.request.request_id, (), rest, ()))
        self._drafting.end(slot)
        stats = run.stats(slot.slot_id, now)
        self._counters.add_request(stats)
        self._events.append(FinishEvent(run.request.request_id, reason, stats, stopping_word, truncated))
        slot.kept = run.tokens[: run.num_decoded]
        slot.run, slot.last_used = None, now

    def _eog(self, run: Run) -> frozenset[int]:
        return frozenset() if run.request.sampling.ignore_eos else self._vocab.eog_ids

    def _begin_timing(self, run: Run, now: float) -> None:
        if run.first_token is None:
            run.first_token = now

    def _text(self, run: Run, emitted: list[int], *, is_late: bool) -> tuple[bytes, str, list[int]]:
        """Text to show, the stop string if one was completed, and the tokens up to the end of the text."""
        if not run.request.stop and not run.request.min_indent and not is_late:
            return b"".join(map(self._vocab.token_bytes, emitted)), "", emitted
        shown = []
        for index, token in enumerate(emitted):
            text, word = run.stop.feed(run.indent.feed(self._vocab.token_bytes(token)))
            shown.append(text)
            if word is not None or run.indent.is_over or (is_late and self._ends_line(token)):
                return b"".join(shown), (word or b"").decode("utf-8", "replace"), emitted[: index + 1]
        return b"".join(shown), "", emitted

    def _finish_if_over(self, slot: Slot, last: int, stopping_word: str, now: float) -> None:
        run = slot.run
        assert run is not None
        if stopping_word:
            self.finish(slot, "word", now, stopping_word=stopping_word)
        elif last in self._eog(run):
            self.finish(slot, "eos", now)
        elif run.num_left <= 0 or run.indent.is_over:
            self.finish(slot, "length", now)
        elif len(run.tokens) >= self._engine.context_size:
            self.finish(slot, "length", now, truncated=True)
        elif _is_late(run, now) and self._ends_line(last):
            self.finish(slot, "length", now)

    def _ends_line(self, token: int) -> bool:
        return b"\n" in self._vocab.token_bytes(token)


def _is_late(run: Run, now: float) -> bool:
    """Whether its time is over: it ends with the line it is in, as at llama-server, not inside a word."""
    limit = run.request.max_seconds
    return limit is not None and run.first_token is not None and now - run.first_token > limit


def _num_accepted(emitted: list[int], draft: list[int]) -> int:
    """Emitted tokens that were drafted: all but the last one, and that too if the turn ended inside the draft."""
    last = len(emitted) - 1
    return last + 1 if last < len(draft) and emitted[last] == draft[last] else last


def _logprob(run: Run, logits: NDArray[np.float32], token: int, position: int) -> TokenLogprob:
    """What the client is told of one token; the sampler must stand before it."""
    num_top = run.request.num_logprobs or 0
    if run.request.post_sampling_probs:
        return TokenLogprob(token, *filtered_logprobs(*run.sampler.probabilities(logits, position), token, num_top))
    return TokenLogprob(token, *token_logprobs(logits, token, num_top))
