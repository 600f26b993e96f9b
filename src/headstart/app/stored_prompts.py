"""The folder of prompts on the disk, and the settings that their caches depend on."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING, Any

from headstart.app.model_files import Models
from headstart.config import Config, EngineConfig, SchedulerConfig
from headstart.structures.atomic import cache_folder
from headstart.structures.model_id import ModelId

if TYPE_CHECKING:
    from headstart.app.loading import Target
    from headstart.scheduler.disk_cache import DiskCache

log = logging.getLogger(__name__)


def prompts_folder(config: SchedulerConfig) -> Path:
    """The folder of all models."""
    return Path(config.cache_disk_path) if config.cache_disk_path else cache_folder() / "prompts"


def with_prompts(config: Config) -> Config:
    """The settings of a server, which keeps prompts on the disk by default."""
    scheduler = config.scheduler
    if scheduler.cache_disk is not None or not scheduler.cache_ram:
        return config
    try:
        folder = prompts_folder(scheduler)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} is not writable")
        # with what is there already, or each start would leave it less
        room = disk_usage(folder).free + _num_bytes(folder)
        most = min(10240, room // 10 >> 20)  # MiB
        if not most:
            raise OSError(f"the disk of {folder} has less than 10 MiB of room")
    except OSError as error:
        level = logging.WARNING if scheduler.cache_disk_path else logging.INFO
        words = "prompts are not kept on the disk, so a restart processes them again: %s"
        log.log(level, words, error)
        return config
    return replace(config, scheduler=replace(scheduler, cache_disk=most))


def _num_bytes(folder: Path) -> int:
    total = 0
    for own in folder.glob("*/"):
        for file in os.scandir(own):
            with suppress(FileNotFoundError):  # another server has just dropped it
                total += file.stat().st_size
    return total


def open_disk(config: Config, models: Models, target: Target, drafter: Any) -> DiskCache | None:
    """The target's prompts on the disk; None: none are kept there.

    Args:
        drafter: the engine of its model; None without one.

    Raises:
        ConfigError: an adapter's file is missing, or has no scale.
    """
    from headstart.app.loading import only_embeds
    from headstart.engine import library
    from headstart.scheduler.disk_cache import DiskCache

    scheduler = config.scheduler
    if not scheduler.cache_disk or only_embeds(config, models.target):
        return None
    if not scheduler.cache_ram:
        log.warning("--cache-disk is not used: prompts go there through --cache-ram, which is 0")
        return None
    engine: Any = target.engine
    digest, own = ModelId.of(models.target).digest, _facts(target.fitted.config)
    if target.classes is not None:  # an answer's cells are kept only where it has these, too
        own += f"\0{engine.prompt_widths!r}"
    streams = scheduler.parallel if engine.has_own_caches else 1  # a state names their number
    facts = [ModelId.of(models.drafter.path).digest] if models.drafter else []
    facts += [*models.types, own, repr(config.draft_engine), *_rotation(drafter)]
    folder = prompts_folder(scheduler)
    log.info(
        "prompts and answers%s are kept in %s, %d MiB at most, and outlive the server; start with "
        "--cache-disk 0 to keep none",
        "" if scheduler.cache_prompt else " of requests with cache_prompt",
        folder,
        scheduler.cache_disk,
    )
    return DiskCache(
        folder,
        scheduler.cache_disk << 20,
        name=models.target.stem,
        identity="\0".join((digest, library.version(), str(streams), own, *_rotation(engine))),
        drafters=hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16],
    )


def _rotation(engine: Any) -> tuple[str, ...]:
    """Whether the context is longer than the model's was before it was extended: libllama rotates
    all keys by other factors then, the first ones too.
    """
    from headstart.engine.library import api

    original = engine.model.facts.original_context if engine else 0
    return ("extended",) if 0 < original < api.llama_n_ctx_seq(engine.handle) else ()


def _facts(config: EngineConfig) -> str:
    """All settings that a state depends on; with --exact also what chooses kernels."""
    from headstart.engine.adapters import scaled_files

    # what cached keys and values depend on, in addition to the model and the adapters
    names = (
        "flash_attn", "cache_type_k", "cache_type_v", "swa_full", "override_kv", "rope_scaling",
        "rope_scale", "rope_freq_base", "rope_freq_scale", "yarn_orig_ctx", "yarn_ext_factor",
        "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow",
    )  # fmt: skip
    facts = [repr(getattr(config, name)) for name in names]
    for files_named, scaled, flag in (
        (config.lora, config.lora_scaled, "--lora"),
        (config.control_vector, config.control_vector_scaled, "--control-vector"),
    ):
        files = scaled_files(files_named, scaled, flag)
        facts += [f"{flag} {ModelId.of(file).digest} {scale}" for file, scale in files]
    if config.exact:
        # the context may be what fits, which is another one each time
        facts += [platform.node(), platform.machine(), repr(replace(config, context=0))]
    return "\0".join(facts)
