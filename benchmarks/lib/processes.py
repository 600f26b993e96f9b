"""What the system says of a process and its children; Linux only, else as if it were gone."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def read(pid: int, name: str) -> str:
    """A file of /proc; empty if the process is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text()
    return ""


def children(pid: int) -> list[int]:
    """The processes that it started."""
    return [int(child) for child in read(pid, f"task/{pid}/children").split()]


def megabytes(pid: int) -> int:
    """Main memory that it has."""
    lines = read(pid, "status").splitlines()
    return sum(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))
