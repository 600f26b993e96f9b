"""Detects graphics cards that this libllama cannot use, and names the remedy."""

from __future__ import annotations

import ctypes.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from headstart.engine.find_library import remedy


def find_card(root: Path = Path("/")) -> tuple[str, str] | None:
    """The first card that is found, and the backend of libllama that computes on it: NVIDIA's,
    Apple's, AMD's, any other with Vulkan.
    """
    if name := _nvidia():
        return name, "cuda"
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return "Apple's GPU", "metal"
    if (root / "dev/kfd").exists():
        return "an AMD card", "rocm"
    has_card = any((root / "dev/dri").glob("renderD*"))
    if has_card and ctypes.util.find_library("vulkan"):
        return "a card with Vulkan", "vulkan"
    return None


def _nvidia() -> str | None:
    """The name of the first card according to nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    # it wakes the driver, which takes seconds
    command = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10.0, check=True)
    except (OSError, subprocess.SubprocessError):  # no driver
        return None
    return done.stdout.partition("\n")[0].strip() or None


def remarks(device_kinds: Collection[str], gpu_layers: int) -> list[str]:
    """Messages to print at the start, given the kinds of device that libllama has.

    `gpu_layers` is --gpu-layers; below 0 it was not asked for.
    """
    if any("GPU" in kind for kind in device_kinds):
        return []
    found = []
    if gpu_layers > 0:
        found.append(
            f"--gpu-layers {gpu_layers} has no effect: this libllama computes on the processor only"
        )
    if card := find_card():
        name, backend = card
        lacks = f"this libllama has no {backend}"
        found.append(f"{name} is not used: {lacks}; {remedy(backend)}")
    return found
