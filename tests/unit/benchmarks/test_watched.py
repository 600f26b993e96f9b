"""The watchdog of the engine's loop tells what has the processor for long, not what waits."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from benchmarks.lib import watched
from benchmarks.lib.watched import LIMIT, Watchdog, page_seconds, tell_stalls

pytestmark = pytest.mark.timeout(120, method="thread")  # the other method needs SIGALRM, too


@pytest.fixture
def dog() -> Iterator[Watchdog]:
    yield Watchdog()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def compute() -> None:
    end = time.thread_time() + 2 * LIMIT
    while time.thread_time() < end:
        pass


def hold() -> None:
    """Compute without letting go of the interpreter."""
    pow(3, 1 << 19)


def rest() -> None:
    time.sleep(4 * LIMIT)


@pytest.mark.parametrize(("function", "code"), [(compute, 1), (hold, 1), (rest, 0)])
def test_computing_for_long_fails_with_its_stack_and_waiting_is_only_told(
    dog, function, code, capsys
):
    dog.piece("command", function)()
    log = capsys.readouterr().err
    assert tell_stalls(f"before\n{log}2026-01-01 a line of the log\n") == code
    told = capsys.readouterr().out
    assert "1 times" in told
    assert (f"in {function.__name__}" in told) == bool(code)
    assert "a line of the log" not in told


def test_the_first_use_of_one_page_does_not_count() -> None:
    def code(pages: int, milliseconds: float) -> int:
        return tell_stalls(f"watchdog: plan 0.0 {milliseconds} {pages} \n  no stack\n", page=0.008)

    assert [code(0, 6), code(1, 6), code(1, 14), code(9, 20)] == [1, 0, 1, 1]
    assert 0.0 < page_seconds() < 1.0


@pytest.mark.parametrize(("slow_reads", "code"), [(0, 1), (1, 1), (8, 0)])
def test_slow_pieces_fail_unless_work_that_is_always_the_same_is_slow_as_often(slow_reads, code):
    slow = "watchdog: plan 0.0 6.0 0 \n  no stack\n" * 40
    assert tell_stalls(f"{slow}watchdog: totals 50.0 10.0 {slow_reads}\n") == code


def test_what_pieces_and_reads_took_together_is_told_at_times(dog, capsys, monkeypatch) -> None:
    monkeypatch.setattr(watched, "TELL_SECONDS", 0.0)
    dog.piece("plan", compute)()
    _, _, pieces, reads, _ = capsys.readouterr().err.splitlines()[-1].split()
    assert float(pieces) > LIMIT
    assert 0 < float(reads) < 1


def test_a_decode_within_a_piece_does_not_count(dog, capsys) -> None:
    dog.piece("plan", dog.decode(compute))()
    assert not capsys.readouterr().err


def test_all_that_it_watches_is_there() -> None:
    watch = "from benchmarks.lib.watched import watch; watch()"
    subprocess.run([sys.executable, "-c", watch], check=True, timeout=60)
