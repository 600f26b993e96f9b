"""Headstart with a watchdog in its engine: what the loop does beside decodes, and for how long.

    python -m benchmarks.lib.watched serve [flags ...]

No command, report, plan, commit, reading of a record or writing of what was learned may take more
than LIMIT of the loop's own processor time, which is what a busy machine does not change. What runs
or waits for longer, for a disk or for another thread that has the interpreter, is logged with both
times and, where the interpreter let go of it, with the stack. Neither counts while the thread waits
for a processor, in libllama's decodes, while a model drafts, whose time control weighs, or while a
state is copied that libllama only copies as a whole, as with `--exact`; nor does the first use of
one huge page: 0.2 ms, but 5 to 13 ms in a virtual machine whose host takes back what is free. Linux
only: reads /proc/self/task/TID/schedstat.
"""

from __future__ import annotations

import mmap
import os
import re
import resource
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


def page_seconds() -> float:
    """The longest that one of 64 huge pages takes, of processor time, when it is used first."""
    size, flags = 2 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    seconds = [0.0]
    with mmap.mmap(-1, 64 * size, flags) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for start in range(0, 64 * size, size):
            began = time.thread_time()
            memory[start] = 1
            seconds.append(time.thread_time() - began)
    return max(seconds)


class Times:
    """Two clocks of one thread: the time it runs or waits, without that in which others have the
    processor, and the time it runs. And how many pages it was the first to use, if it asks itself.
    """

    def __init__(self) -> None:
        self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._processor = time.pthread_getcpuclockid(threading.get_ident())

    def __call__(self) -> NDArray[np.float64]:
        waited = int(os.pread(self._file, 64, 0).split()[1])
        pages = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        now = time.monotonic(), time.clock_gettime(self._processor)
        return np.array([now[0] - waited / 1e9, now[1], pages])


class Watchdog(threading.Thread):
    """Looks at what the engine's loop does; started in the loop's thread."""

    def __init__(self) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._clock = Times()
        self._watched = threading.get_ident()
        self._piece: tuple[str, NDArray[np.float64]] | None = None  # what runs, and since when
        # it, how many of its times were too long, and the stack
        self._seen: tuple[tuple[str, NDArray[np.float64]] | None, int, str] = (None, 0, "")
        self._decoding = np.zeros(3)  # of all decodes
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
        while True:
            time.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Take the stack of what takes too long, once for each of the two times."""
        piece = self._piece
        if piece is None or self._is_decoding:
            return
        num_over = int(np.sum((self._clock() - self._decoding - piece[1])[:2] > LIMIT))
        if num_over > (self._seen[1] if self._seen[0] is piece else 0):
            frame = sys._current_frames().get(self._watched)
            self._seen = (piece, num_over, "".join(traceback.format_stack(frame)[-7:]))
            del frame  # it keeps alive what the loop thinks is gone

    def _tell(
        self,
        piece: tuple[str, NDArray[np.float64]],
        seconds: NDArray[np.float64],
        args: tuple[Any, ...],
    ) -> None:
        stack = self._seen[2] if self._seen[0] is piece else "no stack\n"
        what = " ".join(type(one).__name__ for one in args[1:])
        own, busy, pages = seconds * (1000, 1000, 1)
        head = f"{MARK} {piece[0]} {own:.1f} {busy:.1f} {pages:.0f} {what}"
        print(f"{head}\n{stack}", file=sys.stderr)


def watch() -> None:
    """Put the watchdog into the loop; in the engine process, before it begins."""
    from headstart.engine.context import LlamaEngine
    from headstart.scheduler import model_drafting
    from headstart.scheduler.drafting import Drafting
    from headstart.scheduler.scheduler import Scheduler
    from headstart.worker import loop

    sys.setswitchinterval(0.0005)  # lets the watchdog see what runs
    dog = Watchdog()
    dog.start()
    for name, kind, method in (
        ("command", loop, "_obey"),
        ("report", loop, "make_report"),
        ("save", Drafting, "save"),
        ("write", loop, "write_idle"),
        *((method, Scheduler, method) for method in ("plan", "commit", "read")),
    ):
        setattr(kind, method, dog.piece(name, getattr(kind, method)))
    idle = (Scheduler, "wait_for_threads")  # only if there is nothing else to do
    decodes = (LlamaEngine, "launch"), (LlamaEngine, "wait"), (model_drafting, "_draft")
    whole = (LlamaEngine, "save_sequence"), (LlamaEngine, "restore_sequence")
    for kind, name in (*decodes, *whole, idle):
        setattr(kind, name, dog.decode(getattr(kind, name)))


def tell_stalls(log: str, page: float = 0.0) -> int:
    """Print what held up the loop; 1 if anything had its processor for more than LIMIT, or LIMIT
    and `page` seconds where it used new memory.
    """
    stalls: dict[str, list[tuple[float, float, str]]] = {}  # milliseconds, and the stack
    for part in log.split(MARK)[1:]:
        head, _, rest = part.partition("\n")
        stack = rest[: match.start()] if (match := re.search(r"^\S", rest, re.M)) else rest
        name, own, busy, pages, *what = head.split()
        places = re.findall(r'File ".*?/([^/]+/[^/]+)", line (\d+)', stack)
        key = " ".join((name, *what, ":".join(places[-1]) if places else "?"))
        computed = float(busy) - 1000 * page * (pages != "0")
        stalls.setdefault(key, []).append((computed, float(own), stack))
    print(f"\na page of memory that is new to the machine takes {1000 * page:.1f} ms")
    print("held up the loop: times, milliseconds without pages, and with them and all waits")
    code = 0
    for key, times in sorted(stalls.items()):
        most, _, stack = max(times)
        print(f"{key}: {len(times)} times, {most:.1f}, {max(one for _, one, _ in times):.1f}")
        if most > 1000 * LIMIT:
            code = 1
            print(stack)
    return code


if __name__ == "__main__":
    from headstart.app.cli.main import main

    raise SystemExit(main())
if __name__ == "__mp_main__":  # the engine process imports the main module of its parent
    watch()
