"""A smaller model drafts, for all sequences in one batch per token.

It may draft with the request's own random numbers ("coupled": when the two models nearly agree,
they draw the same token) or its likeliest token ("argmax"); the one that is accepted more is used.
A model of another vocabulary drafts through a `VocabularyBridge`.

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

from headstart.errors import ConfigError
from headstart.speculators.base import Speculator, register
from headstart.structures.prefix import common_prefix_length
from headstart.types import NO_DRAFT, Batch, ContextFullError, Draft, DraftRequest, Engine
from headstart.vocabulary.bridge import VocabularyBridge
from headstart.vocabulary.voice import Growth, Voice, make_voice

_SAMPLE, _SAMPLES = 64, 2  # tokens read to time reading, and how often ...
_SAMPLE_SECONDS = 1.5  # ... unless that takes longer


@dataclass(slots=True)
class _Line:
    """One sequence in the draft model's cache, in the draft model's own tokens.

    tokens[0 : synced]       equal the history
    tokens[synced : ]        drafted earlier; compared with the history before they are used
    """

    voice: Voice
    tokens: list[int] = field(default_factory=list)
    synced: int = 0
    num_history: int = 0  # target tokens of the history, as far as accepted
    num_heard: int = 0  # of them, told to the voice; what it heard beyond may be a draft that was rejected
    num_read: int = 0  # of them, in the cache; an estimate where the vocabularies differ
    is_new: bool = True  # nothing was drafted for this request yet
    last_used: int = 0  # number of the call
    start: int = 0  # where the last draft began: beyond the history if it continued another's draft
    last: Growth | None = None  # the last draft
    is_open: bool = False


@register
class DraftModelSpeculator(Speculator):
    """Drafts with a second model. Its cache catches up with the history without decoding twice."""

    name = "draft-model"
    scores_are_probabilities = True
    is_model = True

    @dataclass(frozen=True, slots=True)
    class Options:
        """How it drafts."""

        sampling: str = "auto"  # auto, coupled or argmax; as --draft-sampling
        catch_up: int = 256  # most history tokens read in one step, so that others do not wait

        def __post_init__(self) -> None:
            if self.sampling not in ("auto", "coupled", "argmax") or self.catch_up < 1:
                raise ConfigError(
                    "draft-model needs sampling auto, coupled or argmax and catch-up >= 1, "
                    f"got {self.sampling!r} and {self.catch_up}"
                )

    def __init__(self, engine: Engine, options: Options | None = None, bridge: VocabularyBridge | None = None) -> None:
        """Draft with `engine`; without a bridge its token ids are the target's."""
        self.engine = engine
        self.options = options or self.Options()
        self.num_decoded = 0  # rows
        self._bridge = bridge
        self._make_voice = make_voice(bridge, self.options.sampling)
        self._lines: dict[int, _Line] = {}
        self._num_calls = 0
        self._batch = Batch(engine.max_batch_tokens)

    def begin(self, seq_id: int, prompt: Sequence[int], namespace: str = "") -> None:
        """Nothing is read or translated yet: perhaps no draft will be asked for."""
        line = self._line(seq_id)
        line.is_open, line.is_new, line.num_history = True, True, len(prompt)
        line.num_read = max(
            min(other.num_read, common_prefix_length(other.voice.heard(other.tokens), prompt))
            for other in self._lines.values()
        )

    def _share(self, seq_id: int, line: _Line, history: Sequence[int]) -> None:
        """Take over what another sequence already decoded of this history, if it is more."""
        line.is_new = False
        line.synced = common_prefix_length(line.tokens, history)
        for other_id, other in self._lines.items():
            shared = common_prefix_length(other.tokens, history)
            if other_id != seq_id and shared > line.synced and self.engine.copy_prefix(other_id, seq_id, shared):
                line.tokens, line.synced = other.tokens[:shared], shared

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One decode per draft token for all requests together."""
        try:
            return self._propose(requests)
        except ContextFullError:
            for request in requests:
                line = self._line(request.seq_id)
                line.num_read = min(line.num_read, len(line.tokens))
            self._make_room({r.seq_id for r in requests})
            return [Draft(reason="draft context full", is_ready=False)] * len(requests)

    def _propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self._num_calls += 1
        speeches = [_Speech(r, self._line(r.seq_id)) for r in requests]
        room = max(self.options.catch_up, 2 * len(requests))
        for speech in speeches:
            self._prepare(speech, room)
        for speech in sorted(speeches, key=lambda s: s.num_unread):  # who reads a prompt does not hold up the others
            self._read(speech, room)
            room -= len(speech.pending)
        while active := [s for s in speeches if s.is_active]:
            for speech, logits in zip(active, self._decode(active), strict=True):
                speech.extend(logits)
        return [s.finish(self.name) for s in speeches]

    def _prepare(self, speech: _Speech, room: int) -> None:
        """Cut the cache to what it shares with the history; of the rest, up to `room` tokens are pending."""
        request, line = speech.request, speech.line
        line.last_used = self._num_calls
        is_new = line.is_new
        history = line.voice.listen(request.tokens, 0 if is_new else min(line.num_heard, len(request.tokens)))
        line.num_heard = line.num_history
        if is_new:
            self._share(request.seq_id, line, history)
        known = min(line.synced, line.voice.num_stable, len(line.tokens))
        shared = min(common_prefix_length(line.tokens, history, known), len(history) - 1)
        line.last, line.start = None, len(request.tokens)
        if shared < 0 or not line.voice.can_draft:
            speech.reason = "draft model has no text to continue"
            return
        if shared < len(line.tokens):
            self.engine.truncate(request.seq_id, shared)
            del line.tokens[shared:]
        line.synced = shared if len(request.tokens) == line.num_history else min(line.synced, shared)
        limit = min(line.voice.num_draft_tokens(request.max_tokens), self.engine.context_size - len(history))
        if limit <= 0:
            speech.reason = "draft context full"
            return
        speech.growth = line.last = line.voice.begin(request, limit)
        speech.num_unread = len(history) - shared
        speech.pending = list(history[shared : shared + room])
        line.num_read = len(request.tokens)

    def _read(self, speech: _Speech, room: int) -> None:
        """If not all that is pending fits into this call, read a part and draft another time."""
        line, num_unread = speech.line, speech.num_unread
        if num_unread <= room:
            return
        speech.reason = "draft model is reading the prompt"
        del speech.pending[max(0, room) :]
        if speech.pending:
            self._decode([speech])
        num_known = len(line.tokens)
        line.num_read = line.num_read * num_known // (num_known + num_unread - len(speech.pending))

    def _decode(self, active: Sequence[_Speech]) -> NDArray[np.float32]:
        """Decode what is pending; one row of logits for each that is still drafting."""
        batch = self._batch
        batch.clear()
        for speech in active:
            position = len(speech.line.tokens)
            batch.add(speech.request.seq_id, position, speech.pending, 0 if speech.reason else 1)
        logits = self.engine.decode(batch)
        self.num_decoded += batch.num_rows
        for speech in active:
            line = speech.line
            line.tokens += speech.pending
            if not speech.has_begun and len(speech.request.tokens) == line.num_history:
                line.synced = len(line.tokens)
        return logits

    def backlog(self, seq_id: int, history: Sequence[int]) -> int:
        line = self._lines.get(seq_id)
        return max(0, len(history) - 1 - (line.num_read if line else 0))

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        """Let the voice learn which way of picking tokens is accepted."""
        line = self._lines.get(seq_id)
        if line is None:
            return
        offset = line.start - line.num_history  # tokens of the draft that this one continued
        num_right = num_accepted  # of what was read; others may have drafted what was accepted
        if line.last is not None and offset <= num_accepted:
            num_right = min(num_right, offset + line.last.num_right(emitted[offset:]))
        line.num_read = min(line.num_read, line.num_history + num_right)
        line.num_history += len(emitted)
        if line.last is not None and offset <= num_accepted:
            line.last.learn(emitted[offset:])
        line.last = None

    def end(self, seq_id: int) -> None:
        """Keep the cache: the next turn of a chat starts with it."""
        if line := self._lines.get(seq_id):
            line.is_open, line.last = False, None

    def _line(self, seq_id: int) -> _Line:
        line = self._lines.get(seq_id)
        if line is None:
            line = self._lines[seq_id] = _Line(self._make_voice())
        return line

    def _make_room(self, busy: set[int]) -> None:
        """Forget the closed sequences that were used longest ago; if there are none, all (they catch up again)."""
        closed = [s for s, line in self._lines.items() if not line.is_open and line.tokens and s not in busy]
        closed.sort(key=lambda seq_id: self._lines[seq_id].last_used)
        for seq_id in closed[: len(closed) // 2 + 1] or list(self._lines):
            line = self._lines[seq_id]
            self.engine.clear(seq_id)
            line.tokens.clear()
            line.synced = line.num_read = 0

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
        vocabulary = "identical" if self._bridge is None else self._bridge.describe()
        way = "identical" if self._bridge is None else self._bridge.way.value
        return {
            "sampling": self.options.sampling,
            "rows_decoded": self.num_decoded,
            "way": way,
            "vocabulary": vocabulary,
        }


@dataclass(slots=True)
class _Speech:
    """One request's draft while it grows."""

    request: DraftRequest
    line: _Line
    growth: Growth | None = None  # of this draft; None where there can be none
    num_unread: int = 0  # tokens of the history that the cache does not have
    pending: list[int] = field(default_factory=list)  # to decode next
    reason: str = ""  # why there is no draft

    @property
    def is_active(self) -> bool:
        growth = self.growth
        return growth is not None and not self.reason and bool(self.pending) and len(growth.tokens) < growth.limit

    @property
    def has_begun(self) -> bool:
        """Whether it has a token."""
        return self.growth is not None and bool(self.growth.tokens)

    def extend(self, logits: NDArray[np.float32]) -> None:
        """Pick the next token from the row after the last one; none ends the draft."""
        token = None if self.growth is None else self.growth.extend(logits, self.request.min_confidence)
        self.pending = [] if token is None else [token]

    def finish(self, name: str) -> Draft:
        if self.growth is None or self.reason:
            return Draft(reason=self.reason, is_ready=False)
        tokens, confidence = self.growth.finish()
        if not tokens:
            return NO_DRAFT if self.has_begun else Draft(reason="draft model is unsure")
        self.line.num_read += len(tokens) - 1  # of the draft all but the last, if they are accepted
        return Draft(tokens, confidence, name)
