"""A smaller model drafts, for all sequences in one batch per token.

It may draft with the request's own random numbers ("coupled": when the two models nearly agree,
they draw the same token) or its likeliest token ("argmax"); the one that is accepted more is used.
A model of another vocabulary drafts through a `VocabularyTranslator`.

Source: Leviathan et al. 2023, https://arxiv.org/abs/2211.17192 (draft models);
Daliri et al. 2024, https://arxiv.org/abs/2408.07978 (coupling);
Timor et al. 2025, https://arxiv.org/abs/2502.05202 (other vocabularies).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.config import option
from headstart.errors import ConfigError
from headstart.speculators.base import Speculator, register
from headstart.structures.prefix import common_prefix_length
from headstart.types import NO_DRAFT, Batch, ContextFullError, Draft, DraftRequest, Engine
from headstart.vocabulary.draft_tokenizer import DraftBuilder, DraftTokenizer, make_draft_tokenizer
from headstart.vocabulary.vocabulary_translator import VocabularyTranslator

_SAMPLE, _SAMPLES = 64, 2  # tokens read to time reading, and how often ...
_SAMPLE_SECONDS = 1.5  # ... unless that takes longer


@dataclass(slots=True)
class _CachedSequence:
    """One sequence in the draft model's cache, in the draft model's own tokens.

    tokens[0 : synced]       equal the history
    tokens[synced : ]        drafted earlier; compared with the history before they are used
    """

    tokenizer: DraftTokenizer
    tokens: list[int] = field(default_factory=list)
    synced: int = 0
    num_history: int = 0  # target tokens of the history, as far as accepted
    # of them, given to the tokenizer; what it was given beyond may be a rejected draft
    num_translated: int = 0
    num_caught_up: int = 0  # of them, in the cache; an estimate where the vocabularies differ
    is_new: bool = True  # nothing was drafted for this request yet
    last_used: int = 0  # number of the call
    start: int = 0  # where the last draft began: beyond the history if it continued another's draft
    last: DraftBuilder | None = None  # the last draft
    is_open: bool = False


@register
class DraftModelSpeculator(Speculator):
    """Drafts with a second model. Its cache catches up with the history without decoding twice."""

    name = "draft-model"
    scores_are_probabilities = True
    is_model = True
    needs_draft_model = True

    @dataclass(frozen=True, slots=True)
    class Options:
        """How it drafts."""

        sampling: str = option(
            "auto",
            "how a draft model picks: coupled shares the request's random numbers, argmax takes "
            "the likeliest, auto uses what was accepted more",
            "--draft-sampling",
            choices=("auto", "coupled", "argmax"),
        )
        catch_up: int = 256  # maximum history tokens read in one step, so that others do not wait

        def __post_init__(self) -> None:
            if self.sampling not in ("auto", "coupled", "argmax") or self.catch_up < 1:
                raise ConfigError(
                    "draft-model needs sampling auto, coupled or argmax and catch-up >= 1, "
                    f"got {self.sampling!r} and {self.catch_up}"
                )

    def __init__(
        self,
        engine: Engine,
        options: Options | None = None,
        translator: VocabularyTranslator | None = None,
    ) -> None:
        """Draft with `engine`; without a translator its token ids are the target's."""
        self.engine = engine
        self.options = options or self.Options()
        self.num_decoded = 0  # rows
        self._translator = translator
        self._make_tokenizer = make_draft_tokenizer(translator, self.options.sampling)
        self._sequences: dict[int, _CachedSequence] = {}
        self._num_calls = 0
        self._batch = Batch(engine.max_batch_tokens)

    def begin(self, seq_id: int, prompt: Sequence[int], namespace: str = "") -> None:
        """Nothing is read or translated yet: perhaps no draft will be asked for."""
        sequence = self._sequence(seq_id)
        sequence.is_open, sequence.is_new, sequence.num_history = True, True, len(prompt)
        sequence.num_caught_up = max(
            min(
                other.num_caught_up,
                common_prefix_length(other.tokenizer.to_target_tokens(other.tokens), prompt),
            )
            for other in self._sequences.values()
        )

    def _share(self, seq_id: int, sequence: _CachedSequence, history: Sequence[int]) -> None:
        """Take over what another sequence already decoded of this history, if it is more."""
        sequence.is_new = False
        sequence.synced = common_prefix_length(sequence.tokens, history)
        for other_id, other in self._sequences.items():
            shared = common_prefix_length(other.tokens, history)
            if (
                other_id != seq_id
                and shared > sequence.synced
                and self.engine.copy_prefix(other_id, seq_id, shared)
            ):
                sequence.tokens, sequence.synced = other.tokens[:shared], shared

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One decode per draft token for all requests together."""
        try:
            return self._propose(requests)
        except ContextFullError:
            for request in requests:
                sequence = self._sequence(request.seq_id)
                sequence.num_caught_up = min(sequence.num_caught_up, len(sequence.tokens))
            self._make_room({r.seq_id for r in requests})
            return [Draft(reason="draft context full", is_ready=False)] * len(requests)

    def _propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self._num_calls += 1
        drafts = [_DraftInProgress(r, self._sequence(r.seq_id)) for r in requests]
        room = max(self.options.catch_up, 2 * len(requests))
        for drafting in drafts:
            self._prepare(drafting, room)
        # who reads a prompt does not hold up the others
        for drafting in sorted(drafts, key=lambda s: s.num_catch_up):
            self._catch_up(drafting, room)
            room -= len(drafting.pending)
        while active := [s for s in drafts if s.is_active]:
            for drafting, logits in zip(active, self._decode(active), strict=True):
                drafting.extend(logits)
        return [s.finish(self.name) for s in drafts]

    def _prepare(self, drafting: _DraftInProgress, room: int) -> None:
        """Cut the cache to what it shares with the history; of the rest, up to `room` tokens are
        pending.
        """
        request, sequence = drafting.request, drafting.sequence
        sequence.last_used = self._num_calls
        is_new = sequence.is_new
        history = sequence.tokenizer.to_draft_tokens(
            request.tokens, 0 if is_new else min(sequence.num_translated, len(request.tokens))
        )
        sequence.num_translated = sequence.num_history
        if is_new:
            self._share(request.seq_id, sequence, history)
        known = min(sequence.synced, sequence.tokenizer.num_stable, len(sequence.tokens))
        shared = min(common_prefix_length(sequence.tokens, history, known), len(history) - 1)
        sequence.last, sequence.start = None, len(request.tokens)
        if shared < 0 or not sequence.tokenizer.can_draft:
            drafting.reason = "draft model has no text to continue"
            return
        if shared < len(sequence.tokens):
            self.engine.truncate(request.seq_id, shared)
            del sequence.tokens[shared:]
        sequence.synced = (
            shared if len(request.tokens) == sequence.num_history else min(sequence.synced, shared)
        )
        limit = min(
            sequence.tokenizer.num_draft_tokens(request.max_tokens),
            self.engine.context_size - len(history),
        )
        if limit <= 0:
            drafting.reason = "draft context full"
            return
        drafting.builder = sequence.last = sequence.tokenizer.begin(request, limit)
        drafting.num_catch_up = len(history) - shared
        drafting.pending = list(history[shared : shared + room])
        sequence.num_caught_up = len(request.tokens)

    def _catch_up(self, drafting: _DraftInProgress, room: int) -> None:
        """If not all that is pending fits into this call, read a part and draft another time."""
        sequence, num_catch_up = drafting.sequence, drafting.num_catch_up
        if num_catch_up <= room:
            return
        drafting.reason = "draft model is reading the prompt"
        del drafting.pending[max(0, room) :]
        if drafting.pending:
            self._decode([drafting])
        num_known = len(sequence.tokens)
        sequence.num_caught_up = (
            sequence.num_caught_up * num_known // (num_known + num_catch_up - len(drafting.pending))
        )

    def picks(self, request: DraftRequest, start: int) -> list[int] | None:
        """Reads the text with an output for each row; it stays in the cache."""
        if self._translator is not None or request.legality is not None:
            return None
        tokens, sequence = request.tokens, self._sequence(request.seq_id)
        if sequence.is_new:
            self._share(request.seq_id, sequence, tokens)
        known = min(sequence.synced, len(sequence.tokens))
        shared = min(common_prefix_length(sequence.tokens, list(tokens), known), start - 1)
        if shared < len(sequence.tokens):
            self.engine.truncate(request.seq_id, shared)
        sequence.tokens = list(tokens[:shared])
        end = min(len(tokens) - 1, shared + self.options.catch_up)
        picks: list[int] = []
        try:
            while (at := len(sequence.tokens)) < end:
                picks += self._read(request, at, min(end, max(start - 1, at)), end)
        except ContextFullError:
            return None
        finally:
            sequence.synced = sequence.num_caught_up = len(sequence.tokens)
        return picks

    def _read(self, request: DraftRequest, at: int, output: int, end: int) -> list[int]:
        """One decode of tokens[at:], up to `end`; what it would pick behind each from `output`."""
        batch, sequence = self._batch, self._sequence(request.seq_id)
        end = min(end, at + batch.capacity, output + self.engine.max_outputs)
        num_outputs = max(0, end - output)
        batch.clear()
        batch.add(request.seq_id, at, request.tokens[at:end], num_outputs)
        logits = self.engine.decode(batch)
        self.num_decoded += batch.num_rows
        sequence.tokens += request.tokens[at:end]
        pick = sequence.tokenizer.pick
        picked = (pick(request, row, output + 1 + i) for i, row in enumerate(logits[:num_outputs]))
        return [-1 if token is None else token for token in picked]

    def _decode(self, active: Sequence[_DraftInProgress]) -> NDArray[np.float32]:
        """Decode what is pending; one row of logits for each that is still drafting."""
        batch = self._batch
        batch.clear()
        for drafting in active:
            position = len(drafting.sequence.tokens)
            batch.add(
                drafting.request.seq_id, position, drafting.pending, 0 if drafting.reason else 1
            )
        logits = self.engine.decode(batch)
        self.num_decoded += batch.num_rows
        for drafting in active:
            sequence = drafting.sequence
            sequence.tokens += drafting.pending
            if not drafting.has_begun and len(drafting.request.tokens) == sequence.num_history:
                sequence.synced = len(sequence.tokens)
        return logits

    def num_catch_up(self, seq_id: int, history: Sequence[int]) -> int:
        sequence = self._sequences.get(seq_id)
        return max(0, len(history) - 1 - (sequence.num_caught_up if sequence else 0))

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        """Let the tokenizer learn which way of picking tokens is accepted."""
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return
        # tokens of the draft that this one continued
        offset = sequence.start - sequence.num_history
        num_right = num_accepted  # of what was read; others may have drafted what was accepted
        if sequence.last is not None and offset <= num_accepted:
            num_right = min(num_right, offset + sequence.last.num_right(emitted[offset:]))
        sequence.num_caught_up = min(sequence.num_caught_up, sequence.num_history + num_right)
        sequence.num_history += len(emitted)
        if sequence.last is not None and offset <= num_accepted:
            sequence.last.learn(emitted[offset:])
        sequence.last = None

    def save_sequence(self, seq_id: int) -> bytes | bytearray | None:
        """The tokens in the draft model's cache, then the cache."""
        sequence = self._sequences.get(seq_id)
        if sequence is None or sequence.is_open or not sequence.tokens:
            return None
        tokens = np.array([len(sequence.tokens), *sequence.tokens], np.int32).tobytes()
        return tokens + bytes(self.engine.save_sequence(seq_id))

    def restore_sequence(self, seq_id: int, data: bytes | bytearray | memoryview) -> None:
        sequence, view = self._sequence(seq_id), memoryview(data)
        (length,) = np.frombuffer(view[:4], np.int32).tolist()
        end = 4 * (1 + length)
        if self.engine.restore_sequence(seq_id, view[end:]):
            sequence.tokens = np.frombuffer(view[4:end], np.int32).tolist()
        else:
            sequence.tokens = []
        sequence.synced = sequence.num_caught_up = len(sequence.tokens)

    def end(self, seq_id: int) -> None:
        """Keep the cache: the next turn of a chat starts with it."""
        if sequence := self._sequences.get(seq_id):
            sequence.is_open, sequence.last = False, None

    def _sequence(self, seq_id: int) -> _CachedSequence:
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            sequence = self._sequences[seq_id] = _CachedSequence(self._make_tokenizer())
        return sequence

    def _make_room(self, busy: set[int]) -> None:
        """Forget the closed sequences that were used longest ago; if there are none, all (they
        catch up again).
        """
        closed = [
            s
            for s, sequence in self._sequences.items()
            if not sequence.is_open and sequence.tokens and s not in busy
        ]
        closed.sort(key=lambda seq_id: self._sequences[seq_id].last_used)
        for seq_id in closed[: len(closed) // 2 + 1] or list(self._sequences):
            sequence = self._sequences[seq_id]
            self.engine.clear(seq_id)
            sequence.tokens.clear()
            sequence.synced = sequence.num_caught_up = 0

    def time_decodes(self, clock: Callable[[], float]) -> tuple[float, float] | None:
        size = min(_SAMPLE, self.engine.max_batch_tokens, self.engine.context_size)
        one, many, end = [], [], clock() + _SAMPLE_SECONDS
        for _ in range(1 + _SAMPLES):  # the first brings the weights into memory
            one.append(self._time_decode(1, clock))
            many.append(self._time_decode(size, clock))
            if clock() > end:
                break
        round_ms = median(one[1:] or one)
        return round_ms, max(0.0, median(many[1:] or many) - round_ms) / max(1, size - 1)

    def _time_decode(self, rows: int, clock: Callable[[], float]) -> float:
        started = clock()
        self._batch.clear()
        self._batch.add(0, 0, [0] * rows, 1)
        self.engine.decode(self._batch)
        self.engine.clear(0)
        return 1000.0 * (clock() - started)

    def describe(self) -> dict[str, Any]:
        vocabulary = "identical" if self._translator is None else self._translator.describe()
        mode = "identical" if self._translator is None else self._translator.mode.value
        return {
            "sampling": self.options.sampling,
            "rows_decoded": self.num_decoded,
            "mode": mode,
            "vocabulary": vocabulary,
        }


@dataclass(slots=True)
class _DraftInProgress:
    """One request's draft while it grows."""

    request: DraftRequest
    sequence: _CachedSequence
    builder: DraftBuilder | None = None  # of this draft; None where there can be none
    num_catch_up: int = 0  # tokens of the history that the cache does not have
    pending: list[int] = field(default_factory=list)  # to decode next
    reason: str = ""  # why there is no draft

    @property
    def is_active(self) -> bool:
        builder = self.builder
        return (
            builder is not None
            and not self.reason
            and bool(self.pending)
            and len(builder.tokens) < builder.limit
        )

    @property
    def has_begun(self) -> bool:
        """Whether it has a token."""
        return self.builder is not None and bool(self.builder.tokens)

    def extend(self, logits: NDArray[np.float32]) -> None:
        """Pick the next token from the row after the last one; none ends the draft."""
        token = (
            None
            if self.builder is None
            else self.builder.extend(logits, self.request.min_confidence)
        )
        self.pending = [] if token is None else [token]

    def finish(self, name: str) -> Draft:
        if self.builder is None or self.reason:
            return Draft(reason=self.reason, is_ready=False)
        tokens, confidence = self.builder.finish()
        stopped_at = self.builder.stopped_at
        if not tokens:
            if self.has_begun:
                return NO_DRAFT
            return Draft(reason="draft model is unsure", stopped_at=stopped_at)
        # of the draft all but the last, if they are accepted
        self.sequence.num_caught_up += len(tokens) - 1
        return Draft(tokens, confidence, name, stopped_at=stopped_at)
