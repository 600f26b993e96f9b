"""Base of speculators that read the target's hidden states, token by token or in blocks.

Verified rows are decoded when the next draft is made, those of all drafts in one decode; the prompt
of a request without drafts is never decoded. Until then the states are kept in main memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headstart.speculators.base import SAMPLE_ROWS, times_of
from headstart.speculators.base_caches import CONTEXT_FULL, FollowingSpeculator
from headstart.speculators.target_states import TargetStates
from headstart.text.vocabulary.draft_tokenizer import DraftBuilder, Preference
from headstart.types import ContextFullError, Draft, DraftRequest
from headstart.types.state_batch import DraftContext

MERGED_ROWS = 8  # a draft with more rows to read than this may have to wait


class StateSpeculator(FollowingSpeculator):
    """Drafts token by token with a model that reads the target's hidden states."""

    scores_are_probabilities = True
    is_model = True
    reading: ClassVar[str] = "draft model is processing the prompt"  # reasons for no draft
    unsure: ClassVar[str] = "draft model is unsure"

    def __init__(self, context: DraftContext, layers: Sequence[int]) -> None:
        """Draft from the states of these layers of the target."""
        super().__init__(context, layers)
        blocks, num_heads = context.blocks, context.num_heads
        # maximum length of a draft; None: no limit. Several heads draft one token each.
        self._longest = num_heads if num_heads > 1 else None
        if blocks:
            self._longest = blocks.size - (not blocks.has_anchor)
        # maximum rows with outputs that a draft adds to a decode
        self._rows_per_draft = blocks.size if blocks else 1 + num_heads
        self._preference = Preference("auto")
        self._last: dict[int, DraftBuilder] = {}  # the last draft of each sequence
        self._num_calls = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft with one decode per token, for all requests together."""
        self._num_calls += 1
        drafts = [self._begin(request) for request in requests]
        most_drafts = self.context.max_outputs // self._rows_per_draft
        for draft in [d for d in drafts if d.builder.has_room][most_drafts:]:
            draft.builder.reason = "batch full"
        try:
            self._catch_up(drafts)
            self._draft(drafts)
        except ContextFullError:
            self.make_room([request.seq_id for request in requests])
            for draft in drafts:
                draft.builder.reason = CONTEXT_FULL
        for draft in drafts:
            self.cut(draft.seq_id)
            self._last[draft.seq_id] = draft.builder
        return [draft.builder.to_draft(self.unsure) for draft in drafts]

    def _draft(self, drafts: Sequence[StateDraft]) -> None:
        """Extend all drafts as far as they go."""
        step, active = 0, [draft for draft in drafts if draft.builder.has_room]
        while active:
            active = self._extend(active, step)
            step += 1

    def num_catch_up(self, seq_id: int, history: Sequence[int]) -> int:
        """Verified rows that the first head has not decoded."""
        return max(0, self.sequences[seq_id].num_unread(0))

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        """Learn which way of picking tokens is accepted more."""
        if (last := self._last.pop(seq_id, None)) is not None:
            last.learn(emitted)

    def end(self, seq_id: int) -> None:
        """Keep the caches: the next turn of a chat starts with them."""
        self._last.pop(seq_id, None)

    def time_decodes(self, clock: Callable[[], float]) -> tuple[float, float] | None:
        """Time decodes in the drafter's sequence 0, whose contents are dropped."""
        context = self.context
        size = min(SAMPLE_ROWS, context.max_batch_tokens, context.context_size - 1)
        self.forget(0)

        def draft() -> None:
            self._draft_nothing()
            self.clear_own(0)

        def read() -> None:
            self._read_nothing(size)
            self.clear_own(0)

        round_ms, reading_ms = times_of(clock, draft, read)
        return round_ms, reading_ms / size

    def describe(self) -> dict[str, Any]:
        known = self.sequences.values()
        return {
            "rows_decoded": self.num_decoded,
            "waiting_states": sum(states.num_states for states in known),
            "missing_states": sum(states.num_missing for states in known),
            "lost": dict(self.lost),
        }

    def _begin(self, request: DraftRequest) -> StateDraft:
        states, length = self.sequences[request.seq_id], len(request.tokens) - 1
        states.last_used = self._num_calls
        room = self.context.context_size - length - 1
        limit = min(request.max_tokens, self._longest or room, room)
        builder = DraftBuilder(request, limit, self._preference)
        if states.length != length or not states.num_states:
            builder.reason = "the target's states are missing"
        elif limit <= 0:
            builder.reason = CONTEXT_FULL
        else:
            states.settle()
            self.cut(request.seq_id)
        return StateDraft(builder, request.seq_id, states)

    def _catch_up(self, drafts: Sequence[StateDraft]) -> None:
        """Decode long texts in parts; their requests get no draft in this call, the others do."""
        room = max(256, 2 * MERGED_ROWS * len(drafts))
        waiting = [(d.states.num_unread(0), d) for d in drafts if d.builder.has_room]
        for num_rows, draft in sorted(waiting, key=lambda pair: pair[0]):
            if num_rows <= MERGED_ROWS:
                continue
            if room > 0:
                self.read(draft.seq_id, 0, room)
            room -= num_rows
            if draft.states.num_unread(0):
                draft.builder.reason = self.reading

    def _extend(self, drafts: Sequence[StateDraft], step: int) -> list[StateDraft]:
        """Decode the next token of each draft; returns the drafts that continue.

        Decodes verified rows that a head lacks first.
        """
        head = step if self.context.num_heads > 1 else 0
        batch, is_first = self.batch, step == 0 or head > 0
        firsts = self.catch_up([draft.seq_id for draft in drafts], head) if is_first else []
        batch.clear()
        batch.head = head
        if is_first:
            pairs = zip(drafts, firsts, strict=True)
            ends = [self._add(draft, head, first) for draft, first in pairs]
            batch.want_all()
        else:
            self._add_next(drafts)
            ends = [*range(1, 1 + len(drafts))]
        logits = self.decode(batch)
        rows = self.context.outputs()
        going = []
        for draft, end in zip(drafts, ends, strict=True):
            if is_first:
                draft.states.expect(draft.newest, head)
            if draft.extend(logits[end - 1], rows[end - 1]):
                going.append(draft)
        return going

    def _add(self, draft: StateDraft, head: int, first: NDArray[np.float32]) -> int:
        """Add the rows of the newest token and of the draft; returns their end in the batch."""
        states, batch, tokens = draft.states, self.batch, draft.builder.tokens
        own, length = self.id_of(draft.seq_id, head), draft.states.length
        batch.add_rows(own, length, [draft.newest], first)
        if tokens:
            batch.add_rows(own, length + 1, tokens, np.stack(draft.guessed))
        states.held[head] = length + 1 + len(tokens)
        return batch.num_rows

    def _add_next(self, drafts: Sequence[StateDraft]) -> None:
        """Add one row per draft, for its last token."""
        # one that reads the target's cache drafts all tokens at one position
        batch, is_further = self.batch, not self.context.shares_target
        tokens: list[int] = []
        positions: list[int] = []
        seq_ids: list[int] = []
        for draft in drafts:
            so_far = draft.builder.tokens
            batch.states[len(tokens)] = draft.guessed[-1]
            tokens.append(so_far[-1])
            positions.append(draft.states.length + is_further * len(so_far))
            seq_ids.append(self.id_of(draft.seq_id, 0))
            draft.states.held[0] = positions[-1] + 1
        batch.extend(seq_ids, positions, tokens)

    def _draft_nothing(self) -> None:
        """Run one draft round in the empty sequence 0."""
        batch = self.batch
        batch.clear()
        batch.head = 0
        batch.add_rows(0, 0, [0], np.zeros((1, self.context.state_width), np.float32))
        batch.want_all()
        self.context.decode(batch)

    def _read_nothing(self, num_rows: int) -> None:
        """Read rows of zeros into the empty sequence 0."""
        if self._caches:
            batch, tokens = self._rows, [0] * num_rows
            batch.clear()
            batch.head = 0
            (states,) = self._encoded([np.zeros((num_rows, self.width), np.float32)])
            batch.add_rows(0, 1, tokens, states)
            self.context.decode(batch)


@dataclass(slots=True)
class StateDraft:
    """The draft of one request."""

    builder: DraftBuilder
    seq_id: int
    states: TargetStates
    guessed: list[NDArray[np.float32]] = field(default_factory=list)  # states before draft tokens

    @property
    def newest(self) -> int:
        """The last token of the text."""
        return self.builder.request.tokens[-1]

    def extend(
        self,
        logits: NDArray[np.float32],
        state: NDArray[np.float32],
        score: float | None = None,
    ) -> bool:
        """Pick the next token from the row after the last one; returns whether another may follow.

        Args:
            logits: of the row.
            state: the model's estimate of the target's state there.
            score: the probability of acceptance, if known better than from the logits.
        """
        builder = self.builder
        least, token = builder.request.min_confidence, None
        if score is None:
            token = builder.extend(logits, least)
        elif score >= least:
            token = builder.extend(logits, 0.0)
        if token is None:
            builder.limit = len(builder.tokens)
            return False
        if score is not None:
            builder.confidence[-1] = score
        self.guessed.append(state.copy())
        return builder.has_room
