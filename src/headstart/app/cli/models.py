"""The models of a router: what the hub's cache, --models-dir and --models-preset hold, and the
command line of each.

What the command line of the router says beats what a model's section says, which beats [*].
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from headstart.app.cli import llama_server
from headstart.app.cli.preset import EVERY_MODEL, PresetSection, read_sections
from headstart.app.cli.resolve import Resolved
from headstart.app.cli.settings import SPECULATOR_PART, Setting, Value
from headstart.app.hub import Hub
from headstart.config.fields import TRUE_WORDS, listed
from headstart.gateway.router.folder import models_of_folder
from headstart.gateway.router.presets import (
    CACHE,
    DEFAULT_STOP_SECONDS,
    FOLDER,
    PRESET,
    ModelPreset,
)
from headstart.types.errors import ConfigError

# what `headstart devices` takes, to say how much memory a model needs
ENGINE_PARTS = ("model", "engine", "draft_engine", "scheduler", "speculation")


def is_router(resolved: Resolved) -> bool:
    """Whether several models are to be served: none is named, but where they are, or how many."""
    values = resolved.values
    if values["model"] or values["hf_repo"]:
        return False
    asked = ("models_dir", "models_preset", "models_max", "models_autoload", "models_memory")
    return any(resolved.origins[name] != "default" for name in asked)


def read_models(
    resolved: Resolved, environment: Mapping[str, str] = os.environ
) -> list[ModelPreset]:
    """Every model there is now, by name.

    Raises:
        ConfigError: a folder or file that cannot be read, or settings that cannot work.
    """
    config = resolved.config()
    sources: dict[str, tuple[str, dict[str, str]]] = {}
    cached = Hub.from_config(config.model, environment).cached_models()
    for name in cached:
        sources[name] = (CACHE, {"hf_repo": name, "offline": "on"})
    if config.router.models_dir:
        for name, file in models_of_folder(Path(config.router.models_dir)).items():
            sources[name] = (FOLDER, {"model": str(file)})
    sections: Mapping[str, PresetSection] = {}
    if config.router.models_preset:
        sections = read_sections(Path(config.router.models_preset), resolved.settings)
    for name, section in sections.items():
        if name != EVERY_MODEL:
            sources[name] = (PRESET, _with_model(name, sources.get(name), section))
    made = [_Maker(resolved, environment, sections).make(name, *sources[name]) for name in sources]
    _check_names(made)
    hub = Hub.from_config(config.model, environment)
    return _hide(made, sections, hub, cached)


def _with_model(
    name: str, found: tuple[str, dict[str, str]] | None, section: PresetSection
) -> dict[str, str]:
    """What a section's model is made of: itself, or what was found elsewhere under its name."""
    if {"model", "hf_repo"} & section.settings.keys():
        return dict(section.settings)
    if found is None and "/" not in name:
        raise ConfigError(
            f"[{name}] of the preset names no model, and there is none of this name; add model = "
            "FILE or hf-repo = USER/REPO"
        )
    return (found[1] if found else {"hf_repo": name}) | dict(section.settings)


