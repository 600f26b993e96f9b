"""A time limit for untrusted code in this thread: chat templates that loop.

Python raises an exception in another thread only between two bytecode instructions, so this ends
loops but no long computation inside a C function; the templates' environment limits those.
"""

from __future__ import annotations

import ctypes
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
        self._timer = threading.Timer(seconds, self._interrupt)
        self._timer.daemon = True

    def start(self) -> None:
        self._timer.start()

    def call_off(self) -> bool:
        """Cancel; returns whether an exception was already sent."""
        self._timer.cancel()
        with self._lock:
            was_due, self._is_due = self._is_due, False
        return not was_due

    def _interrupt(self) -> None:
        with self._lock:
            if self._is_due:
                self._is_due = False
                _set_exception(self._thread, _LateError)


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
        deadline.start()
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
