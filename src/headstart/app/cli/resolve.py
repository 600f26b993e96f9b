"""Resolves each setting from its sources: flag, environment, preset, config file, or default."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from headstart.app.cli.settings import Setting, Value
from headstart.config import Config

T = TypeVar("T")


Given = tuple[str, str]
"""A setting's text, and its origin: "flag", "preset", "environment X" or "file X"."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A value and its origin per setting, and the words of the command line that are no flags."""

    settings: tuple[Setting, ...]
    values: Mapping[str, Value]
    origins: Mapping[str, str]
    words: tuple[str, ...] = ()  # -- and everything after it among them

    def config(self) -> Config:
        """The configuration; parts without settings keep their defaults.

        Raises:
            ConfigError: values that cannot work together.
        """
        hints = get_type_hints(Config)
        chosen: dict[str, Any] = {}
        for setting in self.settings:
            if len(setting.path) == 2 or (setting.path and self.origins[setting.name] != "default"):
                *place, field = setting.path
                values = chosen
                for key in place:
                    values = values.setdefault(key, {})
                values[field] = self.values[setting.name]
        return Config(**{part: hints[part](**values) for part, values in chosen.items()})

    def own(self, make: Callable[..., T]) -> T:
        """A command's own options: the settings that belong to no part of `Config`.

        Raises:
            ConfigError: values that cannot work together.
        """
        own = [setting.name for setting in self.settings if not setting.part]
        return make(**{name: self.values[name] for name in own})

    def in_force(self) -> list[dict[str, Value]]:
        """Name, value and origin of every setting, JSON-ready; secrets are masked."""
        return [
            {"name": one.name, "value": self._shown(one), "origin": self.origins[one.name]}
            for one in self.settings
        ]

    def describe(self) -> str:
        """One line per setting, in the syntax of the config file, with its origin as a comment."""
        lines = [(_toml_line(s.name, self._shown(s)), self.origins[s.name]) for s in self.settings]
        width = min(60, max((len(line) for line, _ in lines), default=0))
        return "\n".join(f"{line:<{width}}  # {origin}" for line, origin in lines)

    def _shown(self, setting: Setting) -> Value:
        value = self.values[setting.name]
        return "***" if setting.option.is_secret and value is not None else value


def resolve(settings: Sequence[Setting], sources: Sequence[Mapping[str, Given]]) -> Resolved:
    """Choose a value for every setting: that of the first source that has one.

    Raises:
        ConfigError: a value of the wrong kind, or out of its range.
    """
    values: dict[str, Value] = {}
    origins: dict[str, str] = {}
    for setting in settings:
        name = setting.name
        values[name], origins[name] = setting.default, "default"
        if source := next((one for one in sources if name in one), None):
            text, origin = source[name]
            values[name] = setting.read(text, _called(setting, origin))
            if not setting.means_default(text):
                origins[name] = origin
    parts = ("context", "parallel")  # with both llama-server divides the context, and so do we
    if origins.get("kv_unified") == "default" and "default" not in map(origins.get, parts):
        values["kv_unified"], origins["kv_unified"] = False, " and ".join(parts)
    return Resolved(tuple(settings), values, origins)


def _called(setting: Setting, origin: str) -> str:
    """What errors call a setting from this origin."""
    kind, _, variable = origin.partition(" ")
    if kind == "environment":
        return variable
    return setting.flag if kind == "flag" else f"{setting.flag[2:]} in the {origin}"


def _toml_line(name: str, value: Value) -> str:
    if value is None:
        return f"# {name} ="
    if isinstance(value, str):
        # JSON's escapes are TOML's, except for the one control character that JSON allows.
        return f"{name} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
    return f"{name} = {json.dumps(value)}"
