"""Decodes that are timed before the first request."""

from __future__ import annotations

import itertools

import pytest

from headstart.control.cost import REFERENCE_ROWS
from headstart.scheduler.warm_up import FILL, ROUNDS, ROWS, time_decodes
from headstart.testing import FakeEngine


def ticking(seconds: float) -> itertools.count[float]:
    """A clock that goes on by so much each time it is read."""
    return itertools.count(0.0, seconds)


@pytest.mark.parametrize("context", [2, 8, 64, 100, 2048])
def test_it_fits_into_every_context_and_leaves_nothing_in_the_cache(context: int) -> None:
    engine, clock = FakeEngine(context_size=context), ticking(1e-4)
    samples = time_decodes(engine, lambda: next(clock), 100.0)
    assert not engine.cells_used()
    assert all(sample.context + sample.rows <= context for sample in samples)
    assert bool(samples) == (context >= 2 * REFERENCE_ROWS)


def test_every_size_is_seen_at_growing_contexts() -> None:
    clock = ticking(1e-4)
    samples = time_decodes(FakeEngine(context_size=4096), lambda: next(clock), 100.0)
    assert [sample.rows for sample in samples] == list(ROWS * ROUNDS)
    for rows in ROWS:
        first, second, third = (sample.context for sample in samples if sample.rows == rows)
        assert first + FILL < second < third


def test_it_takes_little_more_time_than_it_was_given() -> None:
    clock = ticking(0.1)
    samples = time_decodes(FakeEngine(context_size=4096), lambda: next(clock), 3.0)
    assert 1 <= len(samples) < len(ROWS)
    assert next(clock) < 4.0
