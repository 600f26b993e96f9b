"""Decodes that are timed before the first request."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from tests.harness import Model, Oracle, make_scheduler, run
from tests.planted import fail_at

from headstart.control.cost import REFERENCE_ROWS, Sample
from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.warm_up import MOST_PADDING, ROUNDS, ROWS, DecodeTimer, WarmUp
from headstart.scheduler.widths import WidthComparison, _varied
from headstart.testing import FakeEngine
from headstart.types import Batch, CacheKind, Checkpoint, ContextFullError
from headstart.types.errors import EngineError
from headstart.types.request import Request
from headstart.types.widths import WidthClasses


def time_decodes(
    engine: FakeEngine,
    clock: Callable[[], float],
    seconds: float,
    num_slots: int = 1,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> list[Sample]:
    timer = DecodeTimer(engine, clock, seconds)
    timer.begin(range(num_slots), engine.num_cells)
    if timer.fits(REFERENCE_ROWS):
        timer.go_on(is_interrupted)
    timer.clear()
    assert not engine.cells_used()
    return timer.samples


def ticking(seconds: float = 1e-4) -> Callable[[], float]:
    """A clock that goes on by so much each time it is read."""
    return partial(next, itertools.count(0.0, seconds))


def at_look(number: int) -> Callable[[], bool]:
    """Somebody asks for something when it is looked for the `number`th time."""
    looks = itertools.count(1)
    return lambda: next(looks) >= number


@pytest.mark.parametrize("context", [2, 8, 64, 100, 2048])
def test_it_fits_into_every_context_and_leaves_nothing_in_the_cache(context: int) -> None:
    samples = time_decodes(FakeEngine(context_size=context), ticking(), 100.0)
    assert all(sample.context + sample.rows <= context for sample in samples)
    assert bool(samples) == (context >= 2 * REFERENCE_ROWS)


def test_an_interruption_ends_it_at_once_and_leaves_nothing_in_the_cache() -> None:
    engine = FakeEngine(context_size=4096)
    samples = time_decodes(engine, ticking(), 100.0, is_interrupted=at_look(3))
    assert len(samples) == 3


def test_every_size_is_seen_at_growing_contexts() -> None:
    samples = time_decodes(FakeEngine(context_size=4096), ticking(), 0.1, num_slots=2)
    assert [sample.rows for sample in samples] == list(ROWS * ROUNDS)
    for rows in ROWS:
        first, second, third = (sample.context for sample in samples if sample.rows == rows)
        assert first < second < third


def test_rows_are_varied_and_of_several_sequences_with_outputs_as_in_real_steps() -> None:
    seen: list[tuple[int, int, int, int]] = []

    def note(batch: Batch) -> None:
        n = batch.num_rows
        tokens, seq_ids = set(batch.tokens[:n].tolist()), set(batch.seq_ids[:n].tolist())
        seen.append((n, len(tokens), len(seq_ids), batch.num_outputs))

    engine = FakeEngine(vocab_size=1000, context_size=4096, fail=note)
    time_decodes(engine, ticking(), 100.0, num_slots=4)
    for rows, num_tokens, num_sequences, num_outputs in seen:
        assert num_sequences == min(rows, 4)
        assert num_tokens > rows // 2
        assert num_outputs == rows


def test_widths_that_only_padding_reaches_are_timed_too() -> None:
    engine = FakeEngine(context_size=4096)
    engine.max_outputs = 3
    samples = time_decodes(engine, ticking(), 100.0, num_slots=3)
    assert max(sample.rows for sample in samples) == 3 + MOST_PADDING


def test_it_takes_little_more_time_than_it_was_given() -> None:
    clock = ticking(0.1)
    samples = time_decodes(FakeEngine(context_size=4096), clock, 3.0)
    assert 1 <= len(samples) < len(ROWS)
    assert clock() < 4.0


@pytest.mark.parametrize("num_before", [1, 2, len(ROWS), 2 * len(ROWS) + 5])
def test_it_goes_on_where_it_was_interrupted(num_before: int) -> None:
    engine, clock = FakeEngine(context_size=4096), ticking()
    timer = DecodeTimer(engine, clock, 0.1)
    timer.begin([0], engine.num_cells)
    timer.go_on(at_look(num_before))
    assert len(timer.samples) == num_before
    assert not timer.is_done
    timer.go_on()
    assert timer.is_done
    assert [sample.rows for sample in timer.samples] == list(ROWS * ROUNDS)


def a_scheduler(
    num_slots: int, num_prompts: int, cache_kind: CacheKind = CacheKind.CUT
) -> Scheduler:
    """Slots of which the first hold prompts that were answered."""
    engine = Model(num_cells=4096, cache_kind=cache_kind)
    scheduler = make_scheduler(engine, parallel=num_slots)
    prompts = [[1 + index] * 20 for index in range(num_prompts)]
    wanted = [Request(request_id=str(i), prompt=p, max_tokens=4) for i, p in enumerate(prompts)]
    run(scheduler, wanted)
    assert sum(bool(slot.length) for slot in scheduler.cells) == num_prompts
    return scheduler


def a_warm_up(
    scheduler: Scheduler, compared: Callable[[WidthClasses], object] | None = None
) -> WarmUp:
    parts = scheduler.engine, scheduler.drafting, scheduler.cells
    return WarmUp(*parts, ticking(), 0.1, compared)


def fake(scheduler: Scheduler) -> FakeEngine:
    assert isinstance(scheduler.engine, FakeEngine)
    return scheduler.engine


def held(scheduler: Scheduler) -> dict[int, list[int]]:
    return {seq_id: list(cells) for seq_id, cells in fake(scheduler).cache.items() if cells}


@pytest.mark.parametrize(("num_slots", "num_prompts"), [(1, 1), (3, 1), (3, 3), (4, 0)])
def test_slots_keep_what_they_hold(num_slots: int, num_prompts: int) -> None:
    scheduler = a_scheduler(num_slots, num_prompts)
    warm_up, before = a_warm_up(scheduler), held(scheduler)
    warm_up.go_on()
    assert warm_up.is_done
    assert scheduler.drafting.controller.cost.is_known(17)
    assert held(scheduler) == before


def test_a_copied_state_is_timed_when_its_memory_is_allocated() -> None:
    now, allocated = [0.0], set[int]()

    class Allocating(Model):
        def _checkpoint_of(self, seq_id: int) -> Checkpoint:
            now[0] += 0.001 if seq_id in allocated else 0.020
            allocated.add(seq_id)
            return super()._checkpoint_of(seq_id)

    engine = Allocating(num_cells=4096, cache_kind=CacheKind.CHECKPOINT)
    scheduler = make_scheduler(engine, parallel=4)

    def clock() -> float:
        now[0] += 1e-5
        return now[0]

    WarmUp(scheduler.engine, scheduler.drafting, scheduler.cells, clock, 0.1).go_on()
    assert allocated == {0, 1, 2, 3}
    assert scheduler.drafting.controller._budget.copy_ms == pytest.approx(1.0, abs=0.1)
    assert not engine.checkpoints.num_bytes


def test_where_every_sequence_holds_something_it_waits() -> None:
    scheduler = a_scheduler(2, 2)
    scheduler.engine.padding_sequence = None
    warm_up = a_warm_up(scheduler)
    warm_up.go_on()
    assert not warm_up.is_done
    scheduler.engine.clear(1)
    scheduler.cells[1].hold([])
    warm_up.go_on()
    assert warm_up.is_done


@pytest.mark.parametrize("num_free", [0, 3, 4, 8, 40, 200])
def test_it_takes_no_more_cells_than_are_free(num_free: int) -> None:
    scheduler = a_scheduler(1, 1)
    scheduler.engine.num_cells = fake(scheduler).cells_used() + num_free
    warm_up = a_warm_up(scheduler)
    warm_up.go_on()  # the engine refuses a decode without cells
    assert warm_up.is_done == (num_free >= 2 * REFERENCE_ROWS)


@pytest.mark.parametrize(
    ("num_decodes", "error"), [(9, ContextFullError()), (0, EngineError("the device is gone"))]
)
def test_a_decode_that_fails_or_finds_no_cells_ends_it_and_nothing_else(num_decodes, error) -> None:
    scheduler = a_scheduler(2, 1)
    warm_up, before = a_warm_up(scheduler), held(scheduler)
    fail_at(fake(scheduler), range(num_decodes, 10**9), error)
    warm_up.go_on()
    assert warm_up.is_done
    assert held(scheduler) == before


@pytest.mark.parametrize("kind", [CacheKind.ROLLBACK, CacheKind.CHECKPOINT])
@pytest.mark.parametrize("num_unused", [1, 2])
def test_a_failed_decode_of_several_sequences_leaves_no_recurrent_state_that_may_be_anybodys(
    num_unused: int, kind: CacheKind
) -> None:
    scheduler = a_scheduler(1 + num_unused, 1, kind)
    fail_at(fake(scheduler), [0])
    a_warm_up(scheduler).go_on()
    assert bool(held(scheduler)) == any(c.length for c in scheduler.cells) == (num_unused == 1)


def test_a_decode_that_fails_ends_the_comparison_of_widths_and_nothing_else() -> None:
    scheduler, found = a_scheduler(2, 0), list[object]()
    a_warm_up(scheduler).go_on()
    warm_up = a_warm_up(scheduler, found.append)
    fail_at(fake(scheduler), [0])
    warm_up.go_on()
    assert warm_up.is_done
    assert not found


def test_nothing_that_was_compared_is_kept_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of sixteen rows are 10 MB with a large vocabulary."""
    made, begin = weakref.WeakSet[WidthComparison](), WidthComparison.__init__

    def note(comparison: WidthComparison, *given: Any, **more: Any) -> None:
        made.add(comparison)
        begin(comparison, *given, **more)

    monkeypatch.setattr(WidthComparison, "__init__", note)
    scheduler, found = a_scheduler(2, 0), list[object]()
    warm_up = a_warm_up(scheduler, found.append)
    assert made
    warm_up.go_on()
    assert found
    assert not made


