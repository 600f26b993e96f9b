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
    controller = Controller()
    if config.speculation.spec_state == "none":
        return controller, None, ""
    ids = {part: ModelId.of(file) for part, file in files.items()}
    file = named_file(config, ids)
    if file is None:
        file = StateFile(_default_file(config, models.target.stem, ids), ids)
        try:
            file.check(replaces_others=True)
        except OSError as error:
            why_not = error.strerror or error
            log.warning("what control learns will not be kept: %s: %s", file.path, why_not)
    if reason := controller.load(file):
        log.warning("what control learned is not used: %s: %s", file.path, reason)
    return controller, file, reason


def named_file(config: Config, models: Mapping[str, ModelId]) -> StateFile | None:
    """The file that `--spec-state` names; `models` are empty while they are not known.

    Raises:
        ConfigError: it was learned for others or cannot be written.
    """
    path = config.speculation.spec_state
    if path in (None, "none"):
        return None
    file = StateFile(Path(path), models)
    try:
        file.check()
    except OSError as error:
        raise ConfigError(
            f"--spec-state {path} cannot be written: {error.strerror or error}; name another "
            "file, or none"
        ) from error
    return file


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
