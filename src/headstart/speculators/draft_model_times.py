"""What decodes of a draft model take, measured before the first request."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from headstart.types import Batch, Engine

_SAMPLE, _SAMPLES = 64, 2  # tokens read to time reading, and how often ...


def time_decodes(engine: Engine, batch: Batch, clock: Callable[[], float]) -> tuple[float, float]:
    """Milliseconds of a decode of one row, and of each further row."""
    size = min(_SAMPLE, engine.max_batch_tokens, engine.context_size)
    one, many, end = [], [], clock() + 1.5
    for _ in range(1 + _SAMPLES):  # the first brings the weights into memory
        one.append(_time_decode(engine, batch, 1, clock))
        many.append(_time_decode(engine, batch, size, clock))
        if clock() > end:
            break
    round_ms = median(one[1:] or one)
    return round_ms, max(0.0, median(many[1:] or many) - round_ms) / max(1, size - 1)


def _time_decode(engine: Engine, batch: Batch, rows: int, clock: Callable[[], float]) -> float:
    started = clock()
    batch.clear()
    batch.add(0, 0, [0] * rows, 1)
    engine.decode(batch)
    engine.clear(0)
    return 1000.0 * (clock() - started)
