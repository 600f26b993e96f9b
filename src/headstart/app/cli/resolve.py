"""Where each setting got its value: flag, then environment, then config file, then default."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from headstart.app.cli.arguments import from_environment
from headstart.app.cli.settings import (
    OPTIONS_FIELD,
    SPECULATOR_PART,
    Setting,
    Value,
    all_settings,
    closest,
)
from headstart.config import Config
from headstart.types.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resolved:
    """A value and its origin per setting."""

    settings: tuple[Setting, ...]
    values: Mapping[str, Value]
    origins: Mapping[str, str]

    def config(self) -> Config:
        """The configuration; parts without settings keep their defaults.

        Raises:
            ConfigError: values that cannot work together.
        """
        hints = get_type_hints(Config)
        chosen: dict[str, dict[str, Any]] = {field.name: {} for field in fields(Config)}
        for setting in self.settings:
            if setting.part in chosen:
                chosen[setting.part][setting.name] = self.values[setting.name]
        if options := self._speculator_options():
            chosen["speculation"][OPTIONS_FIELD] = options
        return Config(**{part: hints[part](**values) for part, values in chosen.items()})

    def own(self, make: Callable[..., T]) -> T:
        """A command's own options: the settings that belong to no part of `Config`.

        Raises:
            ConfigError: values that cannot work together.
        """
        return make(
            **{
                setting.name: self.values[setting.name]
                for setting in self.settings
                if not setting.part
            }
        )

    def _speculator_options(self) -> dict[str, dict[str, Value]]:
        """What was set for each speculator; its own defaults stay its own."""
        options: dict[str, dict[str, Value]] = {}
        for setting in self.settings:
            if setting.part.startswith(SPECULATOR_PART) and self.origins[setting.name] != "default":
                speculator = setting.part.removeprefix(SPECULATOR_PART)
                prefix = f"spec_{speculator.replace('-', '_')}_"
                options.setdefault(speculator, {})[setting.name.removeprefix(prefix)] = self.values[
                    setting.name
                ]
        return options

    def in_force(self) -> list[dict[str, Value]]:
        """Name, value and origin of every setting, JSON-ready; secrets are masked."""
        return [
            {
                "name": setting.name,
                "value": "***" if setting.is_secret and value is not None else value,
                "origin": self.origins[setting.name],
            }
            for setting in self.settings
            for value in (self.values[setting.name],)
        ]

    def describe(self) -> str:
        """One line per setting, in the syntax of the config file, with its origin as a comment."""
        lines = [(_toml_line(s, self.values[s.name]), self.origins[s.name]) for s in self.settings]
        width = min(60, max(len(line) for line, _ in lines))
        return "\n".join(f"{line:<{width}}  # {origin}" for line, origin in lines)


def resolve(
    settings: Sequence[Setting],
    flags: Mapping[str, str | bool],
    environment: Mapping[str, str],
    file: Path | None = None,
    preset: Mapping[str, str] | None = None,
) -> Resolved:
    """Choose a value for every setting. An empty environment variable counts as absent.

    Raises:
        ConfigError: a value of the wrong kind, an unreadable file, or an unknown name in it.
    """
    from_file = _read(file, settings) if file else {}
    theirs = from_environment(environment, settings)
    values: dict[str, Value] = {}
    origins: dict[str, str] = {}
    for setting in settings:
        name = setting.name
        if name in flags:
            given = flags[name]
            values[name] = given if isinstance(given, bool) else setting.parse(given, setting.flag)
            origins[name] = "flag"
        elif text := environment.get(setting.environment_name):
            values[name] = setting.parse(text, setting.environment_name)
            origins[name] = f"environment {setting.environment_name}"
        elif name in theirs:
            text, variable = theirs[name]
            values[name] = setting.parse(text, variable)
            origins[name] = f"environment {variable}"
        elif preset and name in preset:
            values[name] = setting.parse(preset[name], f"{name} in the preset")
            origins[name] = "preset"
        elif name in from_file:
            values[name] = setting.check(from_file[name], f"{name} in {file}")
            origins[name] = f"file {file}"
        else:
            values[name] = setting.default
            origins[name] = "default"
    return Resolved(tuple(settings), values, origins)


def _read(file: Path, settings: Iterable[Setting]) -> dict[str, object]:
    """Names and values of a config file; dashes and underscores are the same.

    One file may serve several commands, so settings of other commands are fine.
    """
    try:
        content = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the config file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the config file {file} is not valid TOML: {error}") from None
    named = {key.replace("-", "_"): value for key, value in content.items()}
    known = {setting.name for setting in (*settings, *all_settings())}
    for name in named:
        if name not in known:
            raise ConfigError(
                f"the config file {file} sets {name!r}, which does not exist{closest(name, known)}"
            )
    return named


def _toml_line(setting: Setting, value: Value) -> str:
    if value is None:
        return f"# {setting.name} ="
    if setting.is_secret:
        value = "***"
    if isinstance(value, bool):
        return f"{setting.name} = {str(value).lower()}"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the one control character that JSON lets through.
        return f"{setting.name} = {json.dumps(value, ensure_ascii=False)}".replace(
            "\x7f", "\\u007f"
        )
    return f"{setting.name} = {value}"
