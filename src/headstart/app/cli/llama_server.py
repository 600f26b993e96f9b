"""Every flag of llama-server and its treatment here, read from llama_server.txt.

A flag that a setting has among its spellings works, with the same meaning; the setting then gets
all of the flag's spellings and its environment name. The others are accepted without effect, map to
values of other settings, or are refused with the reason and an alternative.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from headstart.config.fields import read_switch
from headstart.types.errors import ConfigError

ON, OFF = "on", "off"  # the values of a flag without a value
NEGATIVE = "LLAMA_ARG_NO_"  # begins a variable that switches a flag off, whatever its value


@dataclass(frozen=True, slots=True)
class Verdict:
    """The treatment of some values of a flag, or of all."""

    kind: str  # "accepted", "sets" or "refused"
    values: tuple[str, ...]  # none: any
    text: str

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a verdict of the kind `sets`."""
        if self.kind != "sets":
            return {}
        return dict(part.split("=", 1) for part in self.text.split())


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of llama-server with all of its spellings."""

    names: tuple[str, ...]
    negatives: tuple[str, ...]  # spellings that switch it off
    num_values: int  # 0: a switch
    environment: str
    verdicts: tuple[Verdict, ...] = ()  # none: a setting works the same

    @property
    def spellings(self) -> tuple[str, ...]:
        return (*self.names, *self.negatives)

    @property
    def variables(self) -> tuple[str, ...]:
        """Names in the environment, before the flag's own that which switches it off."""
        negative = self.environment.replace("LLAMA_ARG_", NEGATIVE) if self.negatives else ""
        return tuple(dict.fromkeys(filter(None, (negative, self.environment))))

    def judge(self, value: str) -> Verdict:
        """The verdict on a value; the one for any value comes last."""
        by_value = [one for one in self.verdicts if value in one.values]
        rest = [one for one in self.verdicts if not one.values]
        accepted = ", ".join(v for one in self.verdicts for v in one.values)
        return (by_value + rest or [Verdict("refused", (), f"it can only be {accepted}")])[0]

    def apply(self, value: str, origin: str) -> dict[str, str]:
        """The settings that a value maps to, "on" or "off" for a switch; none if it is accepted
        without effect.

        Raises:
            ConfigError: it is refused.
        """
        if not self.verdicts:
            return {}  # a setting of another command
        if not self.num_values:
            value = ON if read_switch(value, origin) else OFF
            if value == OFF and not self.negatives:
                return {}
        verdict = self.judge(value)
        if verdict.kind == "refused":
            raise ConfigError(f"{origin} is not supported: {verdict.text}")
        return verdict.settings


@cache
def flags() -> tuple[Flag, ...]:
    """All flags, in llama-server's order."""
    text = files(__package__).joinpath("llama_server.txt").read_text("utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return tuple(_read(lines))


@cache
def by_name() -> Mapping[str, Flag]:
    """Spelling -> flag."""
    return {name: flag for flag in flags() for name in flag.spellings}


def flags_named(*names: str) -> tuple[Flag, ...]:
    """The flags of llama-server that have one of these names."""
    return tuple(dict.fromkeys(by_name()[name] for name in names if name in by_name()))


def _read(lines: Sequence[str]) -> Iterator[Flag]:
    heads = [index for index, line in enumerate(lines) if not line.startswith(" ")]
    for start, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        verdicts = tuple(_verdict(line.strip()) for line in lines[start + 1 : end])
        spellings, *rest = re.split(r"  +", lines[start].strip())
        positive, _, negative = spellings.partition(" / ")
        yield Flag(
            tuple(positive.split(", ")),
            tuple(filter(None, negative.split(", "))),
            sum(len(word.split()) for word in rest if not word.startswith("$")),
            next((word[1:] for word in rest if word.startswith("$")), ""),
            verdicts,
        )


def _verdict(line: str) -> Verdict:
    head, _, text = line.partition(": ")
    kind, *values = head.split()
    return Verdict(kind, tuple(values), text)
