"""The folder for what can be made or downloaded again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """HEADSTART_CACHE, or `headstart` in the user's cache folder."""
    if base := environment.get("HEADSTART_CACHE"):
        return Path(base)
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headstart"
