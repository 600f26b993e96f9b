"""Decodes that are timed before the first request."""

from __future__ import annotations

import itertools

import pytest

from headstart.control.cost_samples import REFERENCE_ROWS
from headstart.scheduler.warm_up import (
    FILL,
    MOST_PADDING,
    ROUNDS,
    ROWS,
    time_change,
    time_decodes,
)
from headstart.testing import FakeEngine
from headstart.types import Batch, Logits, Meanwhile


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


def test_an_interruption_ends_it_at_once_and_leaves_nothing_in_the_cache() -> None:
    engine, clock = FakeEngine(context_size=4096), ticking(1e-4)
    wishes = iter([False, False, True])
    samples = time_decodes(engine, lambda: next(clock), 100.0, is_interrupted=lambda: next(wishes))
    assert len(samples) == 3
    assert not engine.cells_used()


class SendingEngine(FakeEngine):
    """Decodes of other rows than the last take longer."""

    def __init__(self, change: float, noise: list[float]) -> None:
        super().__init__(context_size=4096)
        self.sends_graphs, self.now = True, 0.0
        self._change, self._noise, self._last = change, itertools.cycle(noise), 0

    def decode(self, batch: Batch, meanwhile: Meanwhile | None = None) -> Logits:
        self.now += 0.01 + next(self._noise) + self._change * (batch.num_rows != self._last)
        self._last = batch.num_rows
        return super().decode(batch, meanwhile)


NOISE = [0.003, 0.0, -0.002, 0.001, 0.004, -0.001, 0.0, -0.003, 0.002, 0.001, -0.004]


def test_what_a_change_of_the_graph_takes_is_measured() -> None:
    engine = SendingEngine(0.02, NOISE)
    assert time_change(engine, lambda: engine.now, 1) == pytest.approx(20.0, abs=4.0)
    assert not engine.cells_used()


def test_a_change_that_does_not_show_costs_nothing() -> None:
    engine = SendingEngine(0.0, NOISE)
    assert time_change(engine, lambda: engine.now, 1) == 0.0
    engine = SendingEngine(0.02, NOISE)
    engine.sends_graphs = False
    assert time_change(engine, lambda: engine.now, 1) == 0.0
    assert engine.now == 0.0


def test_every_size_is_seen_at_growing_contexts() -> None:
    clock = ticking(1e-4)
    samples = time_decodes(FakeEngine(context_size=4096), lambda: next(clock), 0.1, num_slots=2)
    assert [sample.rows for sample in samples] == list(ROWS * ROUNDS)
    for rows in ROWS:
        first, second, third = (sample.context for sample in samples if sample.rows == rows)
        assert first + FILL // 2 < second < third


def test_rows_are_varied_and_of_several_sequences_with_outputs_as_in_real_steps() -> None:
    seen: list[tuple[int, int, int, int]] = []

    def note(batch: Batch) -> None:
        n = batch.num_rows
        tokens, seq_ids = set(batch.tokens[:n].tolist()), set(batch.seq_ids[:n].tolist())
        seen.append((n, len(tokens), len(seq_ids), batch.num_outputs))

    engine, clock = FakeEngine(vocab_size=1000, context_size=4096, fail=note), ticking(1e-4)
    time_decodes(engine, lambda: next(clock), 100.0, num_slots=4)
    for rows, num_tokens, num_sequences, num_outputs in seen:
        assert num_sequences == min(rows, 4)
        assert num_tokens > rows // 2
        assert num_outputs == rows or rows == FILL


def test_widths_that_only_padding_reaches_are_timed_too() -> None:
    engine, clock = FakeEngine(context_size=4096), ticking(1e-4)
    engine.max_outputs = 3
    samples = time_decodes(engine, lambda: next(clock), 100.0, num_slots=3)
    assert max(sample.rows for sample in samples) == 3 + MOST_PADDING


def test_it_takes_little_more_time_than_it_was_given() -> None:
    clock = ticking(0.1)
    samples = time_decodes(FakeEngine(context_size=4096), lambda: next(clock), 3.0)
    assert 1 <= len(samples) < len(ROWS)
    assert next(clock) < 4.0