def test_nothing_is_timed_that_is_known_from_an_earlier_start() -> None:
    scheduler = a_scheduler(2, 0)
    a_warm_up(scheduler).go_on()
    assert a_warm_up(scheduler).is_done


class Priced(Oracle):
    """A draft model that says how often it was timed."""

    is_model = True
    num_timed = 0

    def time_decodes(self, clock: Callable[[], float]) -> tuple[float, float]:
        self.num_timed += 1
        return 1.0, 0.1


@pytest.mark.parametrize("num_interrupted", [0, 1])
def test_draft_models_are_timed_once_and_only_before_the_first_request(num_interrupted) -> None:
    scheduler = a_scheduler(2, 0)
    model = Priced(Model(), [])
    guarded = GuardedSpeculator(model, scheduler.engine.vocab_size)
    scheduler.drafting.speculators = {"oracle": guarded}
    warm_up = a_warm_up(scheduler)
    for _ in range(num_interrupted):
        warm_up.go_on(at_look(30))
    assert model.num_timed == 0
    warm_up.go_on()
    warm_up.go_on()
    assert model.num_timed == (num_interrupted == 0)


@pytest.mark.parametrize("kind", [CacheKind.CUT, CacheKind.ROLLBACK])
def test_a_sample_has_the_rows_that_the_target_computes(kind: CacheKind) -> None:
    engine = Model(4)
    engine.cache_kind = kind
    timer = DecodeTimer(engine, time.perf_counter, 1.0)
    timer.begin(range(4), engine.num_cells)
    rows = [timer.num_computed(n) for n in (1, 4, 5, 7, 9)]
    assert rows == ([1, 4, 8, 8, 12] if kind is CacheKind.ROLLBACK else [1, 4, 5, 7, 9])


def test_rows_are_dealt_equally_where_others_would_take_a_further_pass() -> None:
    engine = Model(4, cache_kind=CacheKind.CHECKPOINT)
    timer = DecodeTimer(engine, time.perf_counter, 1.0)
    timer.begin(range(4), engine.num_cells)
    dealt = [[rows for rows in timer._deal(n) if rows] for n in (3, 5, 8, 9)]
    assert dealt == [[1, 1, 1], [5], [2, 2, 2, 2], [3, 3, 3]]


@pytest.mark.parametrize("vocab_size", [4096, 32_000, 151_936])
def test_rows_that_are_compared_have_different_tokens(vocab_size: int) -> None:
    engine: Any = SimpleNamespace(vocab_size=vocab_size)
    assert len(set(_varied(64, engine))) == 64
