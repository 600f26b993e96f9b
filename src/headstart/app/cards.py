"""Names graphics cards that this libllama cannot use, and the remedy."""

from __future__ import annotations

from collections.abc import Collection

from headstart.engine.find_library import find_card, remedy


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
