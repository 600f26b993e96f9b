"""Headstart with a watchdog in its engine: what the loop does beside decodes, and for how long.

    python -m benchmarks.lib.watched serve [flags ...]

No command, report, plan, commit or reading of a record may take more than LIMIT. Whatever does is
logged with two times and, where the interpreter let go of it, with the stack: how long the loop's
thread ran or waited, for a disk or for another thread that has the interpreter, and how long it ran
alone, which is what a busy machine does not change. Neither counts while the thread waits for a
processor, in libllama's decodes, or while a model drafts, whose time control weighs. Linux only:
reads /proc/self/task/TID/schedstat.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

LIMIT = 0.005  # seconds
LOOK_SECONDS = 0.002  # between two looks at what runs
MARK = "watchdog:"  # in front of each line in the log


class OwnTime:
    """A clock of one thread that stands still while others have the processor; and its processor
    time, when that thread reads it.
    """

    def __init__(self, thread_id: int) -> None:
        self._file = os.open(f"/proc/self/task/{thread_id}/schedstat", os.O_RDONLY)

    def __call__(self) -> NDArray[np.float64]:
        waited = int(os.pread(self._file, 64, 0).split()[1])
        return np.array([time.monotonic() - waited / 1e9, time.thread_time()])


class Watchdog(threading.Thread):
    """Looks at what the engine's loop does; started in the loop's thread."""

    def __init__(self) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._clock = OwnTime(threading.get_native_id())
        self._watched = threading.get_ident()
        self._piece: tuple[str, NDArray[np.float64]] | None = None  # what runs, and since when
        self._seen: tuple[tuple[str, NDArray[np.float64]], str] | None = None  # it, and its stack
        self._decoding = np.zeros(2)  # seconds, of all decodes
        self._is_decoding = False

    def piece(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, watched; a piece within a piece counts to the outer one."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._piece is not None or threading.get_ident() != self._watched:
                return function(*args, **kwargs)
            decoding = self._decoding
            piece = self._piece = (name, self._clock() - decoding)
            try:
                return function(*args, **kwargs)
            finally:
                self._piece = None
                seconds = self._clock() - self._decoding - piece[1]
                if seconds[0] > LIMIT:
                    self._tell(piece, seconds, args)

        return watched

    def decode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time does not count."""

        def decoded(*args: Any, **kwargs: Any) -> Any:
            if self._is_decoding:  # a model that drafts decodes
                return function(*args, **kwargs)
            began, self._is_decoding = self._clock(), True
            try:
                return function(*args, **kwargs)
            finally:
                self._decoding = self._decoding + (self._clock() - began)
                self._is_decoding = False

        return decoded

    def run(self) -> None:
        """Take the stack of what takes too long, once."""
        while True:
            time.sleep(LOOK_SECONDS)
            piece = self._piece
            if piece is None or self._is_decoding or (self._seen and self._seen[0] is piece):
                continue
            if (self._clock() - self._decoding - piece[1])[0] > LIMIT:
                frame = sys._current_frames().get(self._watched)
                self._seen = (piece, "".join(traceback.format_stack(frame)[-7:]))
                del frame  # it keeps alive what the loop thinks is gone

    def _tell(
        self,
        piece: tuple[str, NDArray[np.float64]],
        seconds: NDArray[np.float64],
        args: tuple[Any, ...],
    ) -> None:
        stack = self._seen[1] if self._seen and self._seen[0] is piece else "no stack\n"
        what = " ".join(type(one).__name__ for one in args[1:])
        own, busy = 1000 * seconds
        print(f"{MARK} {piece[0]} {own:.1f} {busy:.1f} ms {what}\n{stack}", file=sys.stderr)


def watch() -> None:
    """Put the watchdog into the loop; in the engine process, before it begins."""
    from headstart.engine.context import LlamaEngine
    from headstart.scheduler.model_drafting import ModelDrafting
    from headstart.scheduler.scheduler import Scheduler
    from headstart.worker import loop

    sys.setswitchinterval(0.0005)  # lets the watchdog see what runs
    dog = Watchdog()
    dog.start()
    vars(loop).update(
        _obey=dog.piece("command", loop._obey), make_report=dog.piece("report", loop.make_report)
    )
    for name in ("plan", "commit", "read"):
        setattr(Scheduler, name, dog.piece(name, getattr(Scheduler, name)))
    idle = (Scheduler, "wait_for_threads")  # only if there is nothing else to do
    decodes = (LlamaEngine, "launch"), (LlamaEngine, "wait"), (ModelDrafting, "_run")
    for kind, name in (*decodes, idle):
        setattr(kind, name, dog.decode(getattr(kind, name)))


if __name__ == "__main__":
    from headstart.app.cli.main import main

    raise SystemExit(main())
if __name__ == "__mp_main__":  # the engine process imports the main module of its parent
    watch()