class _Maker:
    """Turns texts of settings into the command line of a child."""

    def __init__(
        self,
        resolved: Resolved,
        environment: Mapping[str, str],
        sections: Mapping[str, PresetSection],
    ) -> None:
        self._settings = {setting.name: setting for setting in resolved.settings}
        self._sections = sections
        origins, values = resolved.origins, resolved.values
        self._flags = {name: _text(values[name]) for name in values if origins[name] == "flag"}
        self._file = {
            name: _text(values[name]) for name in values if origins[name].startswith("file ")
        }
        self._environment = _without_reserved(environment, resolved.settings)

    def make(self, name: str, source: str, own: Mapping[str, str]) -> ModelPreset:
        every = self._sections.get(EVERY_MODEL, PresetSection({}, {}))
        section = self._sections.get(name, PresetSection({}, {}))
        texts = {**self._file, **every.settings, **own, **self._flags}
        aliases, tags = listed(texts.get("alias")), listed(texts.get("tags"))
        options = {key: setting.option for key, setting in self._settings.items()}
        texts = {k: text for k, text in texts.items() if text and not options[k].for_router}
        for key, text in texts.items():
            self._settings[key].read(text, f"{_key(key)} of the model {name}")
        hidden = {key for key in texts if options[key].is_secret or options[key].is_pair}
        shown = {key: text for key, text in texts.items() if key not in hidden}
        secret = {self._settings[key].environment_name: texts[key] for key in hidden}
        for_router = {**every.for_router, **section.for_router}
        return ModelPreset(
            name=name,
            source=source,
            arguments=self._arguments(shown),
            engine_arguments=self._arguments({
                key: text for key, text in shown.items()
                if self._settings[key].part in ENGINE_PARTS
                or self._settings[key].part.startswith(SPECULATOR_PART)
            }),
            environment={**self._environment, **secret},
            aliases=tuple(one for one in aliases if one != name),
            tags=tags,
            ini="\n".join([f"[{name}]", *(f"{_key(k)} = {v}" for k, v in shown.items()), ""]),
            loads_on_startup=_is_true(for_router.get("load-on-startup", "")),
            stop_seconds=_seconds(for_router, "stop-timeout", name) or DEFAULT_STOP_SECONDS,
            idle_seconds=_seconds(for_router, "ttl", name),
            group=for_router.get("group", ""),
        )  # fmt: skip

    def _arguments(self, texts: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(_argument(self._settings[key], text) for key, text in texts.items())


def _argument(setting: Setting, text: str) -> str:
    if setting.kind is not bool:
        return f"{setting.flag}={text}"
    is_on = setting.read(text, setting.flag)
    return setting.flag if is_on else setting.flag.replace("--", "--no-", 1)


def _without_reserved(
    environment: Mapping[str, str], settings: Iterable[Setting]
) -> dict[str, str]:
    """The router's environment, less what is meant for it alone."""
    reserved = {"HEADSTART_CONFIG"}  # what it sets is among the arguments
    for setting in settings:
        if setting.option.for_router:
            reserved.add(setting.environment_name)
            for flag in setting.theirs:
                reserved |= {flag.environment, flag.negative_environment}
    return {name: value for name, value in environment.items() if name not in reserved}


def _hide(
    models: Sequence[ModelPreset],
    sections: Mapping[str, PresetSection],
    hub: Hub,
    cached: Mapping[str, Path],
) -> list[ModelPreset]:
    """Hide models of the cache that a preset with `dedup-cache-models` has under its own name."""
    from dataclasses import replace

    every = sections.get(EVERY_MODEL, PresetSection({}, {}))
    used: set[Path | None] = set()
    for name, section in sections.items():
        keys = {**every.for_router, **section.for_router}
        if name == EVERY_MODEL or not _is_true(keys.get("dedup-cache-models", "")):
            continue
        texts = {**every.settings, **section.settings}
        if reference := texts.get("hf_repo"):
            used.add(hub.cached_file(reference, texts.get("hf_file")))
        if reference := texts.get("draft_hf_repo"):
            used.add(hub.cached_file(reference))
    return [
        replace(one, is_hidden=True)
        if one.source == CACHE and cached.get(one.name) in used - {None}
        else one
        for one in models
    ]


def _check_names(models: Sequence[ModelPreset]) -> None:
    """Raise ConfigError where one name means two models."""
    owners = {one.name: one.name for one in models}
    for one in models:
        for alias in one.aliases:
            if owners.setdefault(alias, one.name) != one.name:
                raise ConfigError(
                    f"alias {alias!r} of the model {one.name} is {owners[alias]}'s already; choose "
                    "another"
                )


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return llama_server.ON if value else llama_server.OFF
    return "" if value is None else str(value)


def _is_true(text: str) -> bool:
    return text.lower() in TRUE_WORDS


def _key(name: str) -> str:
    return name.replace("_", "-")


def _seconds(keys: Mapping[str, str], key: str, model: str) -> float | None:
    text = keys.get(key)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 10**9:
        raise ConfigError(f"{key} of the model {model} is {text!r} but must be seconds, as 60")
    return seconds
