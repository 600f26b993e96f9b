"""All settings, read from the config dataclasses: one `Setting` per field.

Knows names, types and how text becomes a value, but not the origin of the text.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Collection, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from functools import cache

from headstart.app.cli import llama_server
from headstart.config import Config
from headstart.config.fields import (
    Kind,
    Option,
    flag_of,
    option_of,
    plain_type,
    read_switch,
)
from headstart.types.errors import ConfigError
from headstart.types.sampling_params import NUMBERS

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A value that can be set by flag, environment variable or config file."""

    # where `Config` has it: field of a part, and key of what is there; empty: a command's own
    path: tuple[str, ...]
    name: str  # the field's with a prefix, for options of speculators
    kind: Kind
    default: Value
    option: Option
    theirs: tuple[llama_server.Flag, ...]  # llama-server's flags of the same meaning

    @property
    def part(self) -> str:
        """The field of `Config` that it belongs to; "" of a command's own."""
        return self.path[0] if self.path else ""

    @property
    def title(self) -> str:
        """Title of its part, in help and docs."""
        if len(self.path) == 4:
            return "Speculators"
        return {
            "draft_engine": "Engine of the draft model (default: as for the target)",
            "recording": "Recorded texts (docs/distill.md)",
            "tools": "Tools that the server runs for clients (docs/security.md)",
        }.get(self.part, self.part.capitalize())

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def aliases(self) -> tuple[str, ...]:
        names = (*self.option.aliases, *(name for flag in self.theirs for name in flag.names))
        return tuple(dict.fromkeys(name for name in names if name != self.flag))

    @property
    def negatives(self) -> tuple[str, ...]:
        """Spellings that switch it off."""
        if self.kind is not bool:
            return ()
        own = [f"--no-{name[2:]}" for name in (self.flag, *self.aliases) if name.startswith("--")]
        return tuple(sorted({*own, *(name for flag in self.theirs for name in flag.negatives)}))

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.flag, *self.aliases, *self.negatives)

    @property
    def environment_name(self) -> str:
        return "HEADSTART_" + self.name.upper()

    @property
    def variables(self) -> tuple[str, ...]:
        """Names in the environment; of several that are set the first counts."""
        return (self.environment_name, *(name for flag in self.theirs for name in flag.variables))

    @property
    def short_flag(self) -> str | None:
        """The first single-dash spelling."""
        return next((alias for alias in self.aliases if not alias.startswith("--")), None)

    @property
    def num_values(self) -> int:
        """Values that follow its flag."""
        return 0 if self.kind is bool else 2 if self.option.is_pair else 1

    @property
    def placeholder(self) -> str:
        """The placeholder of the value in the help text."""
        if self.option.is_pair:
            return "TARGET DRAFT"
        if choices := self.option.choices:
            return "|".join(choices) if len(choices) <= 4 else choices[0] + "|…"
        if self.name.endswith(("model", "file")):
            return "FILE"
        return {bool: "", int: "N", float: "X", str: "TEXT"}[self.kind]

    def read(self, text: str, origin: str) -> Value:
        """Parse a text.

        Raises:
            ConfigError: it is not valid for this setting; `origin` names its source.
        """
        option, word, choices = self.option, text.lower(), self.option.choices
        if word in option.words:
            meant: Value = option.words[word]
            return self.default if meant is None else meant
        if choices is not None and text not in choices:
            raise ConfigError(f"{origin} is {text!r} but must be one of {', '.join(choices)}")
        if self.kind is bool:
            return read_switch(text, origin)
        if self.kind is str:
            return text
        try:
            value = int(text) if self.kind is int else float(text)
        except ValueError:
            value = math.nan
        if isinstance(value, float) and not math.isfinite(value):
            wanted = "a whole number" if self.kind is int else "a number"
            raise ConfigError(f"{origin} is {text!r} but must be {wanted}")
        least, most = option.least, option.most
        if least is not None and not least <= value <= (value if most is None else most):
            allowed = f"at least {least}" if most is None else f"from {least} to {most}"
            also = f", or {' or '.join(option.words)}" if option.words else ""
            raise ConfigError(f"{origin} is {text} but must be {allowed}{also}")
        return value

    def means_default(self, text: str) -> bool:
        """Whether it is a word for the default, such as -1."""
        return self.option.words.get(text.lower(), text) is None


def text_of(value: Value) -> str:
    """The text that `Setting.read` reads as this value."""
    if isinstance(value, bool):
        return llama_server.ON if value else llama_server.OFF
    return "" if value is None else str(value)


def as_arguments(given: Iterable[tuple[Setting, str]]) -> tuple[list[str], dict[str, str]]:
    """Flags and variables that give a child server these settings; no command line has a secret,
    nor a pair, whose flag takes two values.
    """
    flags, variables = list[str](), dict[str, str]()
    for one, text in given:
        if one.option.is_secret or one.option.is_pair:
            variables[one.environment_name] = text
        else:
            flags.append(f"{one.flag}={text}")
    return flags, variables


@cache
def settings_of(
    config_class: type, place: tuple[str, ...] = (), prefix: str = ""
) -> tuple[Setting, ...]:
    """The settings that a config dataclass declares, in order; fields without a plain default are
    none. `place`: where `Config` has it; without one it is a command's own.
    """
    hints, found = typing.get_type_hints(config_class), list[Setting]()
    for field in fields(config_class):
        if field.default is MISSING:
            continue
        name, option = prefix + field.name, option_of(field)
        kind = plain_type(hints[field.name])
        assert kind is not None, f"{name} has a type that no text can be read as"
        one = Setting(
            path=(*place, field.name) if place else (),
            name=name,
            kind=kind,
            default=field.default,
            option=option,
            theirs=llama_server.flags_named(flag_of(name), *option.aliases),
        )
        found.append(one)
    return tuple(found)


def all_settings(names: Collection[str] | None = None) -> list[Setting]:
    """The settings of `Config` that have one of these names, or are in a part that has; all by
    default. Options of speculators come last.
    """
    settings, wanted = list[Setting](), {*(names or ())}
    for part, config_class in typing.get_type_hints(Config).items():
        settings += settings_of(config_class, (part,))
        if part == "sampling":
            settings += _sampling_settings()
    if names is None or "speculation" in wanted:
        settings += _speculator_settings()
    return [one for one in settings if names is None or {one.part, one.name} & wanted]


def _sampling_settings() -> Iterator[Setting]:
    """The flags of sampling parameters that are numbers."""
    for parameter in NUMBERS:
        facts = parameter.metadata
        if facts["help"]:
            name = facts["flag"] or parameter.name
            yield Setting(
                path=("sampling", "numbers", parameter.name),
                name=name,
                kind=int if parameter.type == "int" else float,
                default=None,
                option=Option(help=f"{facts['help']} ({parameter.default:g})"),
                theirs=llama_server.flags_named(flag_of(name)),
            )


def _speculator_settings() -> Iterator[Setting]:
    """`--spec-<speculator>-<field>` for every field of a registered speculator's `Options`."""
    from headstart.speculators import SPECULATORS

    for name, speculator in SPECULATORS.items():
        if speculator.Options is not None:
            prefix = f"spec_{name.replace('-', '_')}_"
            yield from settings_of(speculator.Options, ("speculation", "options", name), prefix)
