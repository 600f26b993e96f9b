"""Threads that must not take time from decodes."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

LOW_PRIORITY = 10  # added to the niceness


def switch_threads_often() -> None:
    """Bound what a thread that computes costs the others of this process: whoever gave back the
    interpreter, in a call of libllama or of a socket, waits so long to have it again.
    """
    sys.setswitchinterval(0.0005)  # instead of 5 ms


def low_priority_threads(name: str, count: int = 1) -> ThreadPoolExecutor:
    """So many threads; each does one thing after another."""
    return ThreadPoolExecutor(count, f"headstart-{name}", _lower_priority)


def _lower_priority() -> None:
    """Lower this thread's priority; only Linux has a niceness per thread."""
    if sys.platform == "linux":
        niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + LOW_PRIORITY)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
