"""Time some decodes before the first request, so that control need not find out what rows cost on
the first texts.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from headstart.control.cost_samples import REFERENCE_ROWS, Sample
from headstart.types import Batch, Engine

# Each width up to 17 by itself, because kernels like some of them; what few users need comes first.
ROWS = (1, 4, 3, 8, 5, 6, 7, 16, 12, 9, 17, 10, 24, 14, 11, 32, 13, 15)
ROUNDS, MOST_ROUNDS = 3, 12  # fast steps are disturbed more, and cost nothing to repeat ...
QUICK = 0.1  # ... as long as all of it takes no more than this share of the time there is
NEEDED_ROWS = 8  # control should know what steps of as many rows cost before the first request
MOST_PADDING = 8  # rows beyond those that can have outputs: padding has none
FILL = 128  # tokens put in the cache after the first round
CHANGE_ROUNDS = 13
CERTAIN_ROUNDS = 11  # as many by chance: 1 %
_TOKEN_STEP = 7919  # prime: neighbours are unlike, so a mixture of experts reads different ones


def time_decodes(
    engine: Engine,
    clock: Callable[[], float],
    seconds: float,
    num_slots: int = 1,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> list[Sample]:
    """Decode batches of some sizes; takes little more than `seconds`, and needs an empty cache.

    A machine may be slower for seconds: each size is compared with decodes of REFERENCE_ROWS around
    it. The rows belong to as many sequences as there are slots, as those of real steps do. They
    stay in the cache until the end, so each size is seen at growing contexts, which tells what
    attention costs. Also brings the weights into memory. Ends early, with what there is, once it
    is interrupted.
    """
    timer, started = _Timer(engine, clock, num_slots), clock()
    end = started + seconds
    if not timer.fits(REFERENCE_ROWS):
        return []
    sizes = [n for n in ROWS if timer.fits(n)]
    timer.decode(REFERENCE_ROWS)
    decodes: list[tuple[int, int, float]] = []  # rows, context, milliseconds
    references = [timer.decode(REFERENCE_ROWS)]
    for turn, rows in enumerate(sizes * MOST_ROUNDS):
        if turn >= ROUNDS * len(sizes) and clock() > started + QUICK * seconds:
            break
        if turn == len(sizes) and clock() + timer.last_row_ms * FILL / 1000.0 < end:
            timer.fill()
        decodes.append((rows, timer.make_room(rows), timer.decode(rows)))
        # every second one: the other has its references before it
        references.append(timer.decode(REFERENCE_ROWS) if turn % 2 else references[-1])
        if clock() > end or is_interrupted():
            break
    timer.clear()
    return [
        Sample(*decode, median(references[max(0, i - 1) : i + 3]))
        for i, decode in enumerate(decodes)
    ]


def time_change(engine: Engine, clock: Callable[[], float], num_slots: int) -> float:
    """Milliseconds that a decode takes longer if its shape is not the last one's; 0 if that does
    not show.

    Needs an empty cache.
    """
    timer = _Timer(engine, clock, num_slots)
    if not engine.sends_graphs or not timer.fits(REFERENCE_ROWS + 1):
        return 0.0
    more = []
    for _ in range(CHANGE_ROUNDS):
        timer.decode(REFERENCE_ROWS + 1)
        changed = timer.decode(REFERENCE_ROWS)
        more.append(changed - timer.decode(REFERENCE_ROWS))
    timer.clear()
    is_certain = sum(ms > 0.0 for ms in more) >= CERTAIN_ROUNDS
    return median(more) if is_certain else 0.0


class _Timer:
    """Decodes tokens of some sequences."""

    def __init__(self, engine: Engine, clock: Callable[[], float], num_slots: int) -> None:
        self.last_row_ms = 0.0
        self._engine, self._clock = engine, clock
        self._batch = Batch(engine.max_batch_tokens)
        self._lengths = [0] * max(1, num_slots)  # tokens in the cache, by sequence

    def fits(self, rows: int) -> bool:
        """Whether so many rows can be decoded twice, and whether a step can have so many."""
        engine = self._engine
        most = engine.max_outputs + MOST_PADDING * (engine.padding_sequence is not None)
        return rows <= min(most, engine.max_batch_tokens) and 2 * rows <= min(
            engine.num_cells, engine.context_size * len(self._lengths)
        )

    def make_room(self, rows: int) -> int:
        """Empty the cache if so many rows do not fit; returns the context of a row on average."""
        if not self._has_room(rows):
            self.clear()
        shares = self._deal(rows)
        attended = sum(n * length for n, length in zip(shares, self._lengths, strict=True))
        return attended // rows

    def clear(self) -> None:
        """Empty the cache."""
        for seq_id in range(len(self._lengths)):
            self._engine.clear(seq_id)
            self._lengths[seq_id] = 0

    def fill(self) -> None:
        """Make the context longer, if all sizes fit behind it."""
        if self._engine.max_batch_tokens >= FILL and self._has_room(FILL + 2 * sum(ROWS)):
            self.decode(FILL, num_outputs=1)

    def decode(self, rows: int, num_outputs: int | None = None) -> float:
        """Milliseconds of a decode of so many rows; as many as may have logits unless told."""
        self.make_room(rows)
        left = min(rows, self._engine.max_outputs) if num_outputs is None else num_outputs
        started = self._clock()
        self._batch.clear()
        for seq_id, count in enumerate(self._deal(rows)):
            if count:
                self._add(seq_id, count, min(left, count))
                left -= min(left, count)
        self._engine.decode(self._batch)
        milliseconds = 1000.0 * (self._clock() - started)
        self.last_row_ms = milliseconds / rows
        return milliseconds

    def _add(self, seq_id: int, count: int, num_outputs: int) -> None:
        start, size = self._lengths[seq_id], self._engine.vocab_size
        first = start + seq_id * self._engine.context_size
        tokens = [(first + i) * _TOKEN_STEP % size for i in range(count)]
        self._batch.add(seq_id, start, tokens, num_outputs)
        self._lengths[seq_id] += count

    def _deal(self, rows: int) -> list[int]:
        """Rows of each sequence."""
        num_sequences = len(self._lengths)
        return [rows // num_sequences + (i < rows % num_sequences) for i in range(num_sequences)]

    def _has_room(self, rows: int) -> bool:
        engine = self._engine
        longest = max(a + b for a, b in zip(self._lengths, self._deal(rows), strict=True))
        return longest <= engine.context_size and sum(self._lengths) + rows <= engine.num_cells
