"""What decodes of a drafting model take, measured while no request runs."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

SAMPLE_ROWS = 64  # read to time reading


def times_of(
    clock: Callable[[], float], draft: Callable[[], None], read: Callable[[], None]
) -> tuple[float, float]:
    """Milliseconds of a draft round and of reading a sample; a slow machine is timed once."""
    rounds, readings, end = list[float](), list[float](), clock() + 1.5
    for _ in range(3):  # the first brings the weights into memory
        for work, times in ((draft, rounds), (read, readings)):
            started = clock()
            work()
            times.append(1000.0 * (clock() - started))
        if clock() > end:
            break
    return median(rounds[1:] or rounds), median(readings[1:] or readings)
