"""The models of a router, from the hub's cache, --models-dir and --models-preset, with the command
line of each.

The router's command line overrides a model's section, which overrides [*].
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from headstart.app.cli.preset import EVERY_MODEL, read_sections, router_keys
from headstart.app.cli.resolve import Resolved
from headstart.app.cli.settings import Setting, all_settings, as_arguments, text_of
from headstart.app.hub import Hub
from headstart.app.hub_files import DRAFTERS, choose_drafter
from headstart.app.speculation import WITH_HEADS, type_names
from headstart.config.fields import listed
from headstart.gateway.router.presets import (
    CACHE,
    FOLDER,
    PRESET,
    ModelPreset,
)
from headstart.types.errors import ConfigError

log = logging.getLogger(__name__)

# kinds of drafters of which a file beside a model is its draft model; heads are found by its server
DRAFT_MODELS = tuple(kind for kind in DRAFTERS if kind != WITH_HEADS)
# what a router has itself, as all of `RouterConfig` and `ToolsConfig`; its models do not get it
OWN_SETTINGS = (
    "router", "tools", "alias", "tags", "host", "port", "reuse_port", "api_prefix", "ssl_key_file",
    "ssl_cert_file", "api_key", "api_key_file", "allowed_hosts", "cors_origins", "cors_methods",
    "cors_headers", "cors_credentials", "page", "path", "tenant_header",
)  # fmt: skip


def is_router(resolved: Resolved, *, has_demo: bool = True) -> bool:
    """Whether to serve several models: no model is named, but a folder, preset or limit is.

    Without the demo (`headstart FLAGS`, like llama-server) models in the hub's cache suffice.
    """
    values = resolved.values
    if values["model"] or values["hf_repo"]:
        return False
    asked = ("models_dir", "models_preset", "models_max", "models_autoload", "models_memory")
    if any(resolved.origins[name] != "default" for name in asked):
        return True
    hub = Hub(resolved.config().model, os.environ)
    return not has_demo and bool(hub.cached_models())


def read_models(
    resolved: Resolved, environment: Mapping[str, str] = os.environ
) -> list[ModelPreset]:
    """Every model there is now, by name.

    Raises:
        ConfigError: a folder or file that cannot be read, or settings that cannot work.
    """
    config = resolved.config()
    hub = Hub(config.model, environment)
    cached = hub.cached_models()
    sources = {name: (CACHE, {"hf_repo": name, "offline": "on"}) for name in cached}
    folder: dict[str, dict[str, str]] = {}
    if config.router.models_dir:
        folder = _models_of_folder(Path(config.router.models_dir))
    sources |= {name: (FOLDER, own) for name, own in folder.items()}
    sections: dict[str, dict[str, str]] = {}
    if config.router.models_preset:
        sections = read_sections(Path(config.router.models_preset))
    every = sections.pop(EVERY_MODEL, {})
    for name, section in sections.items():
        sources[name] = (PRESET, _with_model(name, sources.get(name), section))

    def texts_from(origin: str) -> dict[str, str]:
        names = [name for name in resolved.values if resolved.origins[name].startswith(origin)]
        return {name: text_of(resolved.values[name]) for name in names}

    below, above = texts_from("file ") | every, texts_from("flag")
    reserved = {"HEADSTART_CONFIG"}  # what it sets is among the arguments
    settings = {setting.name: setting for setting in resolved.settings}
    for setting in all_settings(OWN_SETTINGS):
        reserved.update(setting.variables)
        del settings[setting.name]
    base = {name: value for name, value in environment.items() if name not in reserved}
    models = []
    for name, (source, own) in sources.items():
        texts = below | own | above
        if not _may_use(folder.get(name, {}).get("draft_model"), texts, resolved):
            del texts["draft_model"]
        models.append(_make(name, source, texts, settings, base))
    _check_names(models)
    used: set[Path | None] = set()
    for name, section in sections.items():
        if router_keys(every | section, name).dedup_cache_models:
            used |= _files_used(hub, every | section)
    return [
        replace(one, is_hidden=one.source == CACHE and cached.get(one.name) in used)
        for one in models
    ]


def _models_of_folder(folder: Path) -> dict[str, dict[str, str]]:
    """Name -> settings: of a model's file, its first part if it is split, or of a subfolder that
    holds one, with its projector and draft model. The model's server finds multi-token heads.

    Files here are named by people: only the beginning of a name makes a drafter of one.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"--models-dir {folder} cannot be read: {error.strerror}") from None
    part = r"(mmproj|imatrix|-(?!00001)\d{5}-of-\d{5}\.gguf$)"
    other = re.compile(rf".*{part}|({'|'.join(DRAFTERS)})-", re.IGNORECASE)
    found: dict[str, dict[str, str]] = {}
    for entry in entries:  # a file comes after a folder of its name, and replaces it
        try:
            files = [
                file
                for file in (entry.iterdir() if entry.is_dir() else [entry])
                if file.suffix == ".gguf" and file.is_file()
            ]
        except OSError as error:
            log.warning("%s of --models-dir cannot be read: %s", entry, error.strerror)
            continue
        beside = [file.name for file in files if other.match(file.name)]
        if whole := [file for file in files if file.name not in beside]:
            file = min(whole, key=lambda file: ("-00001-of-" not in file.name, file))
            own = {"model": str(file)}
            for name, kinds in (("mmproj", ("mmproj",)), ("draft_model", DRAFT_MODELS)):
                if companion := choose_drafter(beside, kinds, "", file.name):
                    own[name] = str(file.with_name(companion))
            found[entry.name if entry.is_dir() else entry.stem] = own
    return found


