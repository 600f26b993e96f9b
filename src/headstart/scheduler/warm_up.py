"""Time some decodes before the first request, so that control need not find out what rows cost on the first texts."""

from __future__ import annotations

from collections.abc import Callable

from headstart.control.cost import Sample
from headstart.types import Batch, Engine

ROWS, ROUNDS = (2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32), 3  # both sides of kernels' tiles
FILL = 128  # tokens put in the cache after the first round


def time_decodes(engine: Engine, clock: Callable[[], float], seconds: float) -> list[Sample]:
    """Decode batches of some sizes; takes little more than `seconds`, and needs an empty cache.

    A machine may be slower for seconds: each size is compared with single rows right before and after
    it. The rows stay in the cache until the end, so each size is seen at growing contexts, which tells
    what attention costs. Also brings the weights into memory.
    """
    timer, end = _Timer(engine, clock), clock() + seconds
    sizes = [n for n in ROWS if n <= min(engine.max_outputs, engine.max_batch_tokens, engine.context_size)]
    timer.decode(1)
    samples: list[Sample] = []
    single = timer.decode(1)
    for turn, rows in enumerate(sizes * ROUNDS):
        if turn == len(sizes) and clock() + samples[-1].milliseconds / 1000.0 * FILL / rows < end:
            timer.decode(min(FILL, engine.max_batch_tokens), num_outputs=1)
            single = timer.decode(1)
        before, context = single, timer.context
        milliseconds, single = timer.decode(rows), timer.decode(1)
        samples.append(Sample(rows, context, milliseconds, 0.5 * (before + single)))
        if clock() > end:
            break
    engine.clear(0)
    return samples


class _Timer:
    """Decodes tokens of sequence 0."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self.context = 0  # tokens in the cache
        self._engine, self._clock = engine, clock
        self._batch = Batch(engine.max_batch_tokens)

    def decode(self, rows: int, num_outputs: int | None = None) -> float:
        """Milliseconds of a decode of so many rows; all of them have logits unless told otherwise."""
        if self.context + rows > self._engine.context_size:
            self._engine.clear(0)
            self.context = 0
        started = self._clock()
        self._batch.clear()
        self._batch.add(0, self.context, [0] * rows, rows if num_outputs is None else num_outputs)
        self._engine.decode(self._batch)
        self.context += rows
        return 1000.0 * (self._clock() - started)
