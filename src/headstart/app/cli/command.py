"""A command: its flags, resolved, and its help page."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import headstart
from headstart.app.cli.arguments import (
    HELP,
    Arguments,
    check_environment,
    from_environment,
    from_file,
)
from headstart.app.cli.resolve import Given, Resolved, resolve
from headstart.app.cli.settings import Setting, all_settings, settings_of, text_of
from headstart.types.errors import ConfigError

# settings that people use, for the short help page
COMMON = (
    "model", "hf_repo", "draft_model", "context", "parallel", "gpu_layers", "threads", "host",
    "port", "api_key", "models_dir", "spec", "temp",
)  # fmt: skip


class PageRequested(Exception):
    """A page was asked for instead of what the command does; the message is the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of `headstart`: what can be set for it, and what it does."""

    name: str
    about: str  # how its help page begins; indented paragraphs are examples
    run: Callable[[Resolved], int]  # returns the exit code
    options: type | None = None  # dataclass with the command's own settings
    takes: Collection[str] | None = ()  # parts of `Config`, or settings by name; None: all
    usage: str = ""  # the words that it takes, for the help page; empty: none

    def settings(self) -> list[Setting]:
        """All settings of the command, its own options first."""
        own = () if self.options is None else settings_of(self.options)
        return [*own, *all_settings(self.takes)]

    def __call__(self, argv: Sequence[str]) -> int:
        """Read the command line and run; return the exit code.

        Raises:
            PageRequested: a page was asked for, such as `--help`.
            HeadstartError: it cannot be run, or failed.
        """
        resolved = self.read(argv)
        if named := resolved.config().engine.libllama:  # raises
            os.environ["HEADSTART_LIBLLAMA"] = named  # of our other processes too
        return self.run(resolved)

    def read(self, argv: Sequence[str]) -> Resolved:
        """Resolve the settings.

        Raises:
            PageRequested: `--help`, `--version`, `--list-devices` or `--print-config` was given.
            ConfigError: an unknown flag, an impossible value, or a word where `usage` has none.
        """
        settings = self.settings()
        arguments = Arguments(self.name, settings, argv)
        if "--version" in arguments.switches:
            from headstart.app import assemble

            libllama = assemble.libllama_version()
            raise PageRequested(f"headstart {headstart.__version__}\n{libllama}")
        if asked := arguments.switches & set(HELP):
            shown = settings
            if "--help-all" not in asked and len(settings) > 30:
                shown = [one for one in settings if not one.part or one.name in COMMON]
            raise PageRequested(self._help(shown, len(settings) - len(shown)))
        if arguments.words and not self.usage:
            word = arguments.words[0]
            hint = f"flags start with a dash, see headstart {self.name} --help"
            if word.lower().endswith(".gguf"):
                hint = f"did you mean -m {word}?"
            raise ConfigError(f"unexpected argument {word!r}; {hint}")
        file = arguments.file or os.environ.get("HEADSTART_CONFIG")
        given = {name: (text, "flag") for name, text in arguments.given.items()}
        sources = [given, from_environment(os.environ, settings)]
        sources += [from_file(Path(file), settings)] if file else []
        resolved = resolve(settings, sources)
        if preset := _preset(resolved):
            resolved = resolve(settings, [*sources[:2], preset, *sources[2:]])
        if warning := check_environment(os.environ, settings):
            print(f"headstart: warning: {warning}", file=sys.stderr)
        if "--list-devices" in arguments.switches:
            from headstart.app import assemble
            from headstart.app.cli.devices import tables

            raise PageRequested(tables(assemble.list_devices(resolved.config().engine)))
        if "--print-config" in arguments.switches:
            resolved.config()  # raises
            if self.options is not None:
                resolved.own(self.options)
            raise PageRequested(resolved.describe())
        return replace(resolved, words=tuple(arguments.words))

    def _help(self, settings: Sequence[Setting], num_hidden: int) -> str:
        """The text of `--help`, as wide as the terminal; examples stay as they are."""
        width = _width()
        lines = [f"Usage: headstart {self.name} {self.usage or '[flags]'}"]
        for paragraph in self.about.split("\n\n"):
            is_example = paragraph.startswith(" ")
            lines += ["", *(paragraph.split("\n") if is_example else _wrapped(paragraph, width))]
        if num_hidden:
            lines += ["", "Flags that people use most", *_entries(settings, width)]
        else:
            for title, members in groupby(settings, lambda setting: setting.title):
                lines += ["", title or self.name.capitalize()]
                lines += _entries(members, width)
        lines += ["", "General"]
        config = "TOML file with settings, named as the flags (also HEADSTART_CONFIG)"
        lines += _entry("    --config FILE", config, width)
        lines += _entry("    --print-config", "print every setting with its origin and stop", width)
        if num_hidden:
            lines += _entry("    --help-all", f"the other {num_hidden} flags too, by topic", width)
        lines += _entry("-h, --help", "print this page", width)
        closing = (
            "llama-server's flags and variables are taken as well (docs/from-llama-server.md). "
            "A flag beats its environment variable (--draft-max: HEADSTART_DRAFT_MAX), which beats "
            "llama-server's variable, which beats the config file."
        )
        return "\n".join([*lines, "", *_wrapped(closing, width)])


def _preset(resolved: Resolved) -> dict[str, Given]:
    """The settings of --models-preset for a single model; without one it lists models."""
    file = resolved.values.get("models_preset")
    if not file or not (resolved.values["model"] or resolved.values["hf_repo"]):
        return {}
    from headstart.app.cli.preset import read_preset

    texts = read_preset(Path(str(file)))
    return {name: (text, "preset") for name, text in texts.items()}


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


def _width() -> int:
    return max(60, min(shutil.get_terminal_size().columns, 110))


def _entries(settings: Iterable[Setting], width: int) -> list[str]:
    return [line for one in settings for line in _entry(_spelling(one), _explanation(one), width)]


def _spelling(setting: Setting) -> str:
    flag = setting.flag if setting.kind is not bool else setting.flag.replace("--", "--[no-]", 1)
    short = f"{setting.short_flag}, " if setting.short_flag else "    "
    return f"{short}{flag} {setting.placeholder}".rstrip()


def _explanation(setting: Setting) -> str:
    others = [alias for alias in setting.aliases if alias != setting.short_flag]
    also = f" (also {', '.join(others)})" if others else ""
    help = setting.option.help
    if setting.default in (None, "") or "default" in help.lower():
        return help + also
    return f"{help} [{text_of(setting.default)}]{also}"


def _entry(left: str, right: str, width: int) -> list[str]:
    """`left` in its own column, `right` wrapped next to it, or below if `left` is too long."""
    column = 38
    wrapped = _wrapped(right, width - column) or [""]
    if len(left) + 2 <= column - 2:
        first = f"  {left}".ljust(column) + wrapped[0]
        return [first, *(" " * column + line for line in wrapped[1:])]
    return [f"  {left}", *(" " * column + line for line in wrapped)]
