"""Caches of a drafter that follow the target's: shared, truncated, saved and restored together.

The entry at position p is computed from token p and the target's states of token p - 1: unchanged
(multi-token heads), encoded (EAGLE-3), or from the states alone (DFlash). A drafter that reads the
target's own cache (Gemma 4's assistants) has none of its own: only states are kept.

Knows tokens, states and lengths; subclasses decide what is decoded and when.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from headstart.speculators.base import Speculator
from headstart.speculators.target_states import TargetStates
from headstart.types import Batch, ContextFullError, DecodedStates
from headstart.types.state_batch import DraftContext, StateBatch

CONTEXT_FULL = "draft context full"
_WAITING_BYTES = 64 << 20  # of pending states per sequence


class FollowingSpeculator(Speculator):
    """Its caches follow the target's. Each head has its own sequences, because it has decoded other
    parts.
    """

    needs_states = True

    def __init__(self, context: DraftContext, layers: Sequence[int]) -> None:
        """Start with empty caches.

        Args:
            context: the drafter.
            layers: layers of the target whose states are read, concatenated.
        """
        self.context, self.state_layers = context, frozenset(layers)
        self.width = context.feature_width or context.state_width  # of the target's states
        self.batch = StateBatch(self.context.max_batch_tokens, context.state_width)
        self.num_decoded = 0  # rows
        self.lost: dict[str, int] = {}  # times that caches could not follow, by reason
        # by sequence of the target
        self.sequences = defaultdict[int, TargetStates](
            partial(TargetStates, context.num_heads, self.width)
        )
        self._caches = range(0 if context.shares_target else context.num_heads)
        self._layers = tuple(layers)
        # at least 256 rows may be pending
        self._most_waiting = max(256, _WAITING_BYTES // (4 * self.width))
        # position of a text's first row: the first token has no state to encode
        self._first_row = int(context.feature_width > 0)
        self._encodes = context.feature_width > 0 and context.blocks is None
        self._rows = self.batch  # for rows of the target's text
        if context.blocks:  # these are states without tokens
            size = self.context.max_batch_tokens
            self._rows = StateBatch(size, self.width, has_tokens=False)

    def id_of(self, seq_id: int, head: int) -> int:
        """The id of the head's own sequence."""
        return seq_id * self.context.num_heads + head

    def observe_states(self, decoded: DecodedStates) -> None:
        """Keep the states until they are needed; decode them now if they are too many."""
        layers = [decoded.states[layer] for layer in self._layers]
        for start, end in _runs(decoded.seq_ids):
            seq_id, position = int(decoded.seq_ids[start]), int(decoded.positions[start])
            states = self.sequences[seq_id]
            tokens = decoded.tokens[start:end].tolist()
            parts = [rows[start:end] for rows in layers]
            rows = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
            if not states.observe(position, tokens, rows):
                self._lose(seq_id, "the beginning is not known")
            self.cut(seq_id)
            if states.num_states > self._most_waiting:
                self._read_waiting(seq_id)

    def truncate(self, seq_id: int, length: int) -> None:
        self.sequences[seq_id].truncate(length)
        self.cut(seq_id)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        states = self.sequences[target] = self.sequences[source].copy(length)
        for head in self._caches:
            read, of_target = states.read[head], self.id_of(target, head)
            if read <= states.first:
                self.context.clear(of_target)
            elif not self.context.copy_prefix(self.id_of(source, head), of_target, read):
                self._lose(target, "no room for a copy")
                return

    def checkpoint(self, seq_id: int) -> None:
        self.sequences[seq_id].checkpoint()

    def num_resumable(self, seq_id: int, length: int) -> int:
        return self.sequences[seq_id].num_resumable(length)

    def save_sequence(self, seq_id: int, namespace: str) -> bytes | None:
        """The states, then each head's cache; None if there is nothing."""
        states = self.sequences[seq_id]
        if not states.length:
            return None
        states.settle()
        self.cut(seq_id)
        parts = [states.to_bytes()]
        for head in self._caches:
            is_empty = states.read[head] <= states.first
            own = b"" if is_empty else self.context.save_sequence(self.id_of(seq_id, head))
            parts.append(bytes(own))
        sizes = np.array([len(part) for part in parts], np.int64)
        return b"".join((sizes.tobytes(), *parts))

    def restore_sequence(
        self, seq_id: int, data: bytes | bytearray | memoryview, namespace: str
    ) -> None:
        view = memoryview(data)
        sizes = np.frombuffer(view, np.int64, 1 + len(self._caches))
        ends = (8 * len(sizes) + np.cumsum([0, *sizes])).tolist()
        parts = [view[start:end] for start, end in pairwise(ends)]
        states = TargetStates.from_bytes(parts[0], self.context.num_heads, self.width)
        self.sequences[seq_id] = states
        for head, part in enumerate(parts[1:]):
            own = self.id_of(seq_id, head)
            if not len(part):
                self.context.clear(own)
            elif not self.context.restore_sequence(own, part):
                self._lose(seq_id, "no room for a restored prompt")
                return

    def read(self, seq_id: int, head: int, num_rows: int) -> None:
        """Decode up to `num_rows` of the target's rows that a head lacks; without caches, nothing.

        Raises:
            ContextFullError: there is no room.
        """
        states = self.sequences[seq_id]
        start = states.read[head]
        end = min(states.length, start + num_rows)
        if not self._caches:
            states.read[head] = states.length
        elif start < end:
            states.count_missing(start)
            (rows,) = self._encoded([states.before(start, end)])
            self.decode_rows([(seq_id, start, rows)], head)

    def catch_up(self, seq_ids: Sequence[int], head: int) -> list[NDArray[np.float32]]:
        """Decode the target's rows that a head lacks, of all these sequences.

        Returns for each sequence the state input of the next token's row.

        Raises:
            ContextFullError: there is no room.
        """
        known = [self.sequences[seq_id] for seq_id in seq_ids]
        starts = [states.read[head] for states in known]
        for states, start in zip(known, starts, strict=True):
            states.count_missing(start)
        ends = [states.length + 1 for states in known]
        parts = self._encoded([*map(TargetStates.before, known, starts, ends)])
        if self._caches:
            unread = [rows[:-1] for rows in parts]
            self.decode_rows([*zip(seq_ids, starts, unread, strict=True)], head)
        return [rows[-1:] for rows in parts]

    def _encoded(self, parts: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        """State inputs of rows, from states of the target."""
        if not self._encodes:
            return parts
        rows = self.context.encode(parts[0] if len(parts) == 1 else np.concatenate(parts))
        return np.split(rows, np.cumsum([len(part) for part in parts])[:-1])

    def decode_rows(self, parts: Sequence[tuple[int, int, NDArray[np.float32]]], head: int) -> None:
        """Decode rows of the target's text, those of all sequences in as few decodes as possible.

        Args:
            parts: sequence, first row, and the state input of each row.
            head: whose caches get them.

        Raises:
            ContextFullError: there is no room.
        """
        batch, added = self._rows, list[tuple[TargetStates, int]]()
        batch.clear()
        batch.head = head
        for seq_id, start, rows in parts:
            states, end = self.sequences[seq_id], start + len(rows)
            at = max(start, self._first_row)
            while at < end:
                stop = min(end, at + batch.capacity - batch.num_rows)
                tokens = states.tokens[at:stop] if batch.has_tokens else [0] * (stop - at)
                batch.add_rows(
                    self.id_of(seq_id, head), at, tokens, rows[at - start : stop - start]
                )
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
        """Decode a batch; returns its logits."""
        self.num_decoded += batch.num_rows
        return self.context.decode(batch)

    def cut(self, seq_id: int) -> None:
        """Drop rows of drafts, and of texts that continued differently, from the caches."""
        states = self.sequences[seq_id]
        for head in self._caches:
            read = states.read[head]
            if states.held[head] > read:
                if read > states.first:
                    self.context.truncate(self.id_of(seq_id, head), read)
                else:
                    self.context.clear(self.id_of(seq_id, head))
            states.held[head] = read

    def make_room(self, busy: Sequence[int]) -> None:
        """Drop the least recently used idle sequences; if there are none, the busy ones."""
        if not self._caches:  # only the target can make room in its own cache
            return
        idle = [
            seq_id
            for seq_id, states in self.sequences.items()
            if seq_id not in busy and max(states.held) > states.first
        ]
        idle.sort(key=lambda seq_id: self.sequences[seq_id].last_used)
        for seq_id in idle[: len(idle) // 2 + 1] or busy:
            self._lose(seq_id, CONTEXT_FULL)

    def _read_waiting(self, seq_id: int) -> None:
        """Decode pending states, because they take too much memory."""
        states = self.sequences[seq_id]
        try:
            for head in range(self.context.num_heads):
                self.read(seq_id, head, states.length)
            states.drop_read()
        except ContextFullError:
            self.make_room([seq_id])
            self._lose(seq_id, CONTEXT_FULL)

    def _lose(self, seq_id: int, reason: str) -> None:
        self.lost[reason] = self.lost.get(reason, 0) + 1
        self.forget(seq_id)

    def forget(self, seq_id: int) -> None:
        """Empty the drafter's caches of a sequence; they continue with later rows."""
        if self._caches and seq_id in self.sequences:
            self.sequences[seq_id].forget_caches()
            self.clear_own(seq_id)

    def clear_own(self, seq_id: int) -> None:
        """Free the drafter's cells of a sequence."""
        for head in self._caches:
            self.context.clear(self.id_of(seq_id, head))


def _runs(seq_ids: NDArray[np.int32]) -> list[tuple[int, int]]:
    """Start and end of the adjacent rows of each sequence."""
    edges = np.flatnonzero(seq_ids[1:] != seq_ids[:-1]) + 1
    return list(pairwise([0, *edges.tolist(), len(seq_ids)]))
