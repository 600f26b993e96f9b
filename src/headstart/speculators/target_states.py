"""A drafter's view of one sequence of the target: its tokens, the hidden states that are not yet in
the drafter's own caches, these caches, and the draft in progress.

Row p of such a cache is computed from token p and the state of token p - 1. So to continue from a
length, the state of the last token before it is needed. If that is gone (it was used, then the text
was truncated there), the target decodes that one token again: its row in the drafter's cache
remains valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from headstart.structures.checkpoints import pack, unpack
from headstart.structures.prefix import common_prefix_length
from headstart.text.vocabulary.draft_tokenizer import DraftBuilder
from headstart.types.engine import DraftContext

States = NDArray[np.float32]


class TargetStates:
    """One sequence, as the target's cache holds it.

    tokens[0 : length]       in the target's cache
    tokens[length : ]        expected next: rows made of them are valid if these tokens follow
    first <= read[i]         cache i of the drafter holds rows first to read[i] - 1 ...
    read[i] <= held[i]       ... then, up to held[i] - 1, rows of drafts
    states                   of the last tokens before `length`: all unread ones, and one more
    """

    builder: DraftBuilder  # the draft in progress

    def __init__(self, context: DraftContext, width: int, seq_id: int) -> None:
        self.tokens: list[int] = []
        self.length = self.first = 0
        num_heads = context.num_heads
        self.read, self.held = [0] * num_heads, [0] * num_heads
        # the drafter's sequences, one per head; those that have caches of their own
        self.ids = range(seq_id * num_heads, (seq_id + 1) * num_heads)
        self._caches = self.ids[: 0 if context.shares_target else num_heads]
        self.last_used = 0  # number of the draft call
        self.num_missing = 0  # rows decoded without the preceding state
        self.checkpoints: dict[int, States] = {}  # by length: the state of the last token
        self.guessed: list[States] = []  # the drafter's estimates, of the tokens of its draft
        self.last: DraftBuilder | None = None  # the last draft, until its tokens are verified
        self._context, self._width = context, width
        self._rows = np.empty((0, width), np.float32)
        self._start = 0  # index of the first row in use
        self._count = 0  # rows in use: states of the last tokens before `length`

    @property
    def num_states(self) -> int:
        return self._count

    @property
    def newest(self) -> int:
        """The last token of the text, which the target decodes next."""
        return self.builder.request.tokens[-1]

    def num_unread(self) -> int:
        """Verified rows that the first cache lacks; below 0 if it has the next token's, too."""
        return self.length - self.read[0]

    def observe(self, position: int, tokens: Sequence[int], states: States) -> bool:
        """The target decoded these tokens.

        Returns False if they do not follow the known tokens: then everything is dropped, and rows
        begin here.
        """
        self.drop_read()  # not later: if drafts are rejected, any state of this decode is the last
        is_known = position == self.length
        if not is_known:
            self._begin(position)
        again = common_prefix_length(self.tokens[position : position + len(tokens)], tokens)
        if again < len(tokens):
            del self.tokens[position + again :]
            self.read = [min(read, position + again) for read in self.read]
            self.tokens += tokens[again:]
        self.length = position + len(tokens)
        self._append(states)
        return is_known

    def truncate(self, length: int) -> None:
        """The target's cache holds only the first `length` tokens."""
        if length >= self.length:
            return
        self.checkpoints = {n: row for n, row in self.checkpoints.items() if n <= length}
        if length <= self.first:
            self._begin(0)
            return
        state = self._state(length - 1)
        num_kept = self._count - (self.length - length)
        self.length = length
        if num_kept > 0:
            self._count = num_kept
        else:
            self._count = self._start = 0
        if state is None:  # it must be decoded again, unless the same tokens follow
            del self.tokens[max(length, *self.read) :]
            return
        if num_kept <= 0:
            self._append(state[None])
        del self.tokens[length:]
        self.read = [min(read, length) for read in self.read]

    def copy_from(self, source: TargetStates, length: int) -> bool:
        """Share the first `length` tokens of another sequence, perhaps one more, in a new one.

        Returns False if there is no room in the caches.
        """
        self.tokens = source.tokens[: length + 1]
        self.first = source.first
        self.read = [min(read, len(self.tokens)) for read in source.read]
        self.length = source.length
        self.checkpoints = dict(source.checkpoints)
        self._append(source._live)
        self.truncate(length)
        self.held = list(self.read)
        for head, own in enumerate(self._caches):
            if self.read[head] <= self.first:
                self._context.clear(own)
            elif not self._context.copy_prefix(source.ids[head], own, self.read[head]):
                return False
        return True

    def checkpoint(self) -> None:
        """Keep the state needed to roll back to the current length."""
        if (state := self._state(self.length - 1)) is not None:
            self.checkpoints[self.length] = state.copy()
        while len(self.checkpoints) > 64:
            del self.checkpoints[min(self.checkpoints)]

    def num_resumable(self, length: int) -> int:
        """How many of the first `length` tokens the target need not decode again."""
        is_behind = length < 1 or min(self.read) < length or length > self.length
        return length if is_behind or self._state(length - 1) is not None else length - 1

    def settle(self) -> None:
        """Drop tokens beyond `length`, which will not follow again."""
        del self.tokens[self.length :]
        self.read = [min(read, self.length) for read in self.read]

    def cut(self) -> None:
        """Drop rows of drafts, and of texts that continued differently, from the caches."""
        for head, own in enumerate(self._caches):
            read = self.read[head]
            if self.held[head] > read:
                if read > self.first:
                    self._context.truncate(own, read)
                else:
                    self._context.clear(own)
            self.held[head] = read

    def clear_caches(self) -> None:
        """Free the drafter's cells."""
        for own in self._caches:
            self._context.clear(own)

    def forget_caches(self) -> None:
        """Empty the caches; they can start after the first token whose state is kept."""
        if not self._caches:
            return
        self.settle()
        self.first = 0 if self._count == self.length else self.length - self._count + 1
        self.read = [self.first] * len(self.read)
        self.held = list(self.read)
        self.clear_caches()

    def expect_newest(self, cache: int) -> None:
        """Record that this cache has a row of the token that the target decodes next."""
        self.tokens[self.length :] = [self.newest]
        self.read[cache] = self.length + 1

    def before(self, start: int, end: int) -> States:
        """States of the tokens before those at start to end - 1; zeros if missing."""
        first = self.length - self._count
        if start - 1 >= first:
            return self._live[start - 1 - first : end - 1 - first]
        rows = np.zeros((end - start, self._width), np.float32)
        num_missing = min(end - start, first - (start - 1))
        rows[num_missing:] = self._live[: end - start - num_missing]
        return rows

    def count_missing(self, start: int) -> None:
        """Count if the first of the rows from `start` on lacks its state."""
        self.num_missing += start > self.first and self._state(start - 1) is None

    def drop_read(self) -> None:
        """Drop the states that every cache has used, except the last one."""
        needed = max(1, self.length - (min(self.read) - 1))
        if needed < self._count:
            self._start += self._count - needed
            self._count = needed
        if self._start > len(self._rows) // 2:  # so that memory of long prompts is freed
            live = self._live.copy()
            self._rows, self._start, self._count = live[:0], 0, 0
            self._append(live)

    def save(self) -> bytes | None:
        """Sizes of the parts that follow: the states, and each cache; None if nothing is known."""
        if not self.length:
            return None
        self.settle()
        self.cut()
        lengths = sorted(self.checkpoints)
        numbers = [self.length, self.first, self._count, len(lengths), *self.read, *lengths]
        rows = [self._live, *(self.checkpoints[n][None] for n in lengths)]
        parts = [
            np.array(numbers, np.int64).tobytes()
            + np.array(self.tokens, np.int32).tobytes()
            + np.concatenate(rows).tobytes()
        ]
        for head, own in enumerate(self._caches):
            is_empty = self.read[head] <= self.first
            parts.append(b"" if is_empty else b"".join(pack(self._context.save_sequence(own))))
        sizes = np.array([len(part) for part in parts], np.int64)
        return b"".join((sizes.tobytes(), *parts))

    def restore(self, data: memoryview) -> bool:
        """Inverse of `save`, for a new sequence; returns False if there is no room."""
        sizes = np.frombuffer(data, np.int64, 1 + len(self._caches))
        ends = (8 * len(sizes) + np.cumsum([0, *sizes])).tolist()
        part, *caches = [data[start:end] for start, end in pairwise(ends)]
        head = np.frombuffer(part, np.int64, 4 + len(self.read))
        self.length, self.first, count, num_checkpoints, *self.read = head.tolist()
        at = 8 * len(head)
        lengths = np.frombuffer(part, np.int64, num_checkpoints, at).tolist()
        at += 8 * num_checkpoints
        self.tokens = np.frombuffer(part, np.int32, self.length, at).tolist()
        rows = np.frombuffer(part, np.float32, -1, at + 4 * self.length).reshape(-1, self._width)
        self.held = list(self.read)
        self._append(rows[:count])
        self.checkpoints = dict(zip(lengths, rows[count:].copy(), strict=True))
        for own, state in zip(self._caches, caches, strict=True):
            saved = unpack(state)
            if saved is None:  # nothing was decoded
                self._context.clear(own)
            elif not self._context.restore_sequence(own, saved):
                return False
        return True

    @property
    def _live(self) -> States:
        return self._rows[self._start : self._start + self._count]

    def _begin(self, position: int) -> None:
        """Drop everything: nothing before `position` is known, and caches are empty."""
        self.tokens = [0] * position
        self.length = self.first = position
        self.read = [position] * len(self.read)
        self._start = self._count = 0
        self.checkpoints.clear()

    def _state(self, position: int) -> States | None:
        first = self.length - self._count
        if first <= position < self.length:
            row: States = self._live[position - first]
            return row
        return self.checkpoints.get(position + 1)

    def _append(self, states: States) -> None:
        end = self._start + self._count
        if end + len(states) > len(self._rows):
            capacity = max(16, 2 * (self._count + len(states)))
            rows = np.empty((capacity, self._width), np.float32)
            rows[: self._count] = self._live
            self._rows, self._start, end = rows, 0, self._count
        self._rows[end : end + len(states)] = states
        self._count += len(states)
