"""Runs one command and kills everything it started: a separate program, for Linux.

It adopts orphaned processes (a child subreaper), so that no `setsid` or double fork escapes it.
SIGTERM kills everything; after SIGUSR1, which marks the end of output, the end of the command ends
everything. It is run as a script and uses the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

SIGNALS = {signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD}


def main(command: list[str]) -> int:
    """Run the command; return its exit code, or end by the signal that ended it."""
    prctl = ctypes.CDLL(None).prctl
    death_signal, child_subreaper = 1, 36  # PR_SET_... of <linux/prctl.h>
    prctl(child_subreaper, 1, 0, 0, 0)
    prctl(death_signal, signal.SIGTERM, 0, 0, 0)  # when the server is killed
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        # in its own session, so that `kill 0` does not reach us
        child = os.posix_spawnp(command[0], command, os.environ, setsid=True, setsigmask=())
    except OSError as error:
        print(f"cannot run {command[0]}: {error}")
        return 127
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # the pipes are the command's alone
        os.dup2(nothing, number)
    statuses: dict[int, int] = {}
    is_output_over = False
    while not (child in statuses and (is_output_over or not _has_children())):
        received = signal.sigwait(SIGNALS)
        if received == signal.SIGTERM:
            break
        is_output_over = is_output_over or received == signal.SIGUSR1
        _reap(statuses)
    deadline = time.monotonic() + 5.0
    while _has_children() and time.monotonic() < deadline:
        for process in _descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        _reap(statuses)
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(statuses.get(child, signal.SIGKILL))
    if code < 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})  # SIGUSR1 may have come since
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return abs(code)


def _reap(statuses: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[ended[0]] = ended[1]


def _has_children() -> bool:
    """Whether a child is left; one that has ended and was not reaped counts."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _descendants() -> list[int]:
    """All processes below this one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # already ended
            # pid (name) state parent ...; the name may hold anything
            parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(entry.name))
    found = children.get(os.getpid(), [])
    for process in found:  # grows meanwhile
        found += children.get(process, [])
    return found


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
