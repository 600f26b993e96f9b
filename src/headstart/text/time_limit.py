"""A time limit for a stranger's code that runs in this thread: a chat template that loops.

Python raises an exception in another thread only between two of its own instructions, so this ends
loops, not one long computation inside a C function; the templates' environment bounds these.
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
    """It took too long and was ended."""


class _LateError(BaseException):
    """Raised in the middle of what is late; no `except Exception` of it may catch this."""


class _Deadline:
    """Interrupts the thread that made it, unless it is called off before."""

    def __init__(self, seconds: float) -> None:
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._is_due = True
        self._timer = threading.Timer(seconds, self._interrupt)
        self._timer.daemon = True

    def start(self) -> None:
        self._timer.start()

    def call_off(self) -> bool:
        """Interrupt no more; returns whether an exception is on its way."""
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
    """The function's result. Inside another limited call that one's limit holds.

    Raises:
        TimeLimitError: it took longer; what it changed stays changed.
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
            if deadline.call_off():  # it ended in the same moment; let the exception come
                for _ in range(1000):
                    time.sleep(0)
    except _LateError:
        deadline.call_off()  # the exception may have come inside the first call
        raise TimeLimitError(f"it did not end within {seconds:g} seconds") from None
    finally:
        _nested.is_inside = False
