"""Processes, priorities, limits and memory, on Linux and macOS."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

LOW_PRIORITY = 10  # added to the niceness: next to a busy thread a tenth of a core is left
PATIENCE = 12  # how much longer than its CPU time work of low priority may take
_cpus_of_others: set[int] | None = None  # for threads that are not bound to cores, if others are


def resident_bytes() -> int:
    """Bytes in RAM, including mapped model files; without /proc, the peak."""
    try:
        # Linux: sizes in pages, the second is resident memory
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_bytes()


def peak_bytes() -> int:
    """Peak RAM of this process in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def return_large_blocks() -> None:
    """Return freed blocks of a megabyte and more to the system at once.

    By default glibc raises that size with each larger block freed, up to 32 MiB; image decoding in
    threads then fragments memory, and the process grows. Source: mallopt(3), M_MMAP_THRESHOLD.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(-3, 1 << 20)


def switch_threads_often() -> None:
    """Bound the delay that a busy thread causes to others: a thread that released the interpreter,
    in a call of libllama or a socket, waits this long for it.
    """
    sys.setswitchinterval(0.0005)  # instead of 5 ms


def bind_threads(cores: Sequence[Collection[int]]) -> None:
    """Bind the threads of OpenMP, which is loaded later, to one core each.

    They sleep and wake hundreds of times per decode. Next to a busy program the system wakes
    several on the same core, and a decode takes two to three times as long.
    """
    global _cpus_of_others
    _cpus_of_others = allowed_cpus()
    first = os.getpid() % len(cores)  # the main thread's core, which varies between servers
    places = (
        "{" + ",".join(map(str, sorted(core))) + "}" for core in (*cores[first:], *cores[:first])
    )
    os.environ |= {"OMP_PROC_BIND": "true", "OMP_PLACES": ",".join(places)}


@contextlib.contextmanager
def huge_pages() -> Iterator[None]:
    """Let processes that are started in this block have large blocks in huge pages of Linux.

    A decode reads all weights, and looks up an address for each page.
    Source: glibc manual, "Memory Allocation Tunables". `GLIBC_TUNABLES=` leaves it as it is.
    """
    name = "GLIBC_TUNABLES"
    if name in os.environ:
        yield
        return
    os.environ[name] = "glibc.malloc.hugetlb=1"
    try:
        yield
    finally:
        del os.environ[name]


def start_threads(name: str, count: int = 1, *, low_priority: bool = False) -> ThreadPoolExecutor:
    """Start a pool of threads.

    They start now, so that no later request meets a system that has no room for one more.

    Raises:
        RuntimeError: there is none now.
    """
    prepare = _make_way if low_priority else use_any_core
    pool, all_started = ThreadPoolExecutor(count, f"headstart-{name}", prepare), Barrier(count)
    try:
        for _ in range(count):
            pool.submit(all_started.wait)
    except RuntimeError:
        all_started.abort()
        raise
    return pool


def use_any_core() -> None:
    """Let this thread run on any core; its parent may be bound to one."""
    if _cpus_of_others is not None:
        with contextlib.suppress(OSError):  # the process's CPUs may have changed
            os.sched_setaffinity(0, _cpus_of_others)


def _make_way() -> None:
    """Lower this thread's priority; only Linux has a niceness per thread."""
    use_any_core()
    if sys.platform == "linux":
        niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + LOW_PRIORITY)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def allowed_cpus() -> set[int] | None:
    """The CPUs that this process may use; None on macOS."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def allow_files(wanted: int) -> int | None:
    """Limit of open files of this process, after raising it to `wanted` if permitted; None: no
    limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    raised = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if raised > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return max(soft, raised)


def widen_pipe(number: int) -> None:
    """Enlarge a pipe's buffer to a megabyte, if the system supports and allows it."""
    with contextlib.suppress(AttributeError, OSError):
        fcntl.fcntl(number, fcntl.F_SETPIPE_SZ, 1 << 20)


def kill_group(process: int) -> None:
    """Kill a process that has its own session, and its children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: ended, not reaped yet
        os.killpg(process, signal.SIGKILL)


def run_limited(work: Callable[[], None], seconds: float, num_bytes: int) -> str:
    """Run `work` in a low-priority fork within limits of CPU time and address space.

    Returns the limit that ended it, "time" or "memory", or "wall" if it got too little CPU time
    for PATIENCE times as long; empty if it finished.
    """
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        timers: dict[int, str] = {signal.SIGPROF: "time", signal.SIGALRM: "wall"}
        # a failed allocation aborts the process
        return timers.get(os.WTERMSIG(status), "memory") if status else ""
    if sys.platform != "linux":  # there a low-priority thread started this process
        os.nice(LOW_PRIORITY)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE * seconds)
    if sys.platform == "linux":
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + num_bytes, resource.RLIM_INFINITY))
    work()
    os._exit(0)
