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

TICK_SECONDS = 0.1  # how exact the limit is
_set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_exception.argtypes = (ctypes.c_ulong, ctypes.py_object)
_nested = threading.local()


class TimeLimitError(Exception):
    """It took too long and was ended."""


class _LateError(BaseException):
    """Raised in the middle of what is late; no `except Exception` of it may catch this."""


class _Watchdog:
    """One thread that looks after all limited calls, and sleeps while there are none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._has_calls = threading.Event()
        self._deadlines: dict[int, float] = {}  # by thread
        self._thread: threading.Thread | None = None

    def enter(self, deadline: float) -> None:
        with self._lock:
            self._deadlines[threading.get_ident()] = deadline
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._watch, name="headstart-time-limit", daemon=True
                )
                self._thread.start()
            if not self._has_calls.is_set():
                self._has_calls.set()

    def leave(self) -> bool:
        """The call is over; whether it was late, so that an exception is on its way."""
        with self._lock:
            return self._deadlines.pop(threading.get_ident(), None) is None

    def _watch(self) -> None:
        while True:
            self._has_calls.wait()
            time.sleep(TICK_SECONDS)
            with self._lock:
                now = time.monotonic()
                for thread, deadline in list(self._deadlines.items()):
                    if now >= deadline:
                        del self._deadlines[thread]
                        _set_exception(thread, _LateError)
                if not self._deadlines:
                    self._has_calls.clear()


_watchdog = _Watchdog()


def run_within(seconds: float, function: Callable[[], T]) -> T:
    """The function's result. Inside another limited call that one's limit holds.

    Raises:
        TimeLimitError: it took longer; what it changed stays changed.
    """
    if getattr(_nested, "is_inside", False):
        return function()
    _nested.is_inside = True
    is_left = False
    try:
        _watchdog.enter(time.monotonic() + seconds)
        try:
            return function()
        finally:
            is_late, is_left = _watchdog.leave(), True
            if is_late:  # it finished in the same moment; let the exception come
                _wait_for_exception()
    except _LateError:
        if not is_left:
            _watchdog.leave()
        raise TimeLimitError(f"it did not end within {seconds:g} seconds") from None
    finally:
        _nested.is_inside = False


def _wait_for_exception() -> None:
    for _ in range(1000):
        time.sleep(0)
