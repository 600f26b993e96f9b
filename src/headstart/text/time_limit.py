"""A time limit for untrusted code in this thread: chat templates that loop.

Python raises an exception in another thread only between two bytecode instructions, so this ends
loops but no long computation inside a C function; the templates' environment limits those. What
counts is the thread's processor time where the system tells it: on a busy machine all code is late.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_exception.argtypes = (ctypes.c_ulong, ctypes.py_object)
_nested = threading.local()


class TimeLimitError(Exception):
    """The function took too long and was interrupted."""


class _LateError(BaseException):
    """Raised in late code, whose `except Exception` must not catch it."""


class _Deadline:
    """Interrupts the thread that created it, unless called off before."""

    def __init__(self, seconds: float) -> None:
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._is_due = True
        self._end = _seconds_of(self._thread) + seconds
        self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._interrupt)
        self._timer.daemon = True
        self._timer.start()

    def call_off(self) -> bool:
        """Cancel; returns whether an exception was already sent."""
        with self._lock:
            was_due, self._is_due = self._is_due, False
            self._timer.cancel()
        return not was_due

    def _interrupt(self) -> None:
        with self._lock:
            if not self._is_due:
                return
            # at least a millisecond, for clocks that are coarse
            if (left := self._end - _seconds_of(self._thread)) > 0.0:
                self._wait(max(left, 0.001))
                return
            self._is_due = False
            _set_exception(self._thread, _LateError)


def _seconds_of(thread: int) -> float:
    """Processor time of a thread that runs; the clock's where the system does not tell."""
    if sys.platform != "linux":
        return time.monotonic()
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


def run_within(seconds: float, function: Callable[[], T]) -> T:
    """Return the function's result. Within another limited call, only the outer limit applies.

    Raises:
        TimeLimitError: it took longer; its side effects remain.
    """
    if getattr(_nested, "is_inside", False):
        return function()
    _nested.is_inside = True
    deadline = _Deadline(seconds)
    try:
        try:
            return function()
        finally:
            if deadline.call_off():  # wait for the exception, which is on its way
                for _ in range(1000):
                    time.sleep(0)
    except _LateError:
        deadline.call_off()  # the exception may have interrupted the first call
        raise TimeLimitError(f"it did not end within {seconds:g} seconds") from None
    finally:
        _nested.is_inside = False
