"""After the decode: sample from the logits and append the tokens to the texts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from headstart.config import SchedulerConfig
from headstart.sampling.verify import Note, emit, filtered_logprobs, token_logprobs
from headstart.scheduler.constraint_queue import ConstraintQueue
from headstart.scheduler.context_shift import shift_context
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.prompt_cache import PromptCache
from headstart.scheduler.sequence import Sequence
from headstart.scheduler.step import End, SequencePlan, StepRecord
from headstart.types import Engine, Logits, Rows, Vocab
from headstart.types.errors import EngineError, RequestError
from headstart.types.request import TokenLogprob

Leaving = End | tuple[Sequence, str]
"""A sequence that leaves its cells, for good or, with the reason, to continue later."""


class Committer:
    """Turns the logits of a batch into its sequences' next tokens."""

    def __init__(
        self,
        engine: Engine,
        vocab: Vocab,
        cache: PromptCache,
        drafting: Drafting,
        compiling: ConstraintQueue,
        config: SchedulerConfig,
    ) -> None:
        self._engine = engine
        self._vocab = vocab
        self._cache = cache
        self._drafting = drafting
        self._compiling = compiling
        self._shifts_context = config.context_shift
        self._most_again = 0  # rows of an answer
        if engine.rows is Rows.EQUAL:
            self._most_again = min(64, engine.max_batch_tokens // config.parallel - 1)

    def commit(self, record: StepRecord, logits: Logits) -> Iterator[Leaving]:
        """Write the sampled tokens into the record and the texts; yields sequences that leave.

        All rows are sampled before anything else is done: logits fill the processor's caches, so
        alternating with other work would evict that work's data each time.
        """
        leaving, grown = self._verify_all(record, logits), []
        for result in record.results:
            if result.emitted:
                try:
                    self._write(result, record.now)
                except EngineError as error:
                    leaving.append(End(result.sequence, error=error))
                else:
                    grown.append(result)
        self._drafting.accept(grown)
        yield from leaving
        for result in grown:
            sequence = result.sequence
            try:
                end = self._end(sequence, result.emitted[-1], record.now)
            except EngineError as error:  # from the context shift
                end = End(sequence, error=error)
            if end is not None:
                yield end
        for one in leaving:
            if isinstance(one, End) and isinstance(one.error, EngineError):
                yield from self._start_over(one.error)
                break

    def _start_over(self, error: EngineError) -> Iterator[Leaving]:
        """Overwrite all cells and drop their copies: some may hold what is not a number, which
        other sequences' attention would read even from free cells.

        A request that meets this twice fails: it may be the one whose prompt overflows.
        """
        store = self._cache.offloading.store
        for cells in self._cache.cells:
            if (sequence := cells.user) is not None:
                if sequence.has_started_over:
                    yield End(sequence, error=error)
                    continue
                sequence.has_started_over = True
                yield sequence, "the cache is emptied after logits that were not numbers"
            self._cache.offloading.empty(cells)
        for prompt in [*store]:
            store.take(prompt)
        self._engine.wipe()

    def _verify_all(self, record: StepRecord, logits: Logits) -> list[Leaving]:
        """Sample tokens for each sequence whose known tokens are all decoded; returns those that
        leave without one.
        """
        offset = 0
        leaving: list[Leaving] = []
        for result in record.results:
            sequence, length = result.sequence, result.start + result.num_rows
            cells, end = sequence.cells, offset + result.num_outputs
            rows, offset = logits[offset:end], end
            assert cells is not None
            cells.length = length
            try:
                if result.is_prompt:
                    if sequence.request.wants_prompt_scores:
                        result.scores = _score(sequence, rows, result.start, length)
                    if length < len(sequence.tokens):
                        self._cache.cut(sequence, length)  # the chunk may have been padded
                        if sequence.pauses and length == sequence.pauses[0]:
                            self._engine.checkpoint(sequence.seq_id)
                            sequence.pauses.pop(0)
                        continue
                    rows = rows[-1:]
                # max_tokens 0: wants its prompt cached
                if len(sequence.tokens) >= sequence.most_tokens:
                    self._cache.cut(sequence, length)
                    leaving.append(End(sequence, "length"))
                    continue
                self._verify(result, rows)
            except (EngineError, RequestError) as error:  # of this request alone
                if self._compiling.renew(sequence, error):
                    self._cache.cut(sequence, len(sequence.tokens))
                    leaving.append((sequence, "its constraint is compiled for it alone"))
                else:
                    leaving.append(End(sequence, error=error))
        return leaving

    def _verify(self, result: SequencePlan, rows: Logits) -> None:
        """Sample 1 to len(draft) + 1 tokens from logits of shape (len(draft) + 1, vocab_size)."""
        sequence, draft = result.sequence, result.draft[: result.num_verified]
        request, position = sequence.request, len(sequence.tokens)
        noted: list[TokenLogprob] = []
        note = (
            _note_into(noted, sequence, rows, position)
            if request.num_logprobs is not None
            else None
        )
        emitted = emit(sequence.sampler, rows, draft, position, sequence.end_tokens, note)
        # all but the last; the last too if the turn ended inside the draft
        num_drafted = len(emitted) - 1
        num_drafted += num_drafted < len(draft) and emitted[-1] == draft[num_drafted]
        result.emitted, result.num_accepted = tuple(emitted), num_drafted
        result.logprobs = tuple(noted)

    def _write(self, result: SequencePlan, now: float) -> None:
        """Append the tokens to the text, up to where it ends, and truncate the cache to it."""
        sequence = result.sequence
        if sequence.first_token is None:
            sequence.first_token = now
        result.text, num_kept = self._feed_stops(sequence, result.emitted, now)
        if num_kept < len(result.emitted):
            result.emitted = result.emitted[:num_kept]
            result.num_accepted = min(result.num_accepted, num_kept)
            result.logprobs = result.logprobs[:num_kept]
        tokens = sequence.tokens
        tokens.grow(result.emitted)
        if sequence.text_tokens is not tokens:
            sequence.text_tokens.grow(result.emitted)
            sequence.model_tokens.grow(result.emitted)
        self._cache.cut(sequence, len(tokens) - 1)
        if self._most_again:
            num_again = sequence.num_pending - 1
            is_kept = sequence.num_decoded == result.start and num_again <= self._most_again
            sequence.num_again = num_again if is_kept else 0

    def _feed_stops(
        self, sequence: Sequence, emitted: tuple[int, ...], now: float
    ) -> tuple[bytes, int]:
        """Text that certainly belongs to the answer, and the number of tokens until it ends."""
        request, stop = sequence.request, sequence.stop
        is_late = request.max_seconds is not None and _is_late(sequence, now)
        if not request.stop and not request.min_indent and not is_late:
            if not request.shown_tokens:
                return b"".join(map(self._vocab.token_bytes, emitted)), len(emitted)
            return b"".join(self._shown(sequence, token) for token in emitted), len(emitted)
        shown = []
        for index, token in enumerate(emitted):
            shown.append(stop.feed(self._shown(sequence, token)))
            if stop.is_over or (is_late and self._ends_line(token)):
                return b"".join(shown), index + 1
        return b"".join(shown), len(emitted)

    def _shown(self, sequence: Sequence, token: int) -> bytes:
        """Bytes of a token as the client sees them."""
        is_spelled = token in sequence.request.shown_tokens
        return self._vocab.token_text(token) if is_spelled else self._vocab.token_bytes(token)

    def _end(self, sequence: Sequence, last: int, now: float) -> End | None:
        """Why the request ends after this token, or None."""
        if sequence.stop.found:
            return End(sequence, "word")
        if last in sequence.end_tokens or (sequence.legality and sequence.legality.is_over):
            return End(sequence, "eos")
        if sequence.num_left <= 0 or sequence.stop.is_over:  # without `found`: by its indent
            return End(sequence, "length")
        if len(sequence.tokens) >= self._engine.context_size and not self._shift(sequence):
            return End(sequence, "length", is_truncated=True)
        if sequence.request.max_seconds is None or not _is_late(sequence, now):
            return None
        return End(sequence, "length") if self._ends_line(last) else None

    def _shift(self, sequence: Sequence) -> bool:
        """Shift the context if the server allows it; speculators start over after that."""
        if not self._shifts_context:
            return False
        text = sequence.packed
        if not shift_context(sequence, self._engine, self._vocab):
            return False
        self._cache.offloading.store.lose(sequence.prompt_namespace, text)
        self._drafting.end(sequence)
        return True

    def _ends_line(self, token: int) -> bool:
        return b"\n" in self._vocab.token_bytes(token)


def _is_late(sequence: Sequence, now: float) -> bool:
    """Whether its time is up. As in llama-server it then ends with its current line, not inside a
    word.
    """
    limit, first = sequence.request.max_seconds, sequence.first_token
    return limit is not None and first is not None and now - first > limit


def _score(sequence: Sequence, logits: Logits, start: int, end: int) -> tuple[TokenLogprob, ...]:
    """Log probabilities of the prompt tokens that follow those from `start` to `end`.

    The prompt's last row predicts the answer, so it is excluded. After preemption the prompt is
    decoded again, but its scores are not reported again.
    """
    prompt, num_top = sequence.request.prompt, sequence.request.num_logprobs or 0
    scores: list[TokenLogprob] = []
    for row, following in enumerate(range(start + 1, min(end + 1, len(prompt)))):
        if following > sequence.num_scored:
            token = int(prompt[following])
            scores.append(token_logprobs(logits[row], token, num_top))
            sequence.num_scored = following
    return tuple(scores)


def _note_into(
    logprobs: list[TokenLogprob], sequence: Sequence, logits: Logits, position: int
) -> Note:
    """Returns a callback that records log probabilities before the sampler consumes the token."""
    request, sampler = sequence.request, sequence.sampler
    num_top = request.num_logprobs or 0

    def note(row: int, token: int, legal: NDArray[np.bool_] | None) -> None:
        if request.post_sampling_probs:
            left = sampler.probabilities(logits[row], position + row, legal)
            logprobs.append(filtered_logprobs(*left, token, num_top))
        else:
            logprobs.append(token_logprobs(logits[row], token, num_top))

    return note
