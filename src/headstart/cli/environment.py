"""What is set in the environment and read by nobody: names of ours are refused, llama-server's are
warned of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from headstart.cli.settings import Setting, Value, all_settings, closest, settings_of
from headstart.errors import ConfigError

PREFIX = "HEADSTART_"
# set for a service of our name
OF_KUBERNETES = re.compile(r"SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_\w+")
# ours as well: two for any command, one each of examples and tests
NO_SETTINGS = ("CACHE", "CONFIG", "URL", "VOCABS")
LLAMA_SERVERS = "LLAMA_ARG_"
KEYS = {"LLAMA_API_KEY": "HEADSTART_API_KEY", "LLAMA_ARG_API_KEY_FILE": "HEADSTART_API_KEY_FILE"}


def check_environment(
    environment: Mapping[str, str], settings: Sequence[Setting], values: Mapping[str, Value]
) -> str | None:
    """Return a line about llama-server's names that are set and have no effect. Empty variables
    count as absent.

    Raises:
        ConfigError: a name of ours that does not exist, or llama-server's API key where the server
        would have none.
    """
    names = sorted(name for name, value in environment.items() if value)
    _refuse_unknown(
        [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)], settings
    )
    if not settings:
        return None
    serves = "api_key" in values
    if serves and not (values["api_key"] or values["api_key_file"]):
        for theirs, ours in KEYS.items():
            if theirs in names:
                raise ConfigError(
                    f"{theirs} is set but not read here, so the server would take requests without "
                    "a key; "
                    f"use {ours}, or unset {theirs}"
                )
    unread = [name for name in names if name.startswith(LLAMA_SERVERS) or (serves and name in KEYS)]
    if not unread:
        return None
    listed = ", ".join(unread)
    ours = f"{PREFIX}CONTEXT for --context"
    return f"not read: {listed}; these are llama-server's names, ours are like {ours}"


def _refuse_unknown(names: Sequence[str], settings: Sequence[Setting]) -> None:
    """Raise for the first name, without our prefix, that no command reads."""
    known = {_stem(setting) for setting in settings} | set(NO_SETTINGS)
    if known.issuperset(names):
        return
    every = [*settings, *_all_commands()]
    known |= {_stem(setting) for setting in every}
    spellings = {_as_name(alias): _stem(setting) for setting in every for alias in setting.aliases}
    for name in names:
        if name in known or OF_KUBERNETES.fullmatch(name):
            continue
        hint = (
            f"; did you mean {PREFIX}{spellings[name]}?"
            if name in spellings
            else closest(name, known, PREFIX)
        )
        raise ConfigError(
            f"{PREFIX}{name} is set but there is no such setting{hint} (all names: docs/flags.md)"
        )


def _all_commands() -> list[Setting]:
    """The settings of all commands: what is set for one must not stop another."""
    from headstart.cli.generate import GenerateOptions  # reads its flags with this module's help

    return [*all_settings(), *settings_of(GenerateOptions)]


def _stem(setting: Setting) -> str:
    return setting.environment_name.removeprefix(PREFIX)


def _as_name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_").upper()
