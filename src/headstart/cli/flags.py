"""Flags of a command: argparse reads them, the help page is our own."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NoReturn

from headstart.cli.environment import check_environment
from headstart.cli.llama_server import advice
from headstart.cli.resolve import Resolved, resolve
from headstart.cli.settings import BARE_VALUES, PAIRS, Setting, closest, part_title
from headstart.errors import ConfigError


class HelpRequested(Exception):
    """The help page was asked for; the message is the page."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing and exiting."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


def read_flags(
    command: str, about: str, settings: Sequence[Setting], argv: Sequence[str]
) -> tuple[Resolved, bool]:
    """Resolve a command's settings; the second value says whether `--print-config` was given.

    Raises:
        HelpRequested: `--help` was given.
        ConfigError: an unknown flag, an impossible value, or a word that is no flag's value.
    """
    resolved, print_config, words = read_words_and_flags(command, about, settings, argv)
    if words:
        raise ConfigError(_complaint(command, words[0], settings))
    return resolved, print_config


def read_words_and_flags(
    command: str,
    about: str,
    settings: Sequence[Setting],
    argv: Sequence[str],
    usage: str = "[flags]",
) -> tuple[Resolved, bool, list[str]]:
    """Like `read_flags` for a command that takes words as well: they come last, wherever they
    stood.

    `usage` is what the help page shows behind the command.
    """
    parser = _Parser(
        prog=f"headstart {command}",
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--config", metavar="FILE")
    parser.add_argument("--print-config", action="store_true")
    for setting in settings:
        _add(parser, setting)
    _refuse_short_flags(command, settings, argv)
    known, rest = parser.parse_known_args(argv)
    given = vars(known)
    if given.pop("help", False):
        raise HelpRequested(help_page(f"{command} {usage}", about, settings))
    if unknown := [argument for argument in rest if argument.startswith("-")]:
        raise ConfigError(_complaint(command, unknown[0], settings))
    for name in PAIRS:
        if name in given:
            lines = [f"{old} => {new}".replace("\n", "\\n") for old, new in given[name]]
            given[name] = "\n".join(lines)
    print_config = bool(given.pop("print_config", False))
    file = given.pop("config", None) or os.environ.get("HEADSTART_CONFIG")
    resolved = resolve(settings, given, os.environ, Path(file) if file else None)
    if warning := check_environment(os.environ, settings, resolved.values):
        print(f"headstart: warning: {warning}", file=sys.stderr)
    return resolved, print_config, rest


def help_page(usage: str, about: str, settings: Sequence[Setting]) -> str:
    """The text of `headstart COMMAND --help`, as wide as the terminal; `usage` begins with the
    command.
    """
    width = max(60, min(shutil.get_terminal_size().columns, 110))
    lines = [f"Usage: headstart {usage}", "", *textwrap.wrap(about, width)]
    for part, members in groupby(settings, lambda setting: setting.part):
        lines += ["", part_title(part) if part else usage.split()[0].capitalize()]
        for setting in members:
            lines += _entry(_spelling(setting), _explanation(setting), width)
    lines += ["", "General"]
    lines += _entry(
        "    --config FILE",
        "TOML file with settings, named as the flags (also HEADSTART_CONFIG)",
        width,
    )
    lines += _entry("    --print-config", "print every setting with its origin and stop", width)
    lines += _entry("-h, --help", "print this page and stop", width)
    closing = (
        "A flag beats its environment variable (--draft-max: HEADSTART_DRAFT_MAX), "
        "which beats the config file."
    )
    return "\n".join([*lines, "", *textwrap.wrap(closing, width)])


def _add(parser: argparse.ArgumentParser, setting: Setting) -> None:
    names = [setting.flag, *setting.aliases]
    if setting.kind is bool:
        parser.add_argument(*names, dest=setting.name, action=argparse.BooleanOptionalAction)
    elif setting.name in PAIRS:
        parser.add_argument(*names, dest=setting.name, nargs=2, action="append")
    elif bare := BARE_VALUES.get(setting.name):
        parser.add_argument(*names, dest=setting.name, nargs="?", const=bare)
    else:
        parser.add_argument(*names, dest=setting.name)


def _refuse_short_flags(command: str, settings: Sequence[Setting], argv: Sequence[str]) -> None:
    """argparse reads `-ctx 8` as `-c tx`, and `-n` as the beginning of any flag; only numbers may
    be glued on.
    """
    known = {"-h", *(name for setting in settings for name in (setting.flag, *setting.aliases))}
    for argument in argv:
        is_short = re.match(r"-[A-Za-z]([A-Za-z_=-]|$)", argument) and " " not in argument
        if is_short and argument.split("=")[0] not in known:
            raise ConfigError(_complaint(command, argument, settings))


def _complaint(command: str, argument: str, settings: Iterable[Setting]) -> str:
    if not argument.startswith("-"):
        return (
            f"unexpected argument {argument!r}; flags start with a dash, "
            f"see headstart {command} --help"
        )
    flag = argument.split("=")[0]
    if instead := advice(flag):
        return f"there is no flag {flag}: {instead} (all flags: headstart {command} --help)"
    names = [name for s in settings for name in (s.flag, *s.aliases)]
    negative = ["--no-" + s.name.replace("_", "-") for s in settings if s.kind is bool]
    similar = closest(flag, [*names, *negative])
    return f"there is no flag {flag}{similar} (all flags: headstart {command} --help)"


def _spelling(setting: Setting) -> str:
    flag = setting.flag if setting.kind is not bool else setting.flag.replace("--", "--[no-]", 1)
    short = f"{setting.short_flag}, " if setting.short_flag else "    "
    return f"{short}{flag} {setting.placeholder}".rstrip()


def _explanation(setting: Setting) -> str:
    others = [alias for alias in setting.aliases if alias != setting.short_flag]
    also = f" (also {', '.join(others)})" if others else ""
    if setting.default in (None, "") or "default" in setting.help.lower():
        return setting.help + also
    shown = (
        ("on" if setting.default else "off")
        if isinstance(setting.default, bool)
        else setting.default
    )
    return f"{setting.help} [{shown}]{also}"


def _entry(left: str, right: str, width: int) -> list[str]:
    """`left` in a column of its own, `right` wrapped beside it; below it if `left` is too long."""
    column = 38
    wrapped = textwrap.wrap(right, width - column, break_on_hyphens=False) or [""]
    if len(left) + 2 <= column - 2:
        first = f"  {left}".ljust(column) + wrapped[0]
        return [first, *(" " * column + line for line in wrapped[1:])]
    return [f"  {left}", *(" " * column + line for line in wrapped)]
