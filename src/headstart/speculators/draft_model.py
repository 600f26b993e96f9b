"""A smaller model drafts, for all sequences in one batch per token.

It may draft with the request's own random numbers ("coupled": when the two models nearly agree,
they draw the same token) or its likeliest token ("argmax"); the one that is accepted more is used.
A model of another vocabulary drafts through a `VocabularyBridge`.

Source: Leviathan et al. 2023, https://arxiv.org/abs/2211.17192 (draft models);
Daliri et al. 2024, https://arxiv.org/abs/2408.07978 (coupling);
Timor et al. 2025, https://arxiv.org/abs/2502.05202 (other vocabularies).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import ConfigError
from headstart.speculators.base import Speculator, register
from headstart.structures.prefix import common_prefix_length
from headstart.types import NO_DRAFT, Batch, ContextFullError, Draft, DraftRequest, Engine
from headstart.vocabulary.bridge import VocabularyBridge
from headstart.vocabulary.voice import Growth, Voice, make_voice


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
        self._batch = Batch(engine.max_batch_tokens)

    def begin(self, seq_id: int, prompt: Sequence[int], namespace: str = "") -> None:
        """Take over what another sequence already decoded of this prompt, if it is more."""
        line = self._line(seq_id)
        line.is_open, line.num_history = True, len(prompt)
        history = line.voice.listen(prompt, 0)
        line.synced = common_prefix_length(line.tokens, history)
        if line.synced < len(line.tokens):  # of another text: `backlog` must not count it as read
            self.engine.truncate(seq_id, line.synced)
            del line.tokens[line.synced :]
        for other_id, other in self._lines.items():
            shared = common_prefix_length(other.tokens, history)
            if other_id != seq_id and shared > line.synced and self.engine.copy_prefix(other_id, seq_id, shared):
                line.tokens, line.synced = other.tokens[:shared], shared

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One decode per draft token for all requests together."""
        try:
            return self._propose(requests)
        except ContextFullError:
            self._make_room({r.seq_id for r in requests})
            return [Draft(reason="draft context full")] * len(requests)

    def _propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        speeches = [_Speech(r, self._line(r.seq_id)) for r in requests]
        room = max(self.options.catch_up, 2 * len(requests))
        for speech in speeches:
            room -= self._catch_up(speech, room)
        while active := [s for s in speeches if s.is_active]:
            for speech, logits in zip(active, self._decode(active), strict=True):
                speech.extend(logits)
        return [s.finish(self.name) for s in speeches]

    def _catch_up(self, speech: _Speech, room: int) -> int:
        """Cut the cache to what it shares with the history and queue the rest; returns rows queued."""
        request, line = speech.request, speech.line
        history = line.voice.listen(request.tokens, min(line.num_history, len(request.tokens)))
        known = min(line.synced, line.voice.num_stable, len(line.tokens))
        shared = min(common_prefix_length(line.tokens, history, known), len(history) - 1)
        line.last, line.start = None, len(request.tokens)
        if shared < 0 or not line.voice.can_draft:
            speech.reason = "draft model has no text to continue"
            return 0
        if shared < len(line.tokens):
            self.engine.truncate(request.seq_id, shared)
            del line.tokens[shared:]
        line.synced = shared if len(request.tokens) == line.num_history else min(line.synced, shared)
        limit = min(line.voice.num_draft_tokens(request.max_tokens), self.engine.context_size - len(history))
        if limit <= 0:
            speech.reason = "draft context full"
            return 0
        speech.growth = line.last = line.voice.begin(request, limit)
        speech.pending = list(history[shared : shared + max(0, room)])
        if shared + len(speech.pending) < len(history):
            speech.reason = "draft model is reading the prompt"
            if speech.pending:
                self._decode([speech])
        return len(speech.pending)

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
        return max(0, len(history) - 1 - (len(line.tokens) if line else 0))

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        """Let the voice learn which way of picking tokens is accepted."""
        line = self._lines.get(seq_id)
        if line is None:
            return
        offset = line.start - line.num_history  # tokens of the draft that this one continued
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
        """Forget closed sequences; if there are none, all (they catch up again later)."""
        closed = [s for s, line in self._lines.items() if not line.is_open and line.tokens and s not in busy]
        for seq_id in closed or list(self._lines):
            self.engine.clear(seq_id)
            self._lines[seq_id].tokens.clear()
            self._lines[seq_id].synced = 0

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
            return Draft(reason=self.reason)
        tokens, confidence = self.growth.finish()
        if not tokens:
            return NO_DRAFT if self.has_begun else Draft(reason="draft model is unsure")
        return Draft(tokens, confidence, name)
