"""The file of control's learned state: its path, and whether it fits.

The file is a cache. Without one, the first texts after a start are slower, never different.
"""

from __future__ import annotations

import hashlib
import logging
import platform
from collections.abc import Mapping
from pathlib import Path

from headstart.app.model_files import Models
from headstart.config import Config
from headstart.control.controller import Controller
from headstart.control.state import StateFile
from headstart.structures.atomic import cache_folder
from headstart.structures.model_id import ModelId
from headstart.types.errors import ConfigError

log = logging.getLogger(__name__)


def load_control(config: Config, models: Models) -> tuple[Controller, StateFile | None, str]:
    """Load the state that was learned with these models.

    Returns it with the file for later states, and why what the file held is not used, if so.

    Raises:
        ConfigError: `--spec-state` names a file that was learned for others or cannot be written.
        ModelError: a model file cannot be read.
    """
    from headstart.engine.gguf_header import check_file

    files, drafter = {"target": models.target}, models.drafter
    if drafter and not drafter.is_in_target:
        files["heads" if drafter.num_heads else "draft model"] = drafter.path
    for path in files.values():
        check_file(path)
    controller, named = Controller(), config.speculation.spec_state
    if named == "none":
        return controller, None, ""
    ids = {part: ModelId.of(file) for part, file in files.items()}
    path = _default_file(config, models.target.stem, ids) if named is None else Path(named)
    file = StateFile(path, ids)
    try:
        file.check(replaces_others=named is None)
    except OSError as error:
        if named is not None:
            raise ConfigError(
                f"--spec-state {path} cannot be written: {error.strerror or error}; name another "
                "file, or none"
            ) from error
        log.warning("what control learns will not be kept: %s: %s", path, error.strerror or error)
    if reason := controller.load(file):
        log.warning("what control learned is not used: %s: %s", path, reason)
    return controller, file, reason


def _default_file(config: Config, name: str, ids: Mapping[str, ModelId]) -> Path:
    """One file per pair of models, machine and settings that change what a step costs."""
    facts = [
        *(model.digest for model in ids.values()),
        platform.node(),
        platform.machine(),
        repr(config.engine),
        repr(config.draft_engine),
    ]
    digest = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]
    return cache_folder() / "control" / f"{name}-{digest}.json"
