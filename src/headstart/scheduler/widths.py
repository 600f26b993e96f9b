"""Compares the same rows in decodes of different widths, bit for bit: their logits, and the states
that the output matrix reads, because its kernel mostly rounds small differences away.

Kernels depend on different things, so each width is tested in several ways: whether all rows agree
with other widths, from first to last; whether a row changes beside equal rows (which a mixture of
experts sends to the same experts), or beside rows of another, longer sequence. The rows lie on both
sides of the 256th cell: libllama's attention covers cells by 256, and with more than those it
divides that of a single row among threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from headstart.types import FINAL_STATE, Batch, Engine, Logits, SavedState
from headstart.types.constraint import NO_LIMIT
from headstart.types.widths import WidthClasses

WIDE = (*range(20, 64, 4), 63, 64)  # attention on a CPU changes at 64
LENGTH = 245  # tokens in the cache before the rows: a decode of each width but 11 crosses cell 256
LEAST_ROWS = 16  # compared per width, or one decode if that has more
CERTAIN_ROWS = 64  # with a tiny model: rows of different kernels may agree by chance


class WidthComparison:
    """Decodes the same rows in all widths."""

    def __init__(
        self,
        engine: Engine,
        sequences: Sequence[int],
        clock: Callable[[], float],
        num_rows: int = LEAST_ROWS,
    ) -> None:
        """Compare on empty sequences; several, with consecutive ids, show the effect of neighbours.

        A sequence is restored before it is decoded again: where it was truncated, a bug in that
        would look like one in a kernel.
        """
        self._num_rows = num_rows
        self._engine, self.sequences, self._clock = engine, sequences, clock
        self._batch = Batch(engine.max_batch_tokens)
        self._first: NDArray[np.float32] | None = None
        # by width, digests of the rows and the milliseconds of the fastest decode; widths whose
        # first row differs beside equal rows, and beside rows of other sequences
        self.rows, self._ms = dict[int, list[bytes]](), dict[int, float]()
        self._mixed, self._alone = set[int](), set[int]()
        self._change = 0.0
        self._saved: SavedState | None = None  # the first sequence, once it was read
        self._text = _varied(1024, engine)

    def run(self, is_interrupted: Callable[[], bool] = lambda: False) -> WidthClasses | None:
        """The classes, or None if interrupted, which takes at most one decode; the next call
        continues.
        """
        engine, self._is_interrupted = self._engine, is_interrupted
        length = max(1, min(LENGTH, engine.context_size - max(WIDE)))
        most = min(engine.max_batch_tokens, engine.max_outputs, engine.context_size - length)
        own = self.sequences[0]
        try:
            if self._saved:
                self._put_back()
            else:
                self._read(own, length)
                self._saved = engine.save_sequence(own)
            others = self._read_others(length)
            for width in (*range(1, 17), *WIDE):
                if width <= most and width not in self.rows:
                    self._look(width, length, others)
        except InterruptedError:
            return None
        finally:
            for seq_id in self.sequences:
                engine.clear(seq_id)
        return self._classes()

    def _look(self, width: int, length: int, others: list[int]) -> None:
        own, compared = self.sequences[0], list[bytes]()
        num = -(-self._num_rows // width) if width != LEAST_ROWS else CERTAIN_ROWS // width
        num = min(num, (self._engine.context_size - length) // width)
        for index in range(num):
            start = length + index * width
            tokens = self._text[start : start + width]
            compared += self._decode([(own, start, tokens)], index * width)
        self._put_back()
        alike = self._decode([(own, length, [self._text[length]] * width)])
        if alike[0] != compared[0]:
            self._mixed.add(width)
        self._put_back()
        if 2 <= width <= 1 + len(others):
            rows = [(own, length, [self._text[length]])]
            for index, seq_id in enumerate(self.sequences[1:width]):
                rows.append((seq_id, others[index], [self._text[others[index]]]))
                others[index] += 1
            if self._decode(rows)[0] != compared[0]:
                self._alone.add(width)
            self._put_back()
        self.rows[width] = compared

    def _decode(
        self, rows: list[tuple[int, int, list[int]]], index: int = LEAST_ROWS
    ) -> list[bytes]:
        """Digests of the rows; `index`: of the first one among the rows that are compared."""
        self._batch.clear()
        for seq_id, start, tokens in rows:
            self._batch.add(seq_id, start, tokens, len(tokens))
        self._engine.show_final_states(is_on=True)
        try:
            started = self._clock()
            logits = self._run()
            ms, width = 1000.0 * (self._clock() - started), self._batch.num_rows
            self._ms[width] = min(ms, self._ms.get(width, ms))
            states = self._engine.hidden_states().get(FINAL_STATE, logits)
        finally:
            self._engine.show_final_states(is_on=False)
        self._measure(logits, index)
        return [_digest(row, state) for row, state in zip(logits, states, strict=True)]

    def _run(self) -> Logits:
        if self._is_interrupted():
            raise InterruptedError
        return self._engine.decode(self._batch)

    def _measure(self, logits: Logits, start: int) -> None:
        """Keep the first width's rows, and the largest difference of others from them."""
        if start == 0 and self._first is None:
            self._first = np.full((LEAST_ROWS, logits.shape[1]), np.nan, np.float32)
        first = self._first
        if first is None or start + len(logits) > LEAST_ROWS:
            logits = logits[: max(0, LEAST_ROWS - start)]
        if first is None or not len(logits):
            return
        known = first[start : start + len(logits)]
        if np.isnan(known[:, 0]).all():
            known[:] = logits
        with np.errstate(invalid="ignore"):
            self._change = max(self._change, float(np.abs(known - logits).max()))

    def _classes(self) -> WidthClasses:
        classes: list[list[int]] = []
        # in wider decodes an expert may get as few rows, and may get as many
        least_mixed = min(self._mixed, default=NO_LIMIT)
        for width, rows in self.rows.items():
            if width >= least_mixed:
                continue
            for members in classes:
                other = max((self.rows[n] for n in members), key=len)
                num = min(len(other), len(rows))
                if other[:num] == rows[:num]:
                    members.append(width)
                    break
            else:
                classes.append([width])
        return WidthClasses(
            tuple(map(tuple, classes)),
            tuple(width for width in self.rows if width >= least_mixed),
            self._change,
            tuple((width, self._ms[width]) for width in self.rows),
            any(width < least_mixed for width in self._alone),
            has_reference=self._engine.has_reference,
        )

    def _put_back(self) -> None:
        assert self._saved is not None
        self._engine.restore_sequence(self.sequences[0], self._saved)

    def _read_others(self, length: int) -> list[int]:
        """Fill the other sequences, longer than the first one; returns their lengths."""
        longer = min(length + 230, self._engine.context_size - 32)
        lengths = [longer if i == 0 else 8 for i in range(len(self.sequences) - 1)]
        for seq_id, num in zip(self.sequences[1:], lengths, strict=True):
            self._read(seq_id, num)
        return lengths

    def _read(self, seq_id: int, length: int) -> None:
        size = min(32, self._batch.capacity)
        for start in range(0, length, size):
            self._batch.clear()
            self._batch.add(seq_id, start, self._text[start : min(start + size, length)], 1)
            self._run()


