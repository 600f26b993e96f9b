"""The target's own multi-token heads draft, for all sequences in one batch per token.

A head is one more layer that was trained with the model: from a token and the target's last state
before it, it predicts the token after. The first draft token comes of the target's state, the next
ones of what the head takes for it; where a model has several heads, each drafts one token.

Rows that the target has verified are read when the next draft is made, in the same decode; a prompt
that nobody drafts for is not read at all. Until then their states wait in main memory.

Source: DeepSeek-V3 2024, https://arxiv.org/abs/2412.19437, section 2.2; llama.cpp,
common/speculative.cpp
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
from headstart.structures.followed_caches import CONTEXT_FULL, FollowedCaches
from headstart.structures.state_batch import HeadContext
from headstart.structures.target_states import TargetStates
from headstart.types import (
    LAST_STATE,
    NO_DRAFT,
    Capability,
    ContextFullError,
    DecodedStates,
    Draft,
    DraftRequest,
)
from headstart.vocabulary.draft_tokenizer import DraftBuilder, make_draft_tokenizer

MERGED = 8  # verified rows read together with the first draft row; more are read without outputs
_READING = 256  # rows read in one call before a draft, so that others do not wait
_SAMPLE, _SAMPLES = 64, 2  # rows read to time reading, and how often
_MIB = 2**20


@register
class MtpSpeculator(Speculator):
    """Drafts with heads that read the target's hidden states."""

    name = "mtp"
    needs = frozenset({Capability.HIDDEN_STATES})
    scores_are_probabilities = True
    is_model = True
    continues_drafts = False  # the target has no states of tokens that it did not decode

    @dataclass(frozen=True, slots=True)
    class Options:
        """How it drafts."""

        sampling: str = option(
            "auto",
            "how multi-token heads pick, as with --draft-sampling",
            choices=("auto", "coupled", "argmax"),
        )
        waiting_mib: int = 64  # maximum MiB per slot of states that the heads have not read

        def __post_init__(self) -> None:
            if self.sampling not in ("auto", "coupled", "argmax") or self.waiting_mib < 1:
                raise ConfigError(
                    "mtp needs sampling auto, coupled or argmax and waiting-mib >= 1, "
                    f"got {self.sampling!r} and {self.waiting_mib}"
                )

    def __init__(self, heads: HeadContext, options: Options | None = None) -> None:
        self.heads = heads
        self.options = options or self.Options()
        self.state_layers = frozenset({LAST_STATE})
        most_waiting = max(_READING, self.options.waiting_mib * _MIB // (4 * heads.state_width))
        self.caches = FollowedCaches(heads, LAST_STATE, most_waiting)
        self._most_drafts = heads.engine.max_outputs // (1 + heads.num_heads)
        self._tokenizer = make_draft_tokenizer(None, self.options.sampling)()
        self._last: dict[int, DraftBuilder] = {}  # the last draft of each sequence
        self._num_calls = 0

    def observe_states(self, decoded: DecodedStates) -> None:
        self.caches.observe(decoded)

    def truncate(self, seq_id: int, length: int) -> None:
        self.caches.truncate(seq_id, length)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self.caches.copy_prefix(source, target, length)

    def checkpoint(self, seq_id: int) -> None:
        self.caches.sequence(seq_id).states.checkpoint()

    def num_resumable(self, seq_id: int, length: int) -> int:
        return self.caches.sequence(seq_id).states.num_resumable(length)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One decode per draft token for all requests together."""
        self._num_calls += 1
        drafts = [self._begin(request) for request in requests]
        for draft in [d for d in drafts if d.is_active][self._most_drafts :]:
            draft.fail("batch full")
        try:
            self._catch_up(drafts)
            step = 0
            while active := [draft for draft in drafts if draft.is_active]:
                self._extend(active, step)
                step += 1
        except ContextFullError:
            self.caches.make_room([request.seq_id for request in requests])
            for draft in drafts:
                draft.fail(CONTEXT_FULL)
        for draft in drafts:
            self.caches.cut(draft.request.seq_id)
            if draft.builder is not None:
                self._last[draft.request.seq_id] = draft.builder
        return [draft.finish(self.name) for draft in drafts]

    def num_catch_up(self, seq_id: int, history: Sequence[int]) -> int:
        """Verified rows that the first head has not read."""
        states = self.caches.sequence(seq_id).states
        return max(0, states.length - states.read[0])

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        """Let the tokenizer learn which way of picking tokens is accepted."""
        if (last := self._last.pop(seq_id, None)) is not None:
            last.learn(emitted)

    def save_sequence(self, seq_id: int) -> bytes | None:
        return self.caches.save(seq_id)

    def restore_sequence(self, seq_id: int, data: bytes | bytearray | memoryview) -> None:
        self.caches.restore(seq_id, data)

    def end(self, seq_id: int) -> None:
        """Keep the caches: the next turn of a chat starts with them."""
        self._last.pop(seq_id, None)

    def time_decodes(self, clock: Callable[[], float]) -> tuple[float, float] | None:
        engine = self.heads.engine
        size = min(_SAMPLE, engine.max_batch_tokens, engine.context_size)
        one, many = [], []
        for _ in range(1 + _SAMPLES):  # the first brings the weights into memory
            one.append(self._time_decode(1, clock))
            many.append(self._time_decode(size, clock))
        round_ms = median(one[1:])
        return round_ms, max(0.0, median(many[1:]) - round_ms) / max(1, size - 1)

    def describe(self) -> dict[str, Any]:
        known = [sequence.states for sequence in self.caches.sequences.values()]
        return {
            "heads": self.heads.num_heads,
            "sampling": self.options.sampling,
            "rows_decoded": self.caches.num_decoded,
            "waiting_states": sum(states.num_states for states in known),
            "missing_states": sum(states.num_missing for states in known),
            "lost": dict(self.caches.lost),
        }

    def _begin(self, request: DraftRequest) -> _DraftInProgress:
        sequence = self.caches.sequence(request.seq_id)
        sequence.last_used = self._num_calls
        states, length = sequence.states, len(request.tokens) - 1
        draft = _DraftInProgress(request, states)
        if states.length != length or not states.num_states:
            draft.fail("the target's states are missing")
            return draft
        limit = min(request.max_tokens, self.heads.engine.context_size - length - 1)
        if self.heads.num_heads > 1:
            limit = min(limit, self.heads.num_heads)
        if limit <= 0:
            draft.fail(CONTEXT_FULL)
            return draft
        states.settle()
        self.caches.cut(request.seq_id)
        draft.builder = self._tokenizer.begin(request, limit)
        return draft

    def _catch_up(self, drafts: Sequence[_DraftInProgress]) -> None:
        """Whoever has a long text to read does not hold up the others: it drafts another time."""
        room = max(_READING, 2 * MERGED * len(drafts))
        waiting = [(d.num_unread(0), d) for d in drafts if d.is_active]
        for num_rows, draft in sorted(waiting, key=lambda pair: pair[0]):
            if num_rows <= MERGED:
                continue
            if room > 0:
                self.caches.read(draft.request.seq_id, 0, room)
            room -= num_rows
            if draft.num_unread(0):
                draft.fail("heads are reading the prompt")

    def _extend(self, drafts: Sequence[_DraftInProgress], step: int) -> None:
        """One decode: the next token of each draft."""
        head = step if self.heads.num_heads > 1 else 0
        batch, is_first = self.caches.batch, step == 0 or head > 0
        most = MERGED if len(drafts) * (MERGED + 1 + head) <= self.heads.engine.max_outputs else 0
        for draft in drafts if is_first else ():
            if (num_rows := draft.num_unread(head)) > most:
                self.caches.read(draft.request.seq_id, head, num_rows)
        batch.clear()
        batch.head = head
        ends = [self._add(draft, head, is_first=is_first) for draft in drafts]
        batch.want_all()
        logits = self.caches.decode()
        rows = self.heads.outputs()
        for draft, end in zip(drafts, ends, strict=True):
            if is_first:
                draft.states.expect(draft.request.tokens[-1], head)
            draft.extend(logits[end - 1], rows[end - 1])

    def _add(self, draft: _DraftInProgress, head: int, *, is_first: bool) -> int:
        """The rows that this head lacks: verified ones, the newest token, and the draft so far.

        Returns where they end in the batch.
        """
        states, batch, seq_id = draft.states, self.caches.batch, draft.request.seq_id
        own, length = self.caches.id_of(seq_id, head), states.length
        tokens, guessed = draft.tokens, draft.guessed
        if is_first:
            start = states.read[head]
            states.count_missing(start)
            verified = [*states.tokens[start:length], draft.request.tokens[-1]]
            batch.add_rows(own, start, verified, states.before(start, length + 1))
        else:
            tokens, guessed = tokens[-1:], guessed[-1:]
        if tokens:
            start = length + 1 + len(draft.tokens) - len(tokens)
            batch.add_rows(own, start, tokens, np.stack(guessed))
        self.caches.sequence(seq_id).held[head] = length + 1 + len(draft.tokens)
        return batch.num_rows

    def _time_decode(self, rows: int, clock: Callable[[], float]) -> float:
        started, batch = clock(), self.caches.batch
        batch.clear()
        batch.head = 0
        batch.add_rows(0, 0, [0] * rows, np.zeros((rows, self.heads.state_width), np.float32))
        if rows == 1:
            batch.want_all()
        self.heads.engine.decode(batch)
        self.heads.engine.clear(0)
        return 1000.0 * (clock() - started)


@dataclass(slots=True)
class _DraftInProgress:
    """One request's draft while it grows."""

    request: DraftRequest
    states: TargetStates
    builder: DraftBuilder | None = None
    guessed: list[NDArray[np.float32]] = field(default_factory=list)  # states before draft tokens
    reason: str = ""  # why there is no draft
    has_ended: bool = False

    @property
    def is_active(self) -> bool:
        builder = self.builder
        return builder is not None and not self.has_ended and len(builder.tokens) < builder.limit

    @property
    def tokens(self) -> list[int]:
        return [] if self.builder is None else self.builder.tokens

    def num_unread(self, head: int) -> int:
        """Verified rows that a head lacks."""
        return self.states.length - self.states.read[head]

    def fail(self, reason: str) -> None:
        self.reason, self.has_ended = reason, True

    def extend(self, logits: NDArray[np.float32], state: NDArray[np.float32]) -> None:
        """Pick the next token from the row after the last one; none ends the draft."""
        assert self.builder is not None
        self.has_ended = self.builder.extend(logits, self.request.min_confidence) is None
        self.guessed.append(state.copy())

    def finish(self, name: str) -> Draft:
        if self.builder is None or self.reason:
            return Draft(reason=self.reason, is_ready=False)
        tokens, confidence = self.builder.finish()
        if not tokens:
            return Draft(reason="heads are unsure") if self.has_ended else NO_DRAFT
        return Draft(tokens, confidence, name)