def _may_use(beside: str | None, texts: Mapping[str, str], resolved: Resolved) -> bool:
    """Whether a model with these settings may use what is beside it as draft model; True if it has
    none, or another one.
    """
    if beside is None or texts.get("draft_model") != beside:
        return True
    types, repo = (texts.get(key, resolved.values[key]) for key in ("spec_type", "draft_hf_repo"))
    kind = Path(beside).name.split("-")[0].lower()
    return not repo and (types is None or kind in type_names(str(types)))


def _with_model(
    name: str, found: tuple[str, dict[str, str]] | None, section: Mapping[str, str]
) -> dict[str, str]:
    """The settings of a section's model: its own, or those found elsewhere under its name."""
    if {"model", "hf_repo"} & section.keys():
        return dict(section)
    if found is None and "/" not in name:
        raise ConfigError(
            f"[{name}] of the preset names no model, and there is none of this name; add model = "
            "FILE or hf-repo = USER/REPO"
        )
    return (found[1] if found else {"hf_repo": name}) | dict(section)


def _make(
    name: str,
    source: str,
    given: Mapping[str, str],
    settings: Mapping[str, Setting],
    environment: Mapping[str, str],
) -> ModelPreset:
    """A model from texts of settings and keys of the router."""
    keys = router_keys(given, name)
    texts = {key: text for key, text in given.items() if text and key in settings}
    for key, text in texts.items():
        settings[key].read(text, f"{settings[key].flag[2:]} of the model {name}")
    flags, variables = as_arguments((settings[key], text) for key, text in texts.items())
    return ModelPreset(
        name=name,
        source=source,
        arguments=tuple(flags),
        environment={**environment, **variables},
        aliases=tuple(one for one in listed(given.get("alias")) if one != name),
        tags=listed(given.get("tags")),
        loads_on_startup=keys.load_on_startup,
        stop_seconds=keys.stop_timeout,
        idle_seconds=keys.ttl,
    )


def _files_used(hub: Hub, keys: Mapping[str, str]) -> set[Path | None]:
    """Files of the cache that a preset has under its own name."""
    found: set[Path | None] = set()
    if reference := keys.get("hf_repo"):
        found.add(hub.cached_file(reference, keys.get("hf_file")))
    if reference := keys.get("draft_hf_repo"):
        found.add(hub.cached_file(reference))
    return found - {None}


def _check_names(models: Sequence[ModelPreset]) -> None:
    """Raise ConfigError if one name means two models."""
    owners = {one.name: one.name for one in models}
    for one in models:
        for alias in one.aliases:
            if owners.setdefault(alias, one.name) != one.name:
                raise ConfigError(
                    f"alias {alias!r} of the model {one.name} is {owners[alias]}'s already; choose "
                    "another"
                )
