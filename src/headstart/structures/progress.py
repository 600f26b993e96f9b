"""Shows the progress of long work every two seconds, on a terminal in one updated line."""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import TextIO

from headstart.structures.system import use_any_core

log = logging.getLogger(__name__)

SECONDS = 2.0  # before the first line, and between lines
# called with the loaded share of a model's file, in the loading thread
loading: ContextVar[Callable[[float], object]] = ContextVar("loading", default=lambda share: None)


class Progress:
    """Progress of any tasks. Short ones are not shown.

    Shown by a thread, because the work may be inside one call of libllama for a minute.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, stream: TextIO | None = None
    ) -> None:
        self._clock, self._stream = clock, stream or sys.stderr
        self._works: dict[str, tuple[float, str]] = {}  # start and progress of each task
        self._is_shown = False
        self._lock = threading.Lock()
        own = weakref.ref(self)
        threading.Thread(target=_repeat, args=(own,), name="progress", daemon=True).start()

    def begin(self, name: str, far: str) -> None:
        with self._lock:
            self._works.setdefault(name, (self._clock(), far))

    def tell(self, works: Mapping[str, str]) -> None:
        """Set all current tasks and their progress; removes the line if there are none."""
        now = self._clock()
        with self._lock:
            begun = {name: began for name, (began, _) in self._works.items()}
            self._works = {name: (begun.get(name, now), far) for name, far in works.items()}
            if not works and self._is_shown:
                self._is_shown = False
                self._write("\r\x1b[K")

    def show(self) -> None:
        """Show the progress of long tasks."""
        now = self._clock()
        with self._lock:
            words = "; ".join(
                f"{name}: {far}, {now - began:.0f} s"
                for name, (began, far) in self._works.items()
                if now - began >= SECONDS
            )
            if words and self._stream.isatty():
                self._is_shown = True
                self._write(f"\r{words}\x1b[K")
            elif words:
                log.info("%s", words)

    def _write(self, text: str) -> None:
        with suppress(OSError):  # the terminal was closed
            self._stream.write(text)
            self._stream.flush()


def _repeat(progress: weakref.ref[Progress]) -> None:
    """Show progress periodically, until the object is collected."""
    use_any_core()
    while (own := progress()) is not None:
        own.show()
        del own
        time.sleep(SECONDS)
