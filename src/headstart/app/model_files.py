"""The files to load: named, downloaded, embedded, or found beside the target.

File readers are imported inside functions, because the command line imports this module.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.app import demo
from headstart.app.hub import Hub, Repository
from headstart.app.hub_files import DRAFTERS, choose_drafter, choose_file, split_parts
from headstart.app.speculation import (
    WITH_HEADS,
    file_of,
    needs_draft_model,
    type_names,
    wanted_types,
    wants_heads,
)
from headstart.config import Config
from headstart.types import DraftMode
from headstart.types.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from headstart.engine.drafters import Drafter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Models:
    """The files to load and, once chosen, the speculators to load them for."""

    target: Path
    draft: Path | None = None
    is_demo: bool = False
    projector: Path | None = None  # reads images for the target
    drafter: Drafter | None = None  # the drafting file: a draft model, or multi-token heads
    types: tuple[str, ...] = ()  # names of speculators, in order of preference


def find_models(config: Config, environment: Mapping[str, str] = os.environ) -> Models:
    """Find the model files, downloading missing ones; without any the demo pair.

    Shows a progress bar. `environment` locates the hub and its cache.

    Raises:
        ConfigError: options that exclude each other, or a malformed reference.
        ModelError: there is no such file, repository or quant, or it cannot be downloaded.
    """
    model, hub = config.model, Hub(config.model, environment)
    if model.hf_file and not model.hf_repo:
        raise ConfigError(f"--hf-file {model.hf_file} needs --hf-repo")
    target = _local("--model", model.model, "--hf-repo", model.hf_repo)
    draft = _local("--draft-model", model.draft_model, "--draft-hf-repo", model.draft_hf_repo)
    images = config.images
    projector = _local("--mmproj", images.mmproj if images.mmproj_auto else None, "", None)
    if model.hf_repo:
        repository = hub.open(model.hf_repo)
        files = repository.select(model.hf_file)
        target = repository.fetch(files)
        if draft is None and not model.draft_hf_repo:
            kinds = drafters_wanted(config)
            beside = choose_drafter(repository.paths, kinds, repository.quant, files[0])
            draft = _fetch_beside(config, repository, beside, target) if beside else None
        if projector is None and images.mmproj_auto:  # of any quant, as in llama-server
            mmproj = choose_drafter(repository.paths, ("mmproj",), "", files[0])
            projector = repository.fetch([mmproj]) if mmproj else None
    if model.draft_hf_repo:
        repository = hub.open(model.draft_hf_repo)
        paths, quant = repository.paths, repository.quant
        whole = choose_file(paths, quant) or ""
        files = repository.select(choose_drafter(paths, _drafters_named(config), quant, whole))
        draft = repository.fetch(files)
    is_demo = target is None
    if target is None:
        target, draft = demo.path(demo.TARGET), draft or demo.path(demo.DRAFT)
    return Models(target, draft, is_demo, projector)


def _local(flag: str, path: str | None, remote_flag: str, reference: str | None) -> Path | None:
    """A file that was named as such."""
    if path and reference:
        raise ConfigError(f"{flag} {path} and {remote_flag} {reference} name two models; give one")
    if path is None:
        return None
    found = Path(path).expanduser()
    if found.is_dir():
        raise ModelError(f"{flag} {path} is a folder; name the GGUF file in it")
    if not found.is_file():
        raise ModelError(f"{flag} {path}: there is no such file")
    return found


def may_have_drafter(config: Config) -> bool:
    """Whether a drafter was named, is embedded, or may be found in or next to the target's file.
    Does not search for it.
    """
    model = config.model
    if model.draft_model or model.draft_hf_repo:
        return True
    if model.hf_repo:
        return bool(drafters_wanted(config))
    return wants_heads(config) or (not model.model and _may_use_draft_model(config))


def _may_use_draft_model(config: Config) -> bool:
    types = config.speculation.spec_type
    return types is None or needs_draft_model(type_names(types))


def drafters_wanted(config: Config) -> tuple[str, ...]:
    """The kinds of drafters to use if the model's repository has them, best first.

    Multi-token heads by default, others if `--spec-type` names them.
    """
    if config.speculation.mode is DraftMode.OFF:
        return ()
    types = config.speculation.spec_type
    names = {WITH_HEADS} if types is None else set(type_names(types))
    if not wants_heads(config):
        names -= {WITH_HEADS}
    return tuple(kind for kind in DRAFTERS if kind in names)


def _drafters_named(config: Config) -> tuple[str, ...]:
    """The kinds of drafters that a draft model's repository may hold instead of a whole model."""
    if config.model.draft_hf_repo and config.speculation.spec_type not in (None, "none"):
        return drafters_wanted(config)
    return tuple(kind for kind in DRAFTERS if config.engine.mtp or kind != WITH_HEADS)


def _fetch_beside(config: Config, repository: Repository, file: str, target: Path) -> Path | None:
    """Download a drafter from the target's repository; None if it cannot be used.

    Raises:
        ModelError: `--spec-type` asks for it and it cannot be downloaded.
    """
    from headstart.engine.drafters import read_drafter, read_heads, why_not_heads

    is_heads = f"{WITH_HEADS}-" in file.rsplit("/", 1)[-1]
    if is_heads and read_heads(target)[0]:
        return None  # the target's own share its weights
    try:
        path = repository.fetch(split_parts(repository.paths, file))
    except ModelError as error:
        if config.speculation.spec_type is not None:
            raise
        log.warning("%s is not used: %s", file, error)
        return None
    if is_heads and (reason := why_not_heads(read_drafter(path), target)):
        log.warning("%s is not used: %s", path, reason)
        return None
    log.info("%s was found in the repository of %s and drafts for it", path, target.name)
    return path


def choose_speculators(config: Config, models: Models) -> Models:
    """Choose the speculators, and of the files those that they need.

    Raises:
        ConfigError: speculators that cannot be used together, or with these models.
        ModelError: a file is missing or no GGUF.
    """
    from headstart.app.loading import only_embeds
    from headstart.engine.drafters import find_heads, read_drafter, why_not_heads

    drafter: Drafter | None = None
    draft, target = models.draft, models.target
    if draft and not (models.is_demo and not _may_use_draft_model(config)):
        drafter = read_drafter(draft)
    elif wants_heads(config):
        drafter = find_heads(target)
    types = wanted_types(config.speculation, drafter.speculator if drafter else None)
    if drafter and drafter.speculator == WITH_HEADS and types:
        if not config.engine.mtp:
            raise ConfigError(
                f"{draft} has multi-token heads and nothing else, and they are left out here; "
                "drop --no-mtp, or leave out --draft-model"
            )
        if reason := None if drafter.is_in_target else why_not_heads(drafter, target):
            raise ModelError(
                f"the multi-token heads in {drafter.path} cannot draft for {target.name}: "
                f"{reason}; or start with --no-mtp"
            )
    if only_embeds(config, target):
        types = ()
    is_used = drafter is not None and any(map(file_of, types))
    return replace(models, drafter=drafter if is_used else None, types=types)
