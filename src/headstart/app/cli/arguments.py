"""Command line, environment and config file: which setting gets which text.

Nothing is ignored in silence: an unknown name with our prefix is refused, one with llama-server's
gets a warning.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from headstart.app.cli import llama_server
from headstart.app.cli.llama_server import OFF, ON
from headstart.app.cli.resolve import Given
from headstart.app.cli.settings import Setting, all_settings, text_of
from headstart.config.fields import read_switch
from headstart.types.errors import ConfigError, closest

HELP = ("-h", "--help", "--usage", "--help-all")
SWITCHES = (*HELP, "--version", "--list-devices", "--print-config")

Owner = Setting | llama_server.Flag


def owners(settings: Iterable[Setting]) -> dict[str, Owner]:
    """Owner of each spelling and variable, settings first: a flag of llama-server that is a
    setting's spelling belongs to the setting.
    """
    found = dict[str, Owner]()
    every: list[Owner] = [*settings, *llama_server.flags()]
    for one in every:
        found |= {name: one for name in (*one.spellings, *one.variables) if name not in found}
    return found


def texts(owner: Owner, name: str, text: str, origin: str) -> dict[str, str]:
    """By setting, the meaning of NAME = TEXT on a command line, in a preset or the environment.

    Raises:
        ConfigError: it is refused.
    """
    if name.startswith(llama_server.NEGATIVE) and owner.negatives:
        text = OFF
    elif name in owner.negatives:
        text = OFF if not text or read_switch(text, origin) else ON
    return {owner.name: text} if isinstance(owner, Setting) else owner.apply(text, origin)


def spelling(key: str, known: Mapping[str, Owner], place: str) -> str:
    """The flag or variable that a key of a file stands for; `place`: the file.

    Raises:
        ConfigError: there is none.
    """
    flag = key.replace("_", "-")
    for name in (f"--{flag}", f"-{flag}", key):
        if name in known:
            return name
    near = closest(flag, [one.lstrip("-") for one in known])
    raise ConfigError(f"{place} sets {key!r}, which is no flag{near}")


class Arguments:
    """A parsed command line; of several values of a flag the last one wins, or they are joined, as
    in llama-server.

    Raises:
        ConfigError: an unknown or refused flag, or one without its value.
    """

    def __init__(self, command: str, settings: Sequence[Setting], argv: Sequence[str]) -> None:
        self.given: dict[str, str] = {}  # texts by setting
        self.words: list[str] = []  # words that belong to no flag; -- and everything after it
        self.switches: set[str] = set()
        self.file: str | None = None
        self._command, self._argv, self._next = command, argv, 0
        self._owners = owners(settings)
        self._names = {one.name for one in settings}
        while self._next < len(argv):
            argument = argv[self._next]
            self._next += 1
            if argument == "--":
                self.words += argv[self._next - 1 :]
                break
            if not argument.startswith("-") or re.fullmatch(r"-[0-9.]*", argument):
                self.words.append(argument)
            else:
                self._read_flag(*self._split(argument))

    def _split(self, argument: str) -> tuple[str, str | None]:
        """Name and value of `--name=value`, `-c4096` or a name alone, as we spell it."""
        name, has_value, value = argument.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")
        if not self._is_known(name) and (glued := re.fullmatch(r"(-[A-Za-z]+)([0-9]+)", argument)):
            return glued[1], glued[2]
        return name, value if has_value else None

    def _is_known(self, name: str) -> bool:
        return name in (*SWITCHES, "--config") or name in self._owners

    def _read_flag(self, name: str, value: str | None) -> None:
        if name in SWITCHES:
            self.switches.add(name)
        elif name == "--config":
            self.file = self._value(name, value)
        elif (owner := self._owners.get(name)) is None:
            near = closest(name, [one for one in self._owners if one.startswith("-")])
            raise ConfigError(
                f"there is no flag {name}{near} (all flags: headstart {self._command} --help-all)"
            )
        else:
            self._set(owner, name, value)

    def _set(self, owner: Owner, name: str, value: str | None) -> None:
        """Note what a flag means for the settings of this command."""
        if not isinstance(owner, Setting) and not owner.verdicts:
            raise self._foreign(name)
        text = self._text(owner, name, value)
        meaning = texts(owner, name, text, f"{name} {text}" if owner.num_values else name)
        if foreign := meaning.keys() - self._names:
            raise self._foreign(f"{name} ({min(foreign)})")
        if isinstance(owner, Setting) and (separator := owner.option.separator):
            before = self.given.get(owner.name)
            meaning = {owner.name: f"{before}{separator}{text}" if before else text}
        self.given.update(meaning)

    def _text(self, owner: Owner, name: str, value: str | None) -> str:
        """The value of a flag; "on" for one that takes none."""
        if not owner.num_values:
            return ON if value is None else value
        joint, bare = " ", None
        if isinstance(owner, Setting):
            joint, bare = " => ", owner.option.bare
        if bare is not None and value is None and not self._has_value():
            return bare
        values = [self._value(name, value)]
        values += [self._value(name, None) for _ in range(1, owner.num_values)]
        return values[0] if len(values) == 1 else joint.join(values).replace("\n", "\\n")

    def _foreign(self, name: str) -> ConfigError:
        return ConfigError(f"{name} is a flag of headstart serve, not of headstart {self._command}")

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


PREFIX = "HEADSTART_"
LLAMA_SERVERS = "LLAMA_ARG_"
# no settings: two are for any command, the others for a router's children, examples and tests
RESERVED = frozenset(PREFIX + name for name in ("CACHE", "CONFIG", "ROUTER", "URL", "VOCABS"))
# variables, with their values, of a service whose name begins with ours
_KUBERNETES = re.compile(PREFIX + r"(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?=|PORT_\d+_\w+=|PORT=\w+://)")


def from_environment(
    environment: Mapping[str, str], settings: Sequence[Setting]
) -> dict[str, Given]:
    """The settings from environment variables; empty ones count as absent.

    Commands that do not serve read only the variables of their own settings.

    Raises:
        ConfigError: a variable of llama-server that is refused.
    """
    found: dict[str, Given] = {}
    given, serves = _given(environment), any(setting.part == "server" for setting in settings)
    for name, owner in owners(settings).items():
        if name in given and (isinstance(owner, Setting) or (serves and name.startswith("LLAMA_"))):
            text = given[name]
            for setting, meaning in texts(owner, name, text, f"{name}={text}").items():
                found.setdefault(setting, (meaning, f"environment {name}"))
    return found


def from_file(file: Path, settings: Iterable[Setting]) -> dict[str, Given]:
    """The settings in a config file, whose keys are flags or llama-server's variables; dashes and
    underscores are equivalent.

    One file may serve several commands, so settings of other commands are fine.

    Raises:
        ConfigError: an unreadable file, an unknown key in it, or a list or table.
    """
    try:
        content = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the config file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the config file {file} is not valid TOML: {error}") from None
    known, found = owners([*settings, *all_settings()]), dict[str, Given]()
    for key, value in content.items():
        name = spelling(key, known, f"the config file {file}")
        owner = known[name]
        # on may be a choice
        is_text = isinstance(owner, Setting) and owner.kind is str and not owner.option.choices
        if not isinstance(value, str | int | float) or (is_text and isinstance(value, bool)):
            wanted = "a text" if is_text else "a text, a number, true or false"
            raise ConfigError(f"{key} in the file {file} is {value!r} but must be {wanted}")
        meaning = texts(owner, name, text_of(value), f"{key} = {text_of(value)} in the file {file}")
        found |= {setting: (text, f"file {file}") for setting, text in meaning.items()}
    return found


def _given(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that were set for a program, not by Kubernetes for a service."""
    return {
        name: text
        for name, text in environment.items()
        if text and not _KUBERNETES.match(f"{name}={text}")
    }


