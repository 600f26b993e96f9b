"""What operating systems do differently: processes, priorities, limits, memory.

The only module of a plain server that calls what POSIX alone has. On Windows its functions do what
there is, or nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

if sys.platform != "win32":
    import fcntl
    import resource

LOW_PRIORITY = 10  # added to the niceness
_cpus_of_others: set[int] | None = None  # where threads are bound to cores: of those that are not


def resident_bytes() -> int:
    """Bytes in RAM, mapped model files included; without /proc, the most there ever were."""
    try:
        # Linux: sizes in pages, the second is what is resident
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_bytes()


def peak_bytes() -> int:
    """The most bytes that this process had in RAM."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def return_large_blocks() -> None:
    """Let freed blocks of a megabyte and more go back to the system at once.

    By itself glibc raises that size with each larger block that is freed, up to 32 MiB; what
    threads decode of images then leaves holes, and the process grows.
    Source: mallopt(3), M_MMAP_THRESHOLD.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(-3, 1 << 20)


def switch_threads_often() -> None:
    """Bound what a thread that computes costs the others of this process: whoever gave back the
    interpreter, in a call of libllama or of a socket, waits so long to have it again.
    """
    sys.setswitchinterval(0.0005)  # instead of 5 ms


def bind_threads(cores: Sequence[Collection[int]]) -> None:
    """Bind the threads of OpenMP, which is loaded later, to a core each.

    They sleep and wake hundreds of times a decode. Beside one other busy program the system wakes
    several on the same core, and a decode takes two to three times as long.
    """
    global _cpus_of_others
    _cpus_of_others = allowed_cpus()
    first = os.getpid() % len(cores)  # that of the main thread: another server's has another
    places = (
        "{" + ",".join(map(str, sorted(core))) + "}" for core in (*cores[first:], *cores[:first])
    )
    os.environ |= {"OMP_PROC_BIND": "true", "OMP_PLACES": ",".join(places)}


def low_priority_threads(name: str, count: int = 1) -> ThreadPoolExecutor:
    """So many threads; each does one thing after another."""
    return ThreadPoolExecutor(count, f"headstart-{name}", _make_way)


def use_any_core() -> None:
    """Let this thread run where there is room; the one that started it may be bound to a core."""
    if _cpus_of_others is not None:
        with contextlib.suppress(OSError):  # this process may use others by now
            use_cpus(_cpus_of_others)


def _make_way() -> None:
    """Lower this thread's priority; only Linux has a niceness per thread."""
    use_any_core()
    if sys.platform == "linux":
        niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + LOW_PRIORITY)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def set_niceness(niceness: int) -> None:
    """Set the priority of this process.

    Raises:
        OSError: this user may not.
    """
    if sys.platform != "win32":
        os.setpriority(os.PRIO_PROCESS, 0, niceness)


def allowed_cpus() -> set[int] | None:
    """The processors that this process may use; None where that cannot be chosen."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def use_cpus(cpus: Collection[int]) -> None:
    """Use these processors only, which `allowed_cpus` has."""
    os.sched_setaffinity(0, cpus)


def allow_files(wanted: int) -> int | None:
    """Files that this process may open, after raising that to `wanted` as far as permitted; None
    without a limit.
    """
    if sys.platform == "win32":
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    raised = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if raised > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return max(soft, raised)


def widen_pipe(number: int) -> None:
    """Let a pipe hold a megabyte, where the system has that and allows it."""
    with contextlib.suppress(NameError, AttributeError, OSError):
        fcntl.fcntl(number, fcntl.F_SETPIPE_SZ, 1 << 20)


def unix_socket() -> socket.socket:
    """A socket that is reached by the name of a file."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def is_unix_socket(one: socket.socket) -> bool:
    """Whether a socket is one of `unix_socket`."""
    return one.family == getattr(socket, "AF_UNIX", None)


def own_group(*files: int) -> dict[str, Any]:
    """Arguments of a subprocess that gets these files and that Ctrl-C does not reach; its own
    children are in its group.
    """
    return {"start_new_session": True, "pass_fds": files}


def kill_group(process: int) -> None:
    """Kill a process of `own_group` and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def run_limited(work: Callable[[], None], seconds: float, num_bytes: int) -> str:
    """Do something in a fork within limits of processor time and address space.

    Returns the one that ended it, time or memory; empty if it was done.
    """
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        timers = (signal.SIGPROF, signal.SIGALRM)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in timers:
            return "time"
        return "memory" if status else ""  # a failed allocation aborts the process
    os.nice(LOW_PRIORITY)  # the model's threads come first
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 3 * seconds)  # on a busy machine
    if sys.platform == "linux":
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + num_bytes, resource.RLIM_INFINITY))
    work()
    os._exit(0)
