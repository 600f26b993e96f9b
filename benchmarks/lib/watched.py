"""Headstart with a watchdog in its engine: what the loop does beside decodes, and for how long.

    python -m benchmarks.lib.watched serve [flags ...]

No command, report, plan, commit, reading of a record or writing of what was learned may take more
than LIMIT of the loop's own processor time. What runs or waits for longer, for a disk or for
another thread that has the interpreter, is logged with both times and with a stack for each
LOOK_SECONDS. Neither counts while the thread waits for a processor, in libllama's decodes, while a
model drafts, whose time control weighs, or while a state is copied that libllama only copies as a
whole, as with `--exact`; nor does the first use of one huge page: 0.2 ms, but 5 to 13 ms in a
virtual machine whose host takes back what is free. Such a machine can also make work that is always
the same take up to a hundred times as long. How often is measured: after each piece the same thread
reads the same places of memory, and the loop fails if it was over LIMIT more often for each second
of processor time than these reads. Linux only: reads /proc/self/task/TID/schedstat.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import resource
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from traceback import walk_stack
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

LIMIT = 0.005  # seconds
LOOK_SECONDS = 0.004  # between two looks at what runs: each takes a tenth of a millisecond
CHANCE = 0.01  # of so many slow pieces, below which they are held to be the loop's own
TELL_SECONDS = 10.0  # between two lines with the seconds of all pieces and of all reads
MARK = "watchdog:"  # in front of each line in the log
NO_STACK = "  no stack\n"


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


class Watchdog:
    """Sees what the engine's loop does; made in the loop's thread, the main one."""

    def __init__(self) -> None:
        self._clock = Times()
        self._watched = threading.get_ident()
        self._piece: NDArray[np.float64] | None = None  # times when the one that runs began
        self._decoding = np.zeros(3)  # of all decodes
        self._is_decoding = False
        self._stacks = deque[str](maxlen=4)  # of what runs, the newest first
        self._memory = np.ones(64 << 20, np.uint8)
        self._places = np.random.default_rng(0).integers(0, len(self._memory), 4000)
        self._totals = np.zeros(3)  # seconds of pieces, of reads, and reads over LIMIT: since told
        self._told = time.monotonic()
        # A handler in Python runs in this thread, after a call that kept the interpreter. One of
        # faulthandler would not wait for its end, but crashes where a frame is just being made.
        signal.signal(signal.SIGALRM, self._take)

    def piece(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, watched; a piece within a piece counts to the outer one."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._piece is not None or threading.get_ident() != self._watched:
                return function(*args, **kwargs)
            began = self._piece = self._clock() - self._decoding
            self._look(is_on=True)
            try:
                return function(*args, **kwargs)
            finally:
                self._look(is_on=False)
                self._piece = None
                seconds = self._clock() - self._decoding - began
                stacks = self._taken()
                if seconds[0] > LIMIT:
                    what = " ".join(type(one).__name__ for one in args[1:])
                    own, busy, pages = seconds * (1000, 1000, 1)
                    head = f"{MARK} {name} {own:.1f} {busy:.1f} {pages:.0f} {what}"
                    print(f"{head}\n{stacks or NO_STACK}", file=sys.stderr)
                self._compare(seconds[1])

        return watched

    def _compare(self, piece_seconds: float) -> None:
        """Read the memory, and log the totals at times; after a piece that took so long."""
        began = time.thread_time()
        self._memory.take(self._places)
        seconds = time.thread_time() - began
        self._totals += piece_seconds, seconds, seconds > LIMIT
        if time.monotonic() - self._told > TELL_SECONDS:
            pieces, reads, over = self._totals
            print(f"{MARK} totals {pieces:.6f} {reads:.6f} {over:.0f}", file=sys.stderr)
            self._totals[:], self._told = 0.0, time.monotonic()

    def decode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time does not count."""

        def decoded(*args: Any, **kwargs: Any) -> Any:
            if self._is_decoding:  # a model that drafts decodes
                return function(*args, **kwargs)
            began, self._is_decoding = self._clock(), True
            self._look(is_on=False)
            try:
                return function(*args, **kwargs)
            finally:
                self._look(is_on=self._piece is not None)
                self._decoding = self._decoding + (self._clock() - began)
                self._is_decoding = False

        return decoded

    def _look(self, *, is_on: bool) -> None:
        """Take the stack of what runs every LOOK_SECONDS, from now on or no more."""
        if threading.get_ident() == self._watched:
            seconds = LOOK_SECONDS if is_on else 0.0
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds)

    def _take(self, signal_number: int, frame: FrameType | None) -> None:
        """Keep the stack of what was running."""
        lines = (
            f'  File "{one.f_code.co_filename}", line {number} in {one.f_code.co_name}\n'
            for one, number in islice(walk_stack(frame), 8)
        )
        self._stacks.appendleft("".join(lines))

    def _taken(self) -> str:
        """The newest stacks since the last call."""
        told = "".join(f"  {i + 1}\n{one}" for i, one in enumerate(self._stacks))
        self._stacks.clear()
        return told


