"""The models of a folder, as llama-server finds them: a file each, or a folder each."""

from __future__ import annotations

import re
from pathlib import Path

from headstart.types.errors import ConfigError

# files that belong to a model: its projector, and heads that draft for it
_COMPANION = re.compile(r"mmproj|^(mtp|eagle3|dflash|dspark)-", re.IGNORECASE)


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
    return path.name.endswith(".gguf") and path.is_file() and not _COMPANION.search(path.name)
