"""Settings in the environment: ours, then llama-server's.

Nothing is ignored in silence: an unknown name with our prefix is refused, one with llama-server's
gets a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points

from headstart.app.cli.llama_server import flags
from headstart.app.cli.resolve import Given
from headstart.app.cli.settings import Setting, closest
from headstart.types.errors import ConfigError

PREFIX = "HEADSTART_"
# set for a service of our name
OF_KUBERNETES = re.compile(r"SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_\w+")
# ours as well: two for any command, one of a router's children, one each of examples and tests
NO_SETTINGS = ("CACHE", "CONFIG", "ROUTER", "URL", "VOCABS")
LLAMA_SERVERS = "LLAMA_ARG_"


def from_environment(
    environment: Mapping[str, str], settings: Sequence[Setting]
) -> dict[str, Given]:
    """What variables set; empty ones count as absent.

    A command that does not serve takes only those of its own settings.

    Raises:
        ConfigError: a variable of llama-server that is refused.
    """
    found: dict[str, Given] = {}

    def note(setting: str, name: str, text: str) -> None:
        found.setdefault(setting, Given(text, f"environment {name}", name))

    for one in settings:
        if text := environment.get(one.environment_name):
            note(one.name, one.environment_name, text)
        for flag in one.theirs:
            if variable := flag.variable_in(environment):
                note(one.name, *variable)
    serves = any(setting.part == "server" for setting in settings)
    taken = {flag for setting in settings for flag in setting.theirs}
    for flag in flags():
        variable = None if flag in taken else flag.variable_in(environment)
        if variable and serves and variable[0].startswith("LLAMA_"):
            name, value = variable
            for setting, text in flag.apply_text(value, f"{name}={value}").items():
                note(setting, name, text)
    return found


def check_environment(environment: Mapping[str, str], settings: Sequence[Setting]) -> str | None:
    """Return a warning about variables with llama-server's prefix that it does not have either.

    Empty variables count as absent.

    Raises:
        ConfigError: a name of ours that does not exist.
    """
    names = sorted(name for name, value in environment.items() if value)
    _refuse_unknown([name for name in names if name.startswith(PREFIX)], settings)
    if not settings:
        return None
    known = {name for flag in flags() for name in (flag.environment, flag.negative_environment)}
    unread = [name for name in names if name.startswith(LLAMA_SERVERS) and name not in known]
    if not unread:
        return None
    hint = _closest(unread[0], known, LLAMA_SERVERS) if len(unread) == 1 else ""
    return f"not read: {', '.join(unread)}; llama-server has no such variable{hint}"


def _closest(name: str, known: Iterable[str], prefix: str) -> str:
    """As `closest`, without the common prefix, which would make any two names alike."""
    ends = [one.removeprefix(prefix) for one in known if one.startswith(prefix)]
    return closest(name.removeprefix(prefix), ends, prefix)


def _refuse_unknown(names: Sequence[str], settings: Sequence[Setting]) -> None:
    """Raise for the first name with our prefix that no command reads."""
    known = {setting.environment_name for setting in settings}
    known |= {PREFIX + name for name in NO_SETTINGS}
    if known.issuperset(names):
        return
    every = [*settings, *_all_commands()]
    known |= {setting.environment_name for setting in every}
    spellings = {
        PREFIX + alias.lstrip("-").replace("-", "_").upper(): setting.environment_name
        for setting in every
        for alias in setting.aliases
    }
    for name in names:
        if name in known or OF_KUBERNETES.fullmatch(name.removeprefix(PREFIX)):
            continue
        right = spellings.get(name)
        hint = f"; did you mean {right}?" if right else _closest(name, known, PREFIX)
        raise ConfigError(
            f"{name} is set but there is no such setting{hint} (all names: docs/flags.md)"
        )


def _all_commands() -> list[Setting]:
    """The settings of all commands: what is set for one must not stop another."""
    # they read their flags with this module's help
    from headstart.app.cli.main import COMMANDS, EXTRAS, find_command

    commands = [find_command(name) for name in COMMANDS if name not in EXTRAS]
    commands += [entry.load().COMMAND for entry in entry_points(group="headstart.commands")]
    return [setting for command in commands for setting in command.settings()]
