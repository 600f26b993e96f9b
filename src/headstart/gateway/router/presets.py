"""A model that can be loaded: how it is started, and what the router has to know of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PRESET, FOLDER, CACHE = "preset", "models_dir", "cache"  # where a model was found
DEFAULT_STOP_SECONDS = 10.0


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
    group: str = ""  # it is not loaded beside models of another group
    is_hidden: bool = False  # not listed, but answers to its name
