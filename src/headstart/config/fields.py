"""Declares and checks configuration fields: everything about a flag in one place.

The command line, environment names, config file, `--print-config` and the tables in docs/ are
generated from these declarations. llama-server's other spellings and variable of a flag are in
app/cli/llama_server.txt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from headstart.types.errors import ConfigError

SWITCH_WORDS = dict.fromkeys(("1", "true", "on", "yes", "enabled"), True)
SWITCH_WORDS |= dict.fromkeys(("0", "false", "off", "no", "disabled"), False)

Kind = type[str] | type[int] | type[float] | type[bool]


def read_switch(text: str, origin: str) -> bool:
    """Whether a word means on.

    Raises:
        ConfigError: it means neither on nor off; `origin` names its source.
    """
    if (word := text.lower()) in SWITCH_WORDS:
        return SWITCH_WORDS[word]
    raise ConfigError(f"{origin} is {text!r} but must be on or off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The declaration of a flag besides its name, type and default."""

    help: str = ""  # without a full stop
    # further spellings; one name of a flag of llama-server brings in all others of that flag
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] | None = None
    least: float | None = None
    most: float | None = None
    # texts for special values (None: the default), in lower case: "all" for -1
    words: Mapping[str, Any] = field(default_factory=dict)
    bare: str | None = None  # the value of the flag alone
    separator: str | None = None  # joins the values of a flag that may be given again
    is_pair: bool = False  # takes two values, kept as "FIRST => SECOND"
    is_secret: bool = False
    # a speculator's longest draft: the server warns if --draft-max is lower
    limits_draft: bool = False


def option(default: Any, help: str, *aliases: str, **facts: Any) -> Any:
    """A field with a default, its help and what else `Option` has."""
    declared = Option(help=help, aliases=aliases, **facts)
    return field(default=default, metadata={"option": declared})


def plain_type(hint: object) -> Kind | None:
    """The type of a setting's value, from that of its field (`int | None` -> int); None if no
    setting can have it.
    """
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = [kind for kind in members if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 and kinds[0] in (str, int, float, bool) else None


def flag_of(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def option_of(field: Field[Any]) -> Option:
    """The option declared by a field; an empty one without `option`."""
    declared: Option = field.metadata.get("option") or Option()
    return declared


def listed(text: str | None) -> tuple[str, ...]:
    """Names separated by commas, in alphabetical order, as llama-server has them."""
    return tuple(sorted({name.strip() for name in (text or "").split(",") if name.strip()}))
