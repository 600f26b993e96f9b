"""What a step costs by its rows: a curve that was given, or times taken from an engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from headstart.types import Batch, Engine
from headstart.types.errors import ConfigError


class CostCurve:
    """Milliseconds of a step by rows: linear between the points given, and beyond the last two."""

    def __init__(self, points: Mapping[int, float]) -> None:
        """Take milliseconds by rows.

        Raises:
            ConfigError: fewer than two points, or one that is not positive.
        """
        if len(points) < 2 or min(points) < 1 or not min(points.values()) > 0.0:
            raise ConfigError(
                f"a cost curve needs two or more positive ROWS:MILLISECONDS, got {dict(points)}"
            )
        self._rows, self._ms = sorted(points), [points[rows] for rows in sorted(points)]

    @classmethod
    def parse(cls, text: str) -> CostCurve:
        """From "1:48,2:64".

        Raises:
            ConfigError: it is something else.
        """
        try:
            pairs = [point.split(":") for point in text.split(",")]
            return cls({int(rows): float(milliseconds) for rows, milliseconds in pairs})
        except ValueError as error:
            raise ConfigError(
                f"{text!r} is no cost curve; write ROWS:MILLISECONDS,..., for instance 1:48,2:64"
            ) from error

    def __str__(self) -> str:
        """As `parse` reads it, in three digits."""
        return ",".join(
            f"{rows}:{float(f'{ms:.3g}'):g}" for rows, ms in zip(self._rows, self._ms, strict=True)
        )

    def __call__(self, rows: int) -> float:
        right = next((i for i, x in enumerate(self._rows) if x >= rows), len(self._rows) - 1)
        left, right = max(0, right - 1), max(1, right)
        (x0, y0), (x1, y1) = (
            (self._rows[left], self._ms[left]),
            (self._rows[right], self._ms[right]),
        )
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)


class StepTimes(NamedTuple):
    """Milliseconds by rows, one for each repetition."""

    steady: dict[int, list[float]]  # of a shape that the decode before it had, too
    changed: dict[int, list[float]]  # of another shape: libllama builds a new graph


def time_steps(
    engine: Engine,
    rows: Sequence[int],
    *,
    context: int,
    num_repeats: int,
    num_outputs: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> StepTimes:
    """Time `num_repeats` decodes of each number of rows behind `context` tokens.

    The numbers of rows take turns, so that what slows the machine down slows all alike; each is
    decoded twice in a turn. All rows have logits, or the last `num_outputs`. Tokens are random, so
    a mixture of experts reads at least as many experts as for text. The cache is empty afterwards.

    Raises:
        ConfigError: the engine decodes no such batch.
    """
    if not rows or min(rows) < 1 or max(rows) > min(engine.max_outputs, engine.max_batch_tokens):
        raise ConfigError(
            f"rows are {','.join(map(str, rows))} but one decode takes 1 to "
            f"{min(engine.max_outputs, engine.max_batch_tokens)}"
        )
    if context + max(rows) > engine.context_size:
        raise ConfigError(
            f"{context} tokens and {max(rows)} rows do not fit into {engine.context_size} of "
            "context"
        )
    batch = Batch(engine.max_batch_tokens)
    tokens = np.random.default_rng(0).integers(engine.vocab_size, size=context + max(rows)).tolist()

    def decode(start: int, end: int, num_outputs: int) -> None:
        batch.clear()
        batch.add(0, start, tokens[start:end], num_outputs)
        engine.decode(batch)

    def read() -> None:
        engine.clear(0)
        for start in range(0, context, batch.capacity):
            decode(start, min(context, start + batch.capacity), 1)

    times = StepTimes({num: [] for num in rows}, {num: [] for num in rows})
    read()
    for _ in range(num_repeats):
        for num_rows in rows:
            for kind in (times.changed, times.steady):
                started = clock()
                decode(context, context + num_rows, min(num_rows, num_outputs or num_rows))
                kind[num_rows].append(1000.0 * (clock() - started))
                if not engine.truncate(0, context):
                    read()
    engine.clear(0)
    return times
