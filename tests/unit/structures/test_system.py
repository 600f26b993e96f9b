"""Pools of threads: they start whole or not at all, and need no further thread."""

from __future__ import annotations

import threading

import pytest

from headstart.structures.system import start_threads


def test_a_pool_works_on_when_the_system_has_no_room_for_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both_run = threading.Barrier(2)
    pool = start_threads("test", 2)
    monkeypatch.setattr(threading.Thread, "start", _fail)
    done = [pool.submit(both_run.wait, 5.0) for _ in range(2)]
    assert sorted(one.result(5.0) for one in done) == [0, 1]
    pool.shutdown()


def test_a_pool_that_cannot_start_whole_leaves_no_thread_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started, start = list[threading.Thread](), threading.Thread.start

    def start_one(thread: threading.Thread) -> None:
        if started:
            _fail(thread)
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        start_threads("test", 2)
    started[0].join(5.0)
    assert not started[0].is_alive()


def _fail(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
