"""The k largest of a row, and progress in words."""

from __future__ import annotations

import errno
import gc
import io
import logging
import threading
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from headstart.structures.progress import Progress
from headstart.structures.topk import top_k
from headstart.types.report import SlotReport
from headstart.types.request import Request
from headstart.worker.request_log import log_begin, tell_prompts

# short, in columns, with a rest, with tall columns
SIZES = [1, 7, 64, 4095, 4096, 4097, 32_000, 65_537, 152_001]


def check(values: NDArray[np.float32], k: int) -> None:
    """A full stable sort says the same."""
    expected = np.argsort(-values, kind="stable")[:k]
    ids, scores = top_k(values, k)
    assert ids.tolist() == expected.tolist()
    assert np.array_equal(scores, values[expected], equal_nan=True)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [1, 2, 40, 300])
def test_the_best_are_those_of_a_full_sort_in_its_order(size: int, k: int) -> None:
    random = np.random.default_rng(size + k)
    for values in (random.normal(0, 3, size), np.sort(random.normal(0, 3, size)), -np.arange(size)):
        check(values.astype(np.float32), k)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [1, 10, 40])
def test_of_equal_entries_the_first_are_taken_in_order(size: int, k: int) -> None:
    values = np.random.default_rng(0).integers(0, 5, size).astype(np.float32)
    values[::7] = -np.inf
    check(values, k)
    check(np.zeros(size, np.float32), k)
    values[:] = -np.inf
    values[size // 2] = 1.0
    check(values, k)


@pytest.mark.parametrize("size", [100, 10_000, 70_000])
def test_numbers_come_before_nans_that_hide_whole_columns(size: int) -> None:
    values = np.full(size, np.nan, np.float32)
    check(values, 10)
    values[size // 3 : size // 3 + 20] = np.arange(20)
    check(values, 10)


@pytest.mark.parametrize("size", SIZES)
def test_an_entry_far_above_all_others_is_returned_alone(size: int) -> None:
    values = np.random.default_rng(size).normal(0, 1, size).astype(np.float32)
    for place in {0, size // 2, size - 1}:
        changed = values.copy()
        changed[place] = 20.0
        ids, scores = top_k(changed, 40, 3.0)
        assert (ids.tolist(), scores.tolist()) == ([place], [20.0])


@pytest.mark.parametrize("size", [size for size in SIZES if size > 1])
def test_an_entry_with_another_close_to_it_is_not_alone(size: int) -> None:
    values = np.random.default_rng(size).normal(0, 1, size).astype(np.float32)
    width = max(1, size // 32)
    for place, other in ((0, size - 1), (size - 1, 0), (0, width % size), (size // 2, 0)):
        if place == other:
            continue
        changed = values.copy()
        changed[place], changed[other] = 20.0, 17.5
        assert top_k(changed, 40, 3.0)[0][:2].tolist() == [place, other]
        assert len(top_k(changed, 40, 2.4)[0]) == 1


def test_where_there_are_nans_no_entry_is_alone() -> None:
    values = np.zeros(10_000, np.float32)
    values[5], values[6] = 20.0, np.nan
    values[7] = 19.0
    assert top_k(values, 40, 3.0)[0].tolist()[:2] == [5, 7]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_on_a_terminal_long_work_is_a_line_that_moves_and_goes() -> None:
    clock, terminal = Clock(), Terminal()
    progress = Progress(clock, terminal)
    progress.tell({"loading": "1 %"})
    clock.now = 1.9
    progress.show()
    progress.tell({})
    assert terminal.getvalue() == ""
    progress.tell({"loading": "2 %"})
    for clock.now, share in ((4.0, "3 %"), (6.0, "9 %")):
        progress.tell({"loading": share})
        progress.show()
    progress.tell({})
    progress.show()
    assert terminal.getvalue() == "\rloading: 3 %, 2 s\x1b[K\rloading: 9 %, 4 s\x1b[K\r\x1b[K"


def test_work_goes_on_when_its_terminal_is_closed() -> None:
    class Closed(Terminal):
        def flush(self) -> None:
            raise OSError(errno.EIO, "Input/output error")

    clock = Clock()
    progress = Progress(clock, Closed())
    progress.tell({"loading": "1 %"})
    clock.now = 4.0
    progress.show()
    progress.tell({})


def test_a_thread_shows_work_that_says_nothing_until_it_is_forgotten() -> None:
    shown = threading.Semaphore(0)

    class Shown(Progress):
        def show(self) -> None:
            shown.release()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headstart.structures.progress.SECONDS", 0.001)
        before = set(threading.enumerate())
        progress = Shown()
        (thread,) = set(threading.enumerate()) - before
        for _ in range(3):
            assert shown.acquire(timeout=60)
        del progress
        gc.collect()
        thread.join(60)
        assert not thread.is_alive()


def test_a_long_prompt_is_in_the_log_also_while_a_step_takes_long(caplog) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    progress = Progress(clock)
    log_begin(Request(request_id="r", prompt=list(range(12_000))), progress)
    slot = SlotReport(
        slot_id=0, request_id="r", is_processing=True, num_prompt=12_000, num_processed=1000
    )
    short = SlotReport(slot_id=1, request_id="s", is_processing=True, num_prompt=70)
    for clock.now, slots in (
        (1.0, None),
        (3.0, None),
        (5.0, (slot, short)),
        (7.0, None),
        (9.0, (replace(slot, num_processed=12_000),)),
    ):
        if slots is not None:
            tell_prompts(slots, progress)
        progress.show()
    assert caplog.messages == [
        "request r: begins with 12000 prompt tokens",
        "request r: prompt, 0 of 12000 tokens, 3 s",
        "request r: prompt, 1000 of 12000 tokens, 5 s",
        "request r: prompt, 1000 of 12000 tokens, 7 s; request s: prompt, 0 of 70 tokens, 2 s",
    ]
