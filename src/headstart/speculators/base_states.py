"""Base of speculators that read the target's hidden states, token by token or in blocks.

Verified rows are decoded when the next draft is made, those of all drafts in one decode; the prompt
of a request without drafts is never decoded. Until then the states are kept in main memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headstart.speculators.base import SAMPLE_ROWS, times_of
from headstart.speculators.base_caches import CONTEXT_FULL, FollowingSpeculator
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
        for draft in [d for d in drafts if d.has_room][most_drafts:]:
            draft.reason = "batch full"
        try:
            self._catch_up(drafts)
            self._draft(drafts)
        except ContextFullError:
            self.make_room([request.seq_id for request in requests])
            for draft in drafts:
                draft.reason = CONTEXT_FULL
        for draft in drafts:
            self.cut(draft.seq_id)
            self._last[draft.seq_id] = draft
        return [draft.to_draft(self.unsure) for draft in drafts]

    def _draft(self, drafts: Sequence[DraftBuilder]) -> None:
        """Extend all drafts as far as they go."""
        step, active = 0, [draft for draft in drafts if draft.has_room]
        while active:
            self._extend(active, step)
            active = [draft for draft in active if draft.has_room]
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

    def _begin(self, request: DraftRequest) -> DraftBuilder:
        states, length = self.sequences[request.seq_id], len(request.tokens) - 1
        states.last_used = self._num_calls
        states.guessed.clear()
        room = self.context.context_size - length - 1
        limit = min(request.max_tokens, self._longest or room, room)
        draft = DraftBuilder(request, limit, self._preference)
        if states.length != length or not states.num_states:
            draft.reason = "the target's states are missing"
        elif limit <= 0:
            draft.reason = CONTEXT_FULL
        else:
            states.settle()
            self.cut(request.seq_id)
        return draft

    def _catch_up(self, drafts: Sequence[DraftBuilder]) -> None:
        """Decode long texts in parts; their requests get no draft in this call, the others do."""
        room = max(256, 2 * MERGED_ROWS * len(drafts))
        waiting = [(self.sequences[d.seq_id].num_unread(0), d) for d in drafts if d.has_room]
        for num_rows, draft in sorted(waiting, key=lambda pair: pair[0]):
            if num_rows <= MERGED_ROWS:
                continue
            if room > 0:
                self.read(draft.seq_id, 0, room)
            room -= num_rows
            if self.sequences[draft.seq_id].num_unread(0):
                draft.reason = self.reading

    def _extend(self, drafts: Sequence[DraftBuilder], step: int) -> None:
        """Decode the next token of each draft, and verified rows that a head lacks first."""
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
        for draft, end in zip(drafts, ends, strict=True):
            states = self.sequences[draft.seq_id]
            if is_first:
                states.expect(draft.request.tokens[-1], head)
            if draft.extend(logits[end - 1]) is not None:
                states.guessed.append(rows[end - 1].copy())

    def _add(self, draft: DraftBuilder, head: int, first: NDArray[np.float32]) -> int:
        """Add the rows of the newest token and of the draft; returns their end in the batch."""
        states, batch, tokens = self.sequences[draft.seq_id], self.batch, draft.tokens
        own, length = self.id_of(draft.seq_id, head), states.length
        batch.add_rows(own, length, [draft.request.tokens[-1]], first)
        if tokens:
            batch.add_rows(own, length + 1, tokens, np.stack(states.guessed))
        states.held[head] = length + 1 + len(tokens)
        return batch.num_rows

    def _add_next(self, drafts: Sequence[DraftBuilder]) -> None:
        """Add one row per draft, for its last token."""
        # one that reads the target's cache drafts all tokens at one position
        batch, is_further = self.batch, not self.context.shares_target
        tokens: list[int] = []
        positions: list[int] = []
        seq_ids: list[int] = []
        for draft in drafts:
            states = self.sequences[draft.seq_id]
            batch.states[len(tokens)] = states.guessed[-1]
            tokens.append(draft.tokens[-1])
            positions.append(states.length + is_further * len(draft.tokens))
            seq_ids.append(self.id_of(draft.seq_id, 0))
            states.held[0] = positions[-1] + 1
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
