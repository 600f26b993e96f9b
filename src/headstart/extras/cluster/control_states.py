"""Keeps control's learned state for replicas that start later.

Kept by what it depends on: the flags of the server, and the hardware, because what a step costs is
measured there.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path

MAX_BYTES = 2**22  # of one state
MAX_STATES = 64


class ControlStates:
    """States by key; lives in an actor of its own."""

    def __init__(self) -> None:
        self._states: dict[str, bytes] = {}

    def keep(self, key: str, state: bytes) -> None:
        """The newest replaces what was there; the key that was written longest ago goes first."""
        if len(state) > MAX_BYTES:
            return
        self._states.pop(key, None)
        self._states[key] = state
        while len(self._states) > MAX_STATES:
            del self._states[next(iter(self._states))]

    def find(self, key: str) -> bytes | None:
        """The state of a replica like this one."""
        return self._states.get(key)


def state_key(arguments: Sequence[str], hardware: str) -> str:
    """A key that is equal for replicas that can share their state."""
    return hashlib.sha256("\0".join([hardware, *arguments]).encode()).hexdigest()[:16]


def hardware(root: Path = Path("/")) -> str:
    """Processor, cores and GPUs of this machine."""
    facts = [platform.machine(), str(os.cpu_count()), os.environ.get("CUDA_VISIBLE_DEVICES", "")]
    files = [root / "proc/cpuinfo", *sorted(root.glob("proc/driver/nvidia/gpus/*/information"))]
    for file in files:
        try:
            lines = file.read_text("utf-8", "replace").splitlines()
        except OSError:
            continue
        facts += [line for line in lines if line.startswith(("model name", "Model:"))][:1]
    return "\n".join(facts)
