"""Time some decodes before the first request, so that control need not find out what rows cost on
the first texts.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from headstart.control.cost import REFERENCE_ROWS, Sample
from headstart.types import Batch, Engine

ROWS, ROUNDS = (1, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32), 3  # both sides of kernels' tiles
FILL = 128  # tokens put in the cache after the first round


def time_decodes(engine: Engine, clock: Callable[[], float], seconds: float) -> list[Sample]:
    """Decode batches of some sizes; takes little more than `seconds`, and needs an empty cache.

    A machine may be slower for seconds: each size is compared with decodes of REFERENCE_ROWS around
    it. The rows stay in the cache until the end, so each size is seen at growing contexts, which
    tells what attention costs. Also brings the weights into memory.
    """
    timer, end = _Timer(engine, clock), clock() + seconds
    most = min(engine.max_outputs, engine.max_batch_tokens, engine.context_size)
    if most < REFERENCE_ROWS or engine.context_size < 2 * REFERENCE_ROWS:
        return []
    sizes = [n for n in ROWS if n <= most]
    timer.decode(REFERENCE_ROWS)
    decodes: list[tuple[int, int, float]] = []  # rows, context, milliseconds
    references = [timer.decode(REFERENCE_ROWS)]
    for turn, rows in enumerate(sizes * ROUNDS):
        if (
            turn == len(sizes)
            and clock() + decodes[-1][2] / 1000.0 * FILL / sizes[-1] < end
            and timer.has_room(FILL)
        ):
            timer.decode(FILL, num_outputs=1)
        decodes.append((rows, timer.make_room(rows), timer.decode(rows)))
        references.append(timer.decode(REFERENCE_ROWS))
        if clock() > end:
            break
    engine.clear(0)
    return [
        Sample(*decode, median(references[max(0, i - 1) : i + 3]))
        for i, decode in enumerate(decodes)
    ]


class _Timer:
    """Decodes tokens of sequence 0."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self.context = 0  # tokens in the cache
        self._engine, self._clock = engine, clock
        self._batch = Batch(engine.max_batch_tokens)

    def make_room(self, rows: int) -> int:
        """Empty the cache if so many rows do not fit; returns the tokens that are left in it."""
        if self.context + rows > self._engine.context_size:
            self._engine.clear(0)
            self.context = 0
        return self.context

    def has_room(self, rows: int) -> bool:
        """Whether so many rows and then each size fit into one batch and the context."""
        room = self._engine.context_size - self.context
        return (
            rows <= self._engine.max_batch_tokens
            and rows + sum(ROWS) + len(ROWS) * REFERENCE_ROWS <= room
        )

    def decode(self, rows: int, num_outputs: int | None = None) -> float:
        """Milliseconds of a decode of so many rows, all with logits unless told otherwise."""
        self.make_room(rows)
        started = self._clock()
        self._batch.clear()
        self._batch.add(0, self.context, [0] * rows, rows if num_outputs is None else num_outputs)
        self._engine.decode(self._batch)
        self.context += rows
        return 1000.0 * (self._clock() - started)
