"""How a field of a config dataclass is declared and checked."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from headstart.types.errors import ConfigError

__all__ = ["check_at_least", "option"]


def option(
    default: Any,
    help: str,
    *aliases: str,
    choices: tuple[str, ...] | None = None,
    secret: bool = False,
    **marks: bool,
) -> Any:
    """A config field with its help line (no full stop) and further spellings of its flag.

    `marks` are what the code that reads the field has to know of it; see `Speculator.Options`.
    """
    return field(
        default=default,
        metadata={"help": help, "aliases": aliases, "choices": choices, "secret": secret, **marks},
    )


def check_at_least(config: object, name: str, minimum: int) -> None:
    """Raise ConfigError if a field is less than it may be."""
    value = getattr(config, name)
    if value < minimum:
        raise ConfigError(f"--{name.replace('_', '-')} is {value} but must be at least {minimum}")
