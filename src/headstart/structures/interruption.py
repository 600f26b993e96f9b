"""Long work in a thread that its watchers can stop between two parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Watch = Callable[[int], None]
"""Gets how much is done; what it raises ends the work."""

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
    """Report to the watchers how much is done; call it between two parts of the work.

    Raises:
        Exception: whatever ends it.
    """
    for watch in getattr(_local, "watches", ()):
        watch(amount)


@contextmanager
def time_limit(seconds: float, error: Exception) -> Iterator[None]:
    """Have `progress` raise this once the block has taken so much of its thread's processor time.

    On a busy machine all code is late, so the clock's time does not count.
    """
    end = time.thread_time() + seconds

    def watch(_: int) -> None:
        if time.thread_time() > end:
            raise error

    with watched(watch):
        yield
