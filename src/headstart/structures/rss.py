"""How much memory this process holds."""

from __future__ import annotations

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
