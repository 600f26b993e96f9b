"""A smaller model of the same vocabulary drafts, for all sequences in one batch per token.

It may draft with the request's own random numbers ("coupled": when the two models nearly agree,
they draw the same token) or its likeliest token ("argmax"). Both choices of every row are compared
with what the target emitted, so the better one is known without trials.

Source: Leviathan et al. 2023, https://arxiv.org/abs/2211.17192 (draft models);
Daliri et al. 2024, https://arxiv.org/abs/2408.07978 (coupling).
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
from headstart.types import NO_DRAFT, Batch, Choice, ContextFullError, Draft, DraftRequest, Engine

_DECAY = 0.98  # of the record of coupled against argmax, per compared token


@dataclass(slots=True)
class _Line:
    """One sequence in the draft model's cache.

    tokens[0 : synced]       equal the history
    tokens[synced : ]        drafted earlier; compared with the history before they are used
    """

    tokens: list[int] = field(default_factory=list)
    synced: int = 0
    num_history: int = 0  # tokens of the history, as far as accepted
    start: int = 0  # where the last draft began: beyond the history if it continued another's draft
    choices: list[Choice] = field(default_factory=list)  # of the last draft, one per draft token
    drafted: list[int] = field(default_factory=list)
    is_open: bool = False


@register
class DraftModelSpeculator(Speculator):
    """Drafts with a second model. Its cache catches up with the history without decoding twice."""

    name = "draft-model"
    is_model = True

    @dataclass(frozen=True, slots=True)
    class Options:
        """How it drafts."""

        sampling: str = "auto"  # "coupled" shares the request's noise, "argmax" takes the likeliest token
        catch_up: int = 256  # most history tokens decoded in one step, so that others do not wait

        def __post_init__(self) -> None:
            if self.sampling not in ("auto", "coupled", "argmax") or self.catch_up < 1:
                raise ConfigError(
                    "draft-model needs sampling auto, coupled or argmax and catch-up >= 1, "
                    f"got {self.sampling!r} and {self.catch_up}"
                )

    def __init__(self, engine: Engine, options: Options | None = None) -> None:
        self.engine = engine
        self.options = options or self.Options()
        self.num_decoded = 0  # rows, for tests and /props
        self._lines: dict[int, _Line] = {}
        self._batch = Batch(engine.max_batch_tokens)
        self._hits = {"coupled": 1.0, "argmax": 1.0}

    def begin(self, seq_id: int, prompt: Sequence[int], namespace: str = "") -> None:
        """Take over what another sequence already decoded of this prompt, if it is more."""
        line = self._lines.setdefault(seq_id, _Line())
        line.is_open, line.synced, line.num_history = True, 0, len(prompt)
        own = common_prefix_length(line.tokens, prompt)
        for other_id, other in self._lines.items():
            shared = common_prefix_length(other.tokens, prompt)
            if other_id != seq_id and shared > own and self.engine.copy_prefix(other_id, seq_id, shared):
                line.tokens, own = other.tokens[:shared], shared

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One decode per draft token for all requests together."""
        try:
            return self._propose(requests)
        except ContextFullError:
            self._make_room({r.seq_id for r in requests})
            return [Draft(reason="draft context full")] * len(requests)

    def _propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = [_Growing(r, self._lines.setdefault(r.seq_id, _Line())) for r in requests]
        room = max(self.options.catch_up, 2 * len(requests))
        for growing in drafts:
            room -= self._catch_up(growing, room)
        while active := [g for g in drafts if g.is_active]:
            for growing, logits in zip(active, self._decode(active), strict=True):
                self._extend(growing, logits)
        return [g.finish(self.name) for g in drafts]

    def _catch_up(self, growing: _Growing, room: int) -> int:
        """Cut the cache to what it shares with the history and queue the rest; returns rows queued."""
        request, line = growing.request, growing.line
        history = request.tokens
        shared = common_prefix_length(line.tokens, history, min(line.synced, len(line.tokens)))
        shared = min(shared, len(history) - 1)  # the last token has to be decoded for its logits
        if shared < len(line.tokens):
            self.engine.truncate(request.seq_id, shared)
            del line.tokens[shared:]
        line.synced = min(shared, line.num_history)
        line.choices, line.drafted, line.start = [], [], len(history)
        growing.limit = min(request.max_tokens, self.engine.context_size - len(history))
        if growing.limit <= 0:
            growing.reason = "draft context full"
            return 0
        growing.pending = list(history[shared : shared + max(0, room)])
        if shared + len(growing.pending) < len(history):
            growing.reason = "draft model is reading the prompt"
            if growing.pending:
                self._decode([growing])
        return len(growing.pending)

    def _decode(self, active: Sequence[_Growing]) -> NDArray[np.float32]:
        """Decode what is pending; one row of logits for each that is still drafting."""
        batch = self._batch
        batch.clear()
        for growing in active:
            position = len(growing.line.tokens)
            batch.add(growing.request.seq_id, position, growing.pending, 0 if growing.reason else 1)
        logits = self.engine.decode(batch)
        self.num_decoded += batch.num_rows
        for growing in active:
            growing.line.tokens += growing.pending
            if not growing.tokens:
                growing.line.synced = min(len(growing.line.tokens), growing.line.num_history)
        return logits

    def _extend(self, growing: _Growing, logits: NDArray[np.float32]) -> None:
        """Append the next draft token, or stop if it is too unlikely."""
        request = growing.request
        if request.choose is None:
            best = int(logits.argmax())
            probability = 1.0 / float(np.exp(logits - logits[best]).sum())
            choice = Choice(best, probability, best, probability)
        else:
            choice = request.choose(logits, len(request.tokens) + len(growing.tokens))
        token, confidence = choice.argmax, choice.argmax_probability
        if self._couples():
            token, confidence = choice.coupled, choice.coupled_probability
        if confidence < request.min_confidence:
            growing.reason = "" if growing.tokens else "draft model is unsure"
            growing.is_done = True
            return
        growing.tokens.append(token)
        growing.confidence.append(confidence)
        growing.pending = [token]
        growing.line.choices.append(choice)
        growing.line.drafted.append(token)

    def _couples(self) -> bool:
        if self.options.sampling == "auto":
            return self._hits["coupled"] >= self._hits["argmax"]
        return self.options.sampling == "coupled"

    def backlog(self, seq_id: int, history: Sequence[int]) -> int:
        line = self._lines.get(seq_id)
        return len(history) - 1 - (min(len(line.tokens), len(history) - 1) if line else 0)

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        """Compare both choices of every row that had the right history before it."""
        line = self._lines.get(seq_id)
        if line is None:
            return
        offset = line.start - line.num_history  # tokens of the draft that this one continued
        line.num_history += len(emitted)
        if offset <= num_accepted:
            for token, drafted, choice in zip(emitted[offset:], line.drafted, line.choices, strict=False):
                if choice.coupled != choice.argmax:
                    self._hits = {name: value * _DECAY for name, value in self._hits.items()}
                    self._hits["coupled"] += token == choice.coupled
                    self._hits["argmax"] += token == choice.argmax
                if token != drafted:
                    break
        line.choices, line.drafted = [], []

    def end(self, seq_id: int) -> None:
        """Keep the cache: the next turn of a chat starts with it."""
        if line := self._lines.get(seq_id):
            line.is_open, line.choices, line.drafted = False, [], []

    def _make_room(self, busy: set[int]) -> None:
        """Forget closed sequences; if there are none, all (they catch up again later)."""
        closed = [s for s, line in self._lines.items() if not line.is_open and line.tokens and s not in busy]
        for seq_id in closed or list(self._lines):
            self.engine.clear(seq_id)
            self._lines[seq_id].tokens.clear()
            self._lines[seq_id].synced = 0

    def describe(self) -> dict[str, Any]:
        return {"sampling": self.options.sampling, "drafts_coupled": self._couples(), "rows_decoded": self.num_decoded}


@dataclass(slots=True)
class _Growing:
    """A draft while it grows."""

    request: DraftRequest
    line: _Line
    limit: int = 0
    pending: list[int] = field(default_factory=list)  # to decode next
    tokens: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    reason: str = ""
    is_done: bool = False

    @property
    def is_active(self) -> bool:
        return not self.is_done and not self.reason and len(self.tokens) < self.limit

    def finish(self, name: str) -> Draft:
        if self.tokens:
            return Draft(self.tokens, self.confidence, name)
        return Draft(reason=self.reason) if self.reason else NO_DRAFT