def _varied(num_tokens: int, engine: Engine) -> list[int]:
    """A text of tokens of which neighbours differ."""
    return [index * 7919 % engine.vocab_size for index in range(num_tokens)]  # a prime


def change_by_order(engine: Engine, own: int, other: int) -> float:
    """Largest change of a logit if half of a text lies in cells freed by another sequence.

    Attention sums in the order of cells. Both sequences must be empty, and are empty afterwards.
    """
    straight, moved = (
        logits_behind(engine, (own, other), _varied(40, engine), 20, num, num_outputs=LEAST_ROWS)
        for num in (0, 20)
    )
    return float(np.abs(straight - moved).max())


def logits_behind(
    engine: Engine,
    ids: tuple[int, int],
    tokens: Sequence[int],
    num_rows: int,
    num_behind: int = 0,
    num_outputs: int = 1,
) -> Logits:
    """Logits after the last of `tokens`, decoded on the first of two empty sequences.

    The first `num_behind` tokens take cells after the second sequence, which is then cleared, so
    that the rest takes its cells.
    """
    (own, other), batch = ids, Batch(engine.max_batch_tokens)
    size = min(num_rows, batch.capacity)

    def read(seq_id: int, start: int, end: int) -> Logits:
        for at in range(start, end, size):
            batch.clear()
            rows = tokens[at : min(at + size, end)]
            batch.add(seq_id, at, rows, min(num_outputs, len(rows)))
            logits = engine.decode(batch).copy()
        return logits

    try:
        if num_behind:
            read(other, 0, len(tokens) - num_behind)
            read(own, 0, num_behind)
            engine.clear(other)
        return read(own, num_behind, len(tokens))
    finally:
        engine.clear(own)
        if num_behind:
            engine.clear(other)


def _digest(row: NDArray[np.float32], state: NDArray[np.float32]) -> bytes:
    digest = hashlib.blake2b(row.data, digest_size=8)
    digest.update(state.data)
    return digest.digest()
