"""A model that can be loaded: its command line and its estimated memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PRESET, FOLDER, CACHE = "preset", "models_dir", "cache"  # source of a model
MAIN = "main memory"
# of a model's processes besides what its engine takes: two interpreters with what they import
PROCESS_BYTES = 300 * 2**20
Bytes = Mapping[str, int]  # by device


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPreset:
    """One model. Equal presets are the same model with the same settings."""

    name: str  # empty: the server's own choice
    source: str
    arguments: tuple[str, ...] = ()  # of headstart serve, as --name=text
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # secrets among them
    aliases: tuple[str, ...] = ()  # further names of it
    tags: tuple[str, ...] = ()
    loads_on_startup: bool = False
    stop_seconds: float = 10.0  # from the stop request until it is killed
    idle_seconds: float | None = None  # after which it is unloaded
    # not listed, but answers to its name; needs no other process, so no other preset
    is_hidden: bool = field(default=False, compare=False)

    @property
    def ini(self) -> str:
        """Its settings, as a preset has them."""
        lines = (one.removeprefix("--").replace("=", " = ", 1) for one in self.arguments)
        return "\n".join([f"[{self.name}]", *lines, ""])


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated memory of a model, and the arguments that keep it within the estimate."""

    needs: Bytes
    arguments: tuple[str, ...] = ()
    usable: Bytes = field(default_factory=dict)  # what was free when this was asked
