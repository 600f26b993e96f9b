"""The k largest of a row, and progress in words."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from headstart.structures.progress import Progress
from headstart.structures.topk import top_k
from headstart.types.report import SlotReport
from headstart.types.request import Request
from headstart.worker.request_log import PromptLog

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


def test_every_two_seconds_a_terminal_shows_a_line_that_moves_and_goes() -> None:
    clock, terminal = Clock(), Terminal()
    progress = Progress(clock, terminal)
    for clock.now in (0.5, 1.9):
        progress.tell("early")
    progress.end()
    assert terminal.getvalue() == ""
    for clock.now in (2.0, 3.0, 4.1):
        progress.tell(f"at {clock.now}")
    progress.end()
    assert terminal.getvalue() == "\rat 2.0\x1b[K\rat 4.1\x1b[K\r\x1b[K"


@pytest.mark.parametrize(("seconds", "told"), [(0.5, [4, 8]), (3.0, range(1, 12))])
def test_a_long_prompt_is_in_the_log(
    seconds: float, told: Iterable[int], caplog: pytest.LogCaptureFixture
) -> None:
    """After its first step, too, if that takes long."""
    caplog.set_level(logging.INFO)
    clock = Clock()
    prompts = PromptLog(clock)
    prompts.begin(Request(request_id="r", prompt=list(range(12_000))))
    for step in range(1, 13):
        clock.now = step * seconds
        slot = SlotReport(
            slot_id=0,
            request_id="r",
            is_processing=True,
            num_prompt=12_000,
            num_processed=1000 * step,
        )
        prompts.note([slot])
    begins, *lines = caplog.messages
    assert begins == "request r: begins with 12000 prompt tokens"
    assert lines == [f"request r: prompt, {n}000 of 12000 tokens" for n in told]