def check_environment(environment: Mapping[str, str], settings: Sequence[Setting]) -> str | None:
    """Return a warning about variables with llama-server's prefix that it does not have either.

    Empty variables count as absent, and those of other commands and of Kubernetes are fine.

    Raises:
        ConfigError: a name of ours that does not exist: it may have been meant to protect.
    """
    # imported here: commands parse their flags with this module
    from headstart.app.cli.main import COMMANDS, find_command

    known = RESERVED | owners(settings).keys()
    unread = {name for name in _given(environment) if name.startswith((PREFIX, LLAMA_SERVERS))}
    if not (unread := unread - known):
        return None
    every = owners(setting for name in COMMANDS for setting in find_command(name).settings())
    known |= every.keys()
    for name in sorted(name for name in unread - known if name.startswith(PREFIX)):
        flag = name.removeprefix(PREFIX).lower().replace("_", "-")
        meant = every.get(f"--{flag}", every.get(f"-{flag}"))
        hint = closest(name, known, PREFIX)
        if isinstance(meant, Setting):
            hint = f"; did you mean {meant.environment_name}?"
        elif meant is not None:
            hint = f"; did you mean {meant.environment or f'--{flag}'}?"
        raise ConfigError(
            f"{name} is set but there is no such setting{hint} "
            "(all names: docs/flags.md and --help)"
        )
    if not settings or not (unread := unread - known):
        return None
    hint = closest(min(unread), known, LLAMA_SERVERS) if len(unread) == 1 else ""
    return f"not read: {', '.join(sorted(unread))}; llama-server has no such variable{hint}"
