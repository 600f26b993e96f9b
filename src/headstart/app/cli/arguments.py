"""The arguments of a command: which setting gets which text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headstart.app.cli import llama_server
from headstart.app.cli.llama_server import OFF, ON, Flag
from headstart.app.cli.settings import (
    BARE_VALUES,
    FALSE_WORDS,
    PAIRS,
    REPEATABLE,
    TRUE_WORDS,
    Setting,
    closest,
)
from headstart.types.errors import ConfigError

SWITCHES = ("--help", "-h", "--usage", "--print-config")
# in place of the separator that joins what a repeatable flag was given
LINE = "\n"


@dataclass(slots=True)
class Arguments:
    """What was given: texts and switches by setting, words that belong to no flag, own switches."""

    given: dict[str, str | bool] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    switches: set[str] = field(default_factory=set)
    file: str | None = None
    without_effect: list[str] = field(default_factory=list)  # flags of llama-server


def read_arguments(command: str, settings: Sequence[Setting], argv: Sequence[str]) -> Arguments:
    """Read the command line; the last of several values wins, as at llama-server.

    Raises:
        ConfigError: an unknown or refused flag, or one without its value.
    """
    return _Reader(command, settings, argv).read()


class _Reader:
    def __init__(self, command: str, settings: Sequence[Setting], argv: Sequence[str]) -> None:
        self._command, self._argv, self._next = command, argv, 0
        self._settings = settings
        self._by_name = {name: one for one in settings for name in one.spellings}
        self._result = Arguments()

    def read(self) -> Arguments:
        while self._next < len(self._argv):
            argument = self._argv[self._next]
            self._next += 1
            if not argument.startswith("-") or re.fullmatch(r"-[0-9.]*", argument):
                self._result.words.append(argument)
            else:
                self._read_flag(*self._split(argument))
        return self._result

    def _split(self, argument: str) -> tuple[str, str | None]:
        """Name and value of `--name=value`, `-c4096` or a name alone, as we spell it."""
        name, has_value, value = argument.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")
        if not self._is_known(name) and (glued := re.fullmatch(r"(-[A-Za-z]+)([0-9]+)", argument)):
            return glued[1], glued[2]
        return name, value if has_value else None

    def _is_known(self, name: str) -> bool:
        own = (*SWITCHES, "--config")
        return name in own or name in self._by_name or name in llama_server.by_name()

    def _read_flag(self, name: str, value: str | None) -> None:
        result = self._result
        if name in SWITCHES:
            result.switches.add(name)
        elif name == "--config":
            result.file = self._value(name, value)
        elif setting := self._by_name.get(name):
            self._read_setting(setting, name, value)
        elif flag := llama_server.by_name().get(name):
            self._read_other(flag, name, value)
        else:
            raise ConfigError(_unknown(self._command, name, self._settings))

    def _read_setting(self, setting: Setting, name: str, value: str | None) -> None:
        given = self._result.given
        if setting.kind is bool:
            is_on = name not in setting.negatives
            if value is not None:
                is_on = setting.parse(value, name) is is_on
            given[setting.name] = is_on
        elif setting.name in PAIRS:
            pair = f"{self._value(name, value)} => {self._value(name, None)}".replace("\n", "\\n")
            given[setting.name] = _joined(given.get(setting.name), pair, LINE)
        elif setting.name in BARE_VALUES and value is None and not self._has_value():
            given[setting.name] = BARE_VALUES[setting.name]
        elif setting.name in REPEATABLE:
            before = given.get(setting.name)
            separator = REPEATABLE[setting.name]
            given[setting.name] = _joined(before, self._value(name, value), separator)
        else:
            given[setting.name] = self._value(name, value)

    def _read_other(self, flag: Flag, name: str, value: str | None) -> None:
        """A flag of llama-server that no setting of this command has."""
        if not flag.verdicts:
            raise ConfigError(_not_of_this_command(self._command, name))
        value = (OFF if name in flag.negatives else ON) if not flag.placeholders else value
        values = [self._value(name, value)]
        values += [self._value(name, None) for _ in flag.placeholders[1:]]
        shown = f"{name} {' '.join(values)}" if flag.placeholders else name
        stands_for = flag.apply(values[0], shown)
        if foreign := set(stands_for) - {one.name for one in self._settings}:
            raise ConfigError(_not_of_this_command(self._command, f"{name} ({min(foreign)})"))
        self._result.given.update(stands_for)
        if not stands_for:
            self._result.without_effect.append(name)

    def _has_value(self) -> bool:
        """Whether the next argument is a value, not another flag."""
        if self._next >= len(self._argv):
            return False
        text = self._argv[self._next]
        return not text.startswith("-") or not self._is_known(self._split(text)[0])

    def _value(self, name: str, value: str | None) -> str:
        if value is not None:
            return value
        if not self._has_value():
            raise ConfigError(f"{name} needs a value (see headstart {self._command} --help)")
        self._next += 1
        return self._argv[self._next - 1]


def from_environment(
    environment: Mapping[str, str], settings: Sequence[Setting]
) -> dict[str, tuple[str, str]]:
    """Setting -> (text, variable) of llama-server's variables; empty ones count as absent.

    A command that does not serve takes only those of its own settings.

    Raises:
        ConfigError: one that is refused.
    """
    found: dict[str, tuple[str, str]] = {}
    serves = any(setting.part == "server" for setting in settings)
    for flag in llama_server.flags():
        if environment.get(flag.negative_environment):
            name, value = flag.negative_environment, OFF
        elif flag.environment and environment.get(flag.environment):
            name, value = flag.environment, environment[flag.environment]
        else:
            continue
        if not flag.verdicts or (serves and name.startswith("LLAMA_")):
            for setting, text in meaning(flag, value, settings, f"{name}={value}").items():
                found.setdefault(setting, (text, name))
    return found


def meaning(flag: Flag, value: str, settings: Sequence[Setting], origin: str) -> dict[str, str]:
    """Setting -> text for a flag given by its name and a value, as variables and presets do.

    Raises:
        ConfigError: it is refused.
    """
    for setting in settings:
        if set(flag.names) & set(setting.spellings):
            return {setting.name: value}
    if not flag.verdicts:
        return {}  # a setting of another command
    if not flag.placeholders:
        if value.lower() not in (*TRUE_WORDS, *FALSE_WORDS):
            raise ConfigError(f"{origin} must be on or off")
        value = ON if value.lower() in TRUE_WORDS else OFF
        if value == OFF and not flag.negatives:
            return {}
    return flag.apply(value, origin)


def _joined(before: str | bool | None, more: str, separator: str) -> str:
    return f"{before}{separator}{more}" if isinstance(before, str) else more


def _not_of_this_command(command: str, name: str) -> str:
    return f"{name} is a flag of headstart serve, not of headstart {command}"


def _unknown(command: str, name: str, settings: Sequence[Setting]) -> str:
    names = [n for setting in settings for n in (*setting.spellings, *setting.negatives)]
    near = closest(name, [*names, *llama_server.by_name()])
    return f"there is no flag {name}{near} (all flags: headstart {command} --help)"
