"""Base of speculators that read the target's hidden states, token by token or in blocks.

Their caches follow the target's: they are shared, truncated, saved and restored together. The entry
at position p is computed from token p and the target's states of token p - 1: unchanged
(multi-token heads), encoded (EAGLE-3), or from the states alone (DFlash). A drafter that reads the
target's own cache (Gemma 4's assistants) has none of its own: only states are kept.

Verified rows are decoded when the next draft is made, those of all drafts in one decode; the prompt
of a request without drafts is never decoded. Until then the states are kept in main memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headstart.speculators.base import SAMPLE_ROWS, Speculator, times_of
from headstart.speculators.target_states import TargetStates
from headstart.text.vocabulary.draft_tokenizer import DraftBuilder, Preference
from headstart.types import Batch, ContextFullError, DecodedStates, Draft, DraftRequest
from headstart.types.engine import Bytes, DraftContext
from headstart.types.media import readable

CONTEXT_FULL = "draft context full"
MERGED_ROWS = 8  # a draft with more rows to read than this may have to wait


class StateSpeculator(Speculator):
    """Drafts token by token with a model that reads the target's hidden states.

    Each head has its own sequences, because it has decoded other parts.
    """

    needs_states = True
    scores_are_probabilities = True
    is_model = True
    reading: ClassVar[str] = "draft model is processing the prompt"  # reasons for no draft
    unsure: ClassVar[str] = "draft model is unsure"

    def __init__(self, context: DraftContext, layers: Sequence[int]) -> None:
        """Start with empty caches.

        Args:
            context: the drafter.
            layers: layers of the target whose states are read, concatenated.
        """
        self.context, self.state_layers = context, frozenset(layers)
        self.width = context.feature_width or context.state_width  # of the target's states
        self.batch = Batch(context.max_batch_tokens, context.state_width)
        self.num_decoded = 0  # rows
        self.lost: dict[str, int] = {}  # times that caches could not follow, by reason
        self.sequences: dict[int, TargetStates] = {}  # by sequence of the target
        self._layers = tuple(layers)
        # pending states: 64 MiB per sequence, and at least 256 rows
        self._most_waiting = max(256, (64 << 20) // (4 * self.width))
        # position of a text's first row: the first token has no state to encode
        self._first_row = int(context.feature_width > 0)
        blocks, num_heads = context.blocks, context.num_heads
        self._encodes = context.feature_width > 0 and blocks is None
        self._rows = self.batch  # for rows of the target's text
        # maximum length of a draft; None: no limit. Several heads draft one token each.
        self._longest = num_heads if num_heads > 1 else None
        if blocks:
            self._longest = blocks.size - (not blocks.has_anchor)
            # these are states without tokens
            self._rows = Batch(context.max_batch_tokens, self.width, has_tokens=False)
        # maximum rows with outputs that a draft adds to a decode
        self._rows_per_draft = blocks.size if blocks else 1 + num_heads
        self._preference = Preference()
        self._num_calls = 0

    def states_of(self, seq_id: int) -> TargetStates:
        """What is known of a sequence of the target."""
        if (states := self.sequences.get(seq_id)) is None:
            states = self.sequences[seq_id] = TargetStates(self.context, self.width, seq_id)
        return states

    # Following the target's cache.

    def observe_states(self, decoded: DecodedStates) -> None:
        """Keep the states until they are needed; decode them now if they are too many."""
        layers = [decoded.states[layer] for layer in self._layers]
        edges = np.flatnonzero(decoded.seq_ids[1:] != decoded.seq_ids[:-1]) + 1
        for start, end in pairwise([0, *edges.tolist(), len(decoded.seq_ids)]):
            states = self.states_of(int(decoded.seq_ids[start]))
            position, tokens = int(decoded.positions[start]), decoded.tokens[start:end].tolist()
            parts = [rows[start:end] for rows in layers]
            rows = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
            if not states.observe(position, tokens, rows):
                self._lose(states, "the beginning is not known")
            states.cut()
            if states.num_states > self._most_waiting:
                self._read_waiting(states)

    def truncate(self, seq_id: int, length: int) -> None:
        states = self.states_of(seq_id)
        states.truncate(length)
        states.cut()

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        states = TargetStates(self.context, self.width, target)
        is_here = states.copy_from(self.states_of(source), length)
        self.sequences[target] = states
        if not is_here:
            self._lose(states, "no room for a copy")

    def checkpoint(self, seq_id: int) -> None:
        self.states_of(seq_id).checkpoint()

    def num_resumable(self, seq_id: int, length: int) -> int:
        return self.states_of(seq_id).num_resumable(length)

    def save_sequence(self, seq_id: int, namespace: str) -> bytes | None:
        return self.states_of(seq_id).save()

    def restore_sequence(self, seq_id: int, data: Bytes, namespace: str) -> None:
        states = self.sequences[seq_id] = TargetStates(self.context, self.width, seq_id)
        if not states.restore(memoryview(data)):
            self._lose(states, "no room for a restored prompt")

    def _lose(self, states: TargetStates, reason: str) -> None:
        self.lost[reason] = self.lost.get(reason, 0) + 1
        states.forget_caches()

    def make_room(self, busy: Sequence[TargetStates]) -> None:
        """Drop the least recently used idle sequences; if there are none, the busy ones."""
        if self.context.shares_target:  # only the target can make room in its own cache
            return
        known = self.sequences.values()
        idle = [one for one in known if one not in busy and max(one.held) > one.first]
        idle.sort(key=lambda states: states.last_used)
        for states in idle[: len(idle) // 2 + 1] or busy:
            self._lose(states, CONTEXT_FULL)

    # Decoding the target's text.

    def _read_waiting(self, states: TargetStates) -> None:
        """Decode pending states, because they take too much memory."""
        try:
            for head in range(self.context.num_heads):
                self.read(states, head, states.length)
            states.drop_read()
        except ContextFullError:
            self.make_room([states])
            self._lose(states, CONTEXT_FULL)

    def read(self, states: TargetStates, head: int, num_rows: int) -> None:
        """Decode up to `num_rows` of the target's rows that a head lacks; without caches, nothing.

        Raises:
            ContextFullError: there is no room.
        """
        start = states.read[head]
        end = min(states.length, start + num_rows)
        if self.context.shares_target:
            states.read[head] = states.length
        elif start < end:
            states.count_missing(start)
            (rows,) = self._encoded([states.before(start, end)])
            self.decode_rows([(states, rows)], head)

    def catch_up(self, known: Sequence[TargetStates], head: int) -> list[NDArray[np.float32]]:
        """Decode the target's rows that a head lacks, of all these sequences.

        Returns for each sequence the state input of the next token's row.

        Raises:
            ContextFullError: there is no room.
        """
        for states in known:
            states.count_missing(states.read[head])
        parts = [states.before(states.read[head], states.length + 1) for states in known]
        parts = self._encoded(parts)
        if not self.context.shares_target:
            unread = [rows[:-1] for rows in parts]
            self.decode_rows([*zip(known, unread, strict=True)], head)
        return [rows[-1:] for rows in parts]

    def _encoded(self, parts: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        """State inputs of rows, from states of the target."""
        if not self._encodes:
            return parts
        rows = self.context.encode(parts[0] if len(parts) == 1 else np.concatenate(parts))
        return np.split(rows, np.cumsum([len(part) for part in parts])[:-1])

    def decode_rows(
        self, parts: Sequence[tuple[TargetStates, NDArray[np.float32]]], head: int
    ) -> None:
        """Decode rows of the target's text, those of all sequences in as few decodes as possible.

        Args:
            parts: sequence, and the state inputs of the rows that follow those in its cache.
            head: whose caches get them.

        Raises:
            ContextFullError: there is no room.
        """
        batch, added = self._rows, list[tuple[TargetStates, int]]()
        batch.clear()
        batch.head = head
        for states, rows in parts:
            start = states.read[head]
            at, end = max(start, self._first_row), start + len(rows)
            while at < end:
                stop = min(end, at + batch.capacity - batch.num_rows)
                tokens = readable(states.tokens[at:stop]) if batch.has_tokens else [0] * (stop - at)
                batch.add_rows(states.ids[head], at, tokens, rows[at - start : stop - start])
                added.append((states, stop))
                at = stop
                if batch.num_rows == batch.capacity:
                    self._decode_added(added, head)
            added.append((states, end))
        self._decode_added(added, head)

    def _decode_added(self, added: list[tuple[TargetStates, int]], head: int) -> None:
        """Decode the batch of verified rows, and record up to where they are in the caches."""
        if self._rows.num_rows:
            self.decode(self._rows)
            self._rows.clear()
        for states, end in added:
            states.read[head] = states.held[head] = end
        added.clear()

    def decode(self, batch: Batch) -> NDArray[np.float32]:
        self.num_decoded += batch.num_rows
        return self.context.decode(batch)

    # Drafting.

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft with one decode per token, for all requests together."""
        self._num_calls += 1
        drafts = [self._begin(request) for request in requests]
        most_drafts = self.context.max_outputs // self._rows_per_draft
        for states in [one for one in drafts if one.builder.has_room][most_drafts:]:
            states.builder.reason = "batch full"
        try:
            self._catch_up(drafts)
            self._draft(drafts)
        except ContextFullError:
            self.make_room(drafts)
            for states in drafts:
                states.builder.reason = CONTEXT_FULL
        for states in drafts:
            states.cut()
            states.last = states.builder
        return [states.builder.to_draft(self.unsure) for states in drafts]

    def _begin(self, request: DraftRequest) -> TargetStates:
        states, length = self.states_of(request.seq_id), len(request.tokens) - 1
        states.last_used = self._num_calls
        room = self.context.context_size - length - 1
        limit = min(request.max_tokens, self._longest or room, room)
        states.builder, states.guessed = DraftBuilder(request, limit, self._preference), []
        if states.length != length or not states.num_states:
            states.builder.reason = "the target's states are missing"
        elif limit <= 0:
            states.builder.reason = CONTEXT_FULL
        else:
            states.settle()
            states.cut()
        return states

    def _catch_up(self, drafts: Sequence[TargetStates]) -> None:
        """Decode long texts in parts; their requests get no draft in this call, the others do."""
        room = max(256, 2 * MERGED_ROWS * len(drafts))
        waiting = [states for states in drafts if states.builder.has_room]
        for states in sorted(waiting, key=TargetStates.num_unread):
            num_rows = states.num_unread()
            if num_rows <= MERGED_ROWS:
                continue
            if room > 0:
                self.read(states, 0, room)
            room -= num_rows
            if states.num_unread():
                states.builder.reason = self.reading

    def _draft(self, drafts: Sequence[TargetStates]) -> None:
        """Extend all drafts as far as they go."""
        step = 0
        while drafts := [states for states in drafts if states.builder.has_room]:
            self._extend(drafts, step)
            step += 1

    def _extend(self, drafts: Sequence[TargetStates], step: int) -> None:
        """Decode the next token of each draft, and verified rows that a head lacks first."""
        head = step if self.context.num_heads > 1 else 0
        batch, is_first = self.batch, step == 0 or head > 0
        firsts = self.catch_up(drafts, head) if is_first else []
        batch.clear()
        batch.head = head
        if is_first:
            pairs = zip(drafts, firsts, strict=True)
            ends = [self._add(states, head, first) for states, first in pairs]
            batch.want_all()
        else:
            self._add_next(drafts)
            ends = [*range(1, 1 + len(drafts))]
        logits = self.decode(batch)
        rows = self.context.outputs()
        for states, end in zip(drafts, ends, strict=True):
            if is_first:
                states.expect_newest(head)
            if states.builder.extend(logits[end - 1]) is not None:
                states.guessed.append(rows[end - 1].copy())

    def _add(self, states: TargetStates, head: int, first: NDArray[np.float32]) -> int:
        """Add the rows of the newest token and of the draft; returns their end in the batch."""
        batch, tokens, length = self.batch, states.builder.tokens, states.length
        batch.add_rows(states.ids[head], length, [states.newest], first)
        if tokens:
            batch.add_rows(states.ids[head], length + 1, tokens, np.stack(states.guessed))
        states.held[head] = length + 1 + len(tokens)
        return batch.num_rows

    def _add_next(self, drafts: Sequence[TargetStates]) -> None:
        """Add one row per draft, for its last token."""
        # one that reads the target's cache drafts all tokens at one position
        batch, is_further = self.batch, not self.context.shares_target
        positions: list[int] = []
        for states in drafts:
            batch.states[len(positions)] = states.guessed[-1]
            positions.append(states.length + is_further * len(states.builder.tokens))
            states.held[0] = positions[-1] + 1
        tokens = [states.builder.tokens[-1] for states in drafts]
        batch.extend([states.ids[0] for states in drafts], positions, tokens)

    def num_catch_up(self, seq_id: int, history: Sequence[int]) -> int:
        """Verified rows that the first head has not decoded."""
        return max(0, self.states_of(seq_id).num_unread())

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        """Learn which way of picking tokens is accepted more."""
        states = self.states_of(seq_id)
        if states.last is not None:
            states.last.learn(emitted)
        states.last = None

    def end(self, seq_id: int) -> None:
        """Keep the caches: the next turn of a chat starts with them."""
        states = self.states_of(seq_id)
        states.last, states.guessed = None, []
        if hasattr(states, "builder"):
            del states.builder  # it has the request, with its sampler and images

    def time_decodes(self, clock: Callable[[], float]) -> tuple[float, float] | None:
        """Time decodes in the drafter's sequence 0, whose contents are dropped."""
        context, states = self.context, self.states_of(0)
        size = min(SAMPLE_ROWS, context.max_batch_tokens, context.context_size - 1)
        states.forget_caches()

        def draft() -> None:
            self._draft_nothing()
            states.clear_caches()

        def read() -> None:
            self._read_nothing(size)
            states.clear_caches()

        round_ms, reading_ms = times_of(clock, draft, read)
        return round_ms, reading_ms / size

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
        if not self.context.shares_target:
            batch, tokens = self._rows, [0] * num_rows
            batch.clear()
            batch.head = 0
            (states,) = self._encoded([np.zeros((num_rows, self.width), np.float32)])
            batch.add_rows(0, 1, tokens, states)
            self.context.decode(batch)

    def describe(self) -> dict[str, Any]:
        known = self.sequences.values()
        return {
            "rows_decoded": self.num_decoded,
            "waiting_states": sum(states.num_states for states in known),
            "missing_states": sum(states.num_missing for states in known),
            "lost": dict(self.lost),
        }
