"""Long work in a thread, stopped between two of its parts by whoever watches it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Watch = Callable[[int], None]
"""Gets how much is done; what it raises ends the work."""

_local = threading.local()


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Have the work of this block, in this thread, watched; also by those who watched before."""
    before: tuple[Watch, ...] = getattr(_local, "watches", ())
    _local.watches = (*before, watch)
    try:
        yield
    finally:
        _local.watches = before


def progress(amount: int) -> None:
    """Tell those who watch how much is done; for the work, between two parts.

    Raises:
        Exception: whatever ends it.
    """
    for watch in getattr(_local, "watches", ()):
        watch(amount)
