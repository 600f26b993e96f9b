"""How much memory this process holds, and that it holds no more than it uses."""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path


def resident_bytes() -> int:
    """Bytes in RAM, mapped model files included; without /proc, the most there ever were."""
    try:
        # Linux: sizes in pages, the second is what is resident
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
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