def watch() -> None:
    """Put the watchdog into the loop; in the engine process, before it begins."""
    from headstart.engine.context import LlamaEngine
    from headstart.scheduler import model_drafting
    from headstart.scheduler.drafting import Drafting
    from headstart.scheduler.scheduler import Scheduler
    from headstart.worker import loop

    dog = Watchdog()
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
    """Print what held up the loop; 1 if pieces had its processor for more than LIMIT, or LIMIT and
    `page` seconds where they used new memory, more often than chance allows at the rate of reads.
    """
    stalls: dict[str, list[tuple[float, float, str]]] = {}  # milliseconds, and the stack
    totals = np.zeros(3)
    for part in log.split(MARK)[1:]:
        head, _, rest = part.partition("\n")
        name, *numbers = head.split()
        if name == "totals":
            totals += [float(one) for one in numbers]
            continue
        stack = rest[: match.start()] if (match := re.search(r"^\S", rest, re.M)) else rest
        own, busy, pages, *what = numbers
        places = re.findall(r'File ".*?/([^/]+/[^/]+)", line (\d+)', stack)
        key = " ".join((name, *what, ":".join(places[0]) if places else "?"))
        computed = float(busy) - 1000 * page * (pages != "0")
        stalls.setdefault(key, []).append((computed, float(own), stack))
    print(f"\na page of memory that is new to the machine takes {1000 * page:.1f} ms")
    print("held up the loop: times, milliseconds without pages, and with them and all waits")
    for key, times in sorted(stalls.items()):
        most, _, stack = max(times)
        print(f"{key}: {len(times)} times, {most:.1f}, {max(one for _, one, _ in times):.1f}")
        if most > 1000 * LIMIT:
            print(stack)
    pieces, reads, over = totals
    slow = sum(one > 1000 * LIMIT for times in stalls.values() for one, _, _ in times)
    limit = 1000 * LIMIT
    print(f"over {limit:g} ms of processor: {slow} pieces in {pieces:.0f} s of pieces, and")
    print(f"{over:.0f} reads, which are always the same, in {reads:.0f} s of reads")
    if not (slow and reads):
        return int(slow > 0)
    # with equal rates, each of the slow ones is a piece with the chance that a second is a piece's
    both, share = slow + int(over), pieces / (pieces + reads)
    ways = [math.log(math.comb(both, n)) for n in range(slow, both + 1)]
    chances = [
        math.exp(way + n * math.log(share) + (both - n) * math.log(1 - share))
        for n, way in enumerate(ways, slow)
    ]
    return int(sum(chances) < CHANCE)


if __name__ == "__main__":
    from headstart.app.cli.main import main

    raise SystemExit(main())
if __name__ == "__mp_main__":  # the engine process imports the main module of its parent
    watch()
