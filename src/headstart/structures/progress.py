"""Says how far long work has come: every two seconds, on a terminal in one line that moves."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TextIO

log = logging.getLogger(__name__)

SECONDS = 2.0  # before the first word, and between two
# told of the share of a model's file that is loaded, in the thread that loads
loading: ContextVar[Callable[[float], object]] = ContextVar("loading", default=lambda share: None)


class Progress:
    """Of one piece of work. Short work is silent."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, stream: TextIO | None = None
    ) -> None:
        self._clock, self._stream = clock, stream or sys.stderr
        self._last = clock()
        self._is_shown = False

    def tell(self, words: str) -> None:
        """Say how far it is, if it is time to."""
        now = self._clock()
        if now - self._last < SECONDS:
            return
        self._last = now
        if self._stream.isatty():
            self._is_shown = True
            self._stream.write(f"\r{words}\x1b[K")
            self._stream.flush()
        else:
            log.info("%s", words)

    def end(self) -> None:
        """Take the moving line away."""
        if self._is_shown:
            self._is_shown = False
            self._stream.write("\r\x1b[K")
            self._stream.flush()
