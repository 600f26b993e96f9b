"""The watchdog of the engine's loop tells what has the processor for long, not what waits."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from benchmarks.lib.watched import LIMIT, Watchdog, page_seconds, tell_stalls


def compute(dog: Watchdog) -> None:
    end = time.thread_time() + 2 * LIMIT
    while time.thread_time() < end:
        pass
    dog.look()


def rest(dog: Watchdog) -> None:
    time.sleep(2 * LIMIT)
    dog.look()


@pytest.mark.parametrize(("function", "code"), [(compute, 1), (rest, 0)])
def test_computing_for_long_fails_with_its_stack_and_waiting_is_only_told(function, code, capsys):
    dog = Watchdog()
    dog.piece("command", function)(dog)
    log = capsys.readouterr().err
    assert tell_stalls(f"before\n{log}2026-01-01 a line of the log\n") == code
    told = capsys.readouterr().out
    assert "1 times" in told
    assert (f"in {function.__name__}" in told) == bool(code)
    assert "a line of the log" not in told


def test_the_first_use_of_one_page_does_not_count() -> None:
    def code(pages: int, milliseconds: float) -> int:
        return tell_stalls(f"watchdog: plan 0.0 {milliseconds} {pages} \nno stack\n", page=0.008)

    assert [code(0, 6), code(1, 6), code(1, 14), code(9, 20)] == [1, 0, 1, 1]
    assert 0.0 < page_seconds() < 1.0


def test_a_decode_within_a_piece_does_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    dog = Watchdog()
    dog.piece("plan", dog.decode(compute))(dog)
    assert not capsys.readouterr().err


def test_all_that_it_watches_is_there() -> None:
    watch = "from benchmarks.lib.watched import watch; watch()"
    subprocess.run([sys.executable, "-c", watch], check=True, timeout=60)
