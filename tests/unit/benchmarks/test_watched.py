"""The watchdog of the engine's loop tells what has the processor for long, not what waits."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from benchmarks.lib.watched import LIMIT, Watchdog, tell_stalls


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


def test_a_decode_within_a_piece_does_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    dog = Watchdog()
    dog.piece("plan", dog.decode(compute))(dog)
    assert not capsys.readouterr().err


def test_all_that_it_watches_is_there() -> None:
    watch = "from benchmarks.lib.watched import watch; watch()"
    subprocess.run([sys.executable, "-c", watch], check=True, timeout=60)
