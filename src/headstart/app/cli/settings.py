"""What can be set, read from the config dataclasses: one `Setting` per field.

Knows names, types and how text becomes a value; does not know where the text came from.
"""

from __future__ import annotations

import difflib
import linecache
import math
import re
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, replace

from headstart.app.cli.llama_server import spellings_for
from headstart.config import Config
from headstart.types.errors import ConfigError

Value = str | int | float | bool | None

TRUE_WORDS = ("1", "true", "on", "yes", "enabled")
FALSE_WORDS = ("0", "false", "off", "no", "disabled")
# What llama-server's users write where we have a number or a word of our own.
SYNONYMS: dict[str, dict[str, Value]] = {
    "gpu_layers": {"all": -1, "auto": -1},
    "draft_gpu_layers": {"all": -1, "auto": -1},
    "flash_attn": {**dict.fromkeys(TRUE_WORDS, "on"), **dict.fromkeys(FALSE_WORDS, "off")},
}
# Where llama-server's users write -1 for the default.
MINUS_ONE_IS_DEFAULT = (
    "parallel",
    "threads",
    "threads_batch",
    "draft_threads",
    "draft_threads_batch",
)
# Options of speculators: `Config.speculation.options[speculator][field]`.
OPTIONS_FIELD = "options"
SPECULATOR_PART = "speculator "
# Flags with two values that may be given again; they are kept as lines of `FIRST => SECOND`.
PAIRS = ("spec_replace",)
# Flags that may be given again, and what joins their values.
REPEATABLE: dict[str, str] = {
    "reverse_prompt": "\n",
    "dry_sequence_breaker": "\n",
    "logit_bias": ",",
    "backend": ",",
}
# Flags that may stand alone, and what they mean then.
BARE_VALUES: dict[str, str] = {"flash_attn": "on"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One thing that can be set by flag, environment variable or config file."""

    part: str  # the field of `Config` it belongs to, "" for a command's own
    name: str
    kind: type[str] | type[int] | type[float] | type[bool]
    default: Value
    help: str
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] | None = None
    is_secret: bool = False
    negatives: tuple[str, ...] = ()  # spellings that switch it off
    llama_environment: str = ""  # llama-server's variable of the same meaning

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.flag, *self.aliases, *self.negatives)

    @property
    def environment_name(self) -> str:
        return "HEADSTART_" + self.name.upper()

    @property
    def short_flag(self) -> str | None:
        """The first single-dash spelling."""
        return next((alias for alias in self.aliases if not alias.startswith("--")), None)

    @property
    def placeholder(self) -> str:
        """What help shows in place of the value."""
        if self.name in PAIRS:
            return "TARGET DRAFT"
        if self.choices:
            return "|".join(self.choices) if len(self.choices) <= 4 else self.choices[0] + "|…"
        if self.name.endswith(("model", "file")):
            return "FILE"
        return {bool: "", int: "N", float: "X", str: "TEXT"}[self.kind]

    def parse(self, text: str, origin: str) -> Value:
        """The value that a text means; `origin` names its source in the error.

        Raises:
            ConfigError: it is no value of this setting.
        """
        if text == "-1" and self.name in MINUS_ONE_IS_DEFAULT:
            return self.default
        synonyms = SYNONYMS.get(self.name, {})
        if text.lower() in synonyms:
            return synonyms[text.lower()]
        if self.choices is not None and text not in self.choices:
            raise ConfigError(f"{origin} is {text!r} but must be one of {', '.join(self.choices)}")
        if self.kind is bool:
            if text.lower() in TRUE_WORDS + FALSE_WORDS:
                return text.lower() in TRUE_WORDS
            raise ConfigError(f"{origin} is {text!r} but must be on or off")
        try:
            value = self.kind(text)
        except ValueError:
            value = None
        if value is None or not _is_finite(value):
            wanted = "a whole number" if self.kind is int else "a number"
            raise ConfigError(f"{origin} is {text!r} but must be {wanted}")
        return value

    def check(self, value: object, origin: str) -> Value:
        """The same for a typed value, as TOML has them.

        Raises:
            ConfigError: it is no value of this setting.
        """
        if isinstance(value, str) or (value == -1 and self.name in MINUS_ONE_IS_DEFAULT):
            return self.parse(str(value), origin)
        if isinstance(value, int) and not isinstance(value, bool) and self.kind in (int, float):
            return self.kind(value)
        if type(value) is self.kind and _is_finite(value):
            return typing.cast("Value", value)
        raise ConfigError(f"{origin} is {value!r} but must be of type {self.kind.__name__}")


def settings_of(config_class: type, part: str = "", prefix: str = "") -> Iterator[Setting]:
    """The settings that a config dataclass declares, in order; fields without a plain default are
    none.

    The help of a field not made with `option` is the comment on its line, or above it.
    """
    hints = typing.get_type_hints(config_class)
    needs_comments = any("help" not in field.metadata for field in fields(config_class))
    comments = _field_comments(config_class) if needs_comments else {}
    for field in fields(config_class):
        if field.default is MISSING:
            continue
        yield _with_spellings(
            Setting(
                part=part,
                name=prefix + field.name,
                kind=_plain_type(hints[field.name], prefix + field.name),
                default=field.default,
                help=field.metadata.get("help") or comments.get(field.name, ""),
                aliases=field.metadata.get("aliases", ()),
                choices=field.metadata.get("choices"),
                is_secret=field.metadata.get("secret", False),
            )
        )


def _with_spellings(setting: Setting) -> Setting:
    """Add llama-server's spellings and variable, if one of its flags has a name of ours."""
    own = (setting.flag, *setting.aliases)
    negatives = {name.replace("--", "--no-", 1) for name in own if name.startswith("--")}
    flag = spellings_for(own)
    aliases = setting.aliases
    if flag is not None:
        aliases += tuple(name for name in flag.names if name not in own)
        negatives |= set(flag.negatives)
    return replace(
        setting,
        aliases=aliases,
        negatives=tuple(sorted(negatives)) if setting.kind is bool else (),
        llama_environment=flag.environment if flag else "",
    )


def all_settings(parts: Sequence[str] | None = None) -> list[Setting]:
    """The settings of these parts of `Config`, all by default; options of speculators come last."""
    hints = typing.get_type_hints(Config)
    names = [field.name for field in fields(Config)] if parts is None else parts
    settings = [setting for name in names for setting in settings_of(hints[name], name)]
    return [*settings, *speculator_settings()] if "speculation" in names else settings


def speculator_settings() -> Iterator[Setting]:
    """`--spec-<speculator>-<field>` for every field of a registered speculator's `Options`."""
    from headstart.speculators import SPECULATORS

    for name, speculator in SPECULATORS.items():
        if speculator.Options is not None:
            yield from settings_of(
                speculator.Options, SPECULATOR_PART + name, f"spec_{name.replace('-', '_')}_"
            )


def closest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """`; did you mean X?`, or nothing if nothing is near: a far guess misleads more than none.

    `prefix` stands before every name and is not compared.
    """
    matches = difflib.get_close_matches(word, list(known), n=3, cutoff=0.75)
    matches.sort(key=lambda match: sorted(match) != sorted(word))  # letters in another order
    return f"; did you mean {prefix}{matches[0]}?" if matches else ""


def part_title(part: str) -> str:
    """Heading of a part in help and docs."""
    return {
        "model": "Model",
        "engine": "Engine",
        "draft_engine": "Engine of the draft model (default: as for the target)",
        "scheduler": "Scheduler",
        "speculation": "Speculation",
        "server": "Server",
        "tools": "Tools that the server runs for clients (docs/security.md)",
    }.get(part, part.capitalize())


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _field_comments(config_class: type) -> dict[str, str]:
    """Field -> comment at the end of its line, or above it; nothing where there is no source."""
    source = _class_source(config_class)
    above = re.findall(r"((?:^ +# .+\n)+) +(\w+): ", source, re.MULTILINE)
    behind = re.findall(r"^ +(\w+): .*?  # (.+)$", source, re.MULTILINE)
    joined = {name: " ".join(re.findall(r"# (.+)", lines)) for lines, name in above}
    return joined | dict(behind)


def _class_source(config_class: type) -> str:
    """The lines of a class. `inspect.getsource` parses the whole module each time, which took an
    eighth of a second of every start.
    """
    file = getattr(sys.modules.get(config_class.__module__), "__file__", None)
    source = "".join(linecache.getlines(file)) if file else ""
    for name in config_class.__qualname__.split("."):
        block = rf"^( *)class {re.escape(name)}\b.*\n((?:\1 +\S.*\n|\s*\n)*)"
        match = re.search(block, source, re.MULTILINE)
        source = match[2] if match else ""
    return source


def _plain_type(hint: object, name: str) -> type[str] | type[int] | type[float] | type[bool]:
    """`int | None` -> int."""
    members = [t for t in typing.get_args(hint) if t is not types.NoneType]
    kind = members[0] if len(members) == 1 else hint
    if kind not in (str, int, float, bool):
        raise ConfigError(
            f"the setting {name} has the type {hint} but must be a str, int, float or bool, "
            "possibly or None"
        )
    return typing.cast("type[str]", kind)
