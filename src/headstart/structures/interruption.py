"""Lets watchers stop long work in a thread between two parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Watch = Callable[[int], None]
"""Called with the amount of work done; an exception ends the work."""

_local = threading.local()


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Watch the work of this block in this thread, in addition to earlier watchers."""
    before: tuple[Watch, ...] = getattr(_local, "watches", ())
    _local.watches = (*before, watch)
    try:
        yield
    finally:
        _local.watches = before


def progress(amount: int) -> None:
    """Report to the watchers how much is done; call it between parts of the work.

    Raises:
        Exception: raised by a watcher to end the work.
    """
    for watch in getattr(_local, "watches", ()):
        watch(amount)


@contextmanager
def time_limit(seconds: float, error: Exception) -> Iterator[None]:
    """Make `progress` raise `error` once the block took `seconds` of its thread's CPU time.

    Not wall time, because all code is slow on a busy machine.
    """
    end = time.thread_time() + seconds

    def watch(_: int) -> None:
        if time.thread_time() > end:
            raise error

    with watched(watch):
        yield
