"""A model that can be loaded: its command line and its estimated memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headstart.types.errors import ConfigError

PRESET, FOLDER, CACHE = "preset", "models_dir", "cache"  # where a model was found
DEFAULT_STOP_SECONDS = 10.0
MAIN = "main memory"
# of a model's processes besides what its engine takes: two interpreters with what they import
PROCESS_BYTES = 300 * 2**20
Bytes = Mapping[str, int]  # by device


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPreset:
    """One model. Two that are equal are the same model with the same settings."""

    name: str
    source: str
    arguments: tuple[str, ...]  # of headstart serve
    engine_arguments: tuple[str, ...] = ()  # those of them that headstart devices takes
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # secrets among them
    aliases: tuple[str, ...] = ()  # further names of it
    tags: tuple[str, ...] = ()
    ini: str = ""  # its settings, as a preset has them
    loads_on_startup: bool = False
    stop_seconds: float = DEFAULT_STOP_SECONDS  # from being told to end until it is killed
    idle_seconds: float | None = None  # after which it is unloaded
    # not listed, but answers to its name; needs no other process, so no other preset
    is_hidden: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated memory of a model, and the arguments that keep it within the estimate."""

    needs: Bytes
    arguments: tuple[str, ...] = ()
    usable: Bytes = field(default_factory=dict)  # what was free when this was asked


def models_of_folder(folder: Path) -> dict[str, Path]:
    """Name -> file; for a split model its first part.

    Raises:
        ConfigError: the folder cannot be read.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"--models-dir {folder} cannot be read: {error.strerror}") from None
    found: dict[str, Path] = {}
    for entry in entries:
        if entry.is_dir():
            if file := _file_of(sorted(entry.iterdir())):
                found[entry.name] = file
        elif _is_model(entry):
            found[entry.name.removesuffix(".gguf")] = entry
    return found


def _file_of(files: list[Path]) -> Path | None:
    models = [file for file in files if _is_model(file)]
    first_parts = [file for file in models if "-00001-of-" in file.name]
    return next(iter(first_parts or models), None)


def _is_model(path: Path) -> bool:
    # not what belongs to one: its projector, and heads that draft for it
    companion = re.search(r"mmproj|^(mtp|eagle3|dflash|dspark)-", path.name, re.IGNORECASE)
    return path.name.endswith(".gguf") and path.is_file() and not companion
