"""Saved state of control: one JSON file per (model, machine), written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

VERSION = 1


def floats(values: Sequence[Any], length: int, least: float = -1e9, most: float = 1e9) -> list[float]:
    """Exactly `length` finite numbers within limits.

    Raises:
        ValueError, TypeError: they are not.
    """
    numbers = [float(value) for value in values]
    if len(numbers) != length or not all(isfinite(x) and least <= x <= most for x in numbers):
        raise ValueError(f"expected {length} numbers from {least:g} to {most:g}")
    return numbers


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Replace the file in one move, so that a kill leaves the old one or the new one.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps({"version": VERSION, **state}, separators=(",", ":")), encoding="utf-8")
    os.replace(partial, path)


def read_state(path: Path) -> dict[str, Any]:
    """The saved state.

    Raises:
        OSError: there is none, or it cannot be read.
        ValueError: it is damaged or of another version.
    """
    state = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise ValueError(f"{path} is not version {VERSION} of the control state")
    return state
