"""From the configuration to working speculators, or the reason why one cannot be used."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from headstart.config import SpeculationConfig
from headstart.errors import ConfigError
from headstart.speculators import SPECULATORS, Speculator
from headstart.types import SequenceMode

AUTO_TYPES = (
    "suffix",
)  # of --spec auto. Recycling guesses too, but reading its top candidates costs more than it earns
NONE = "none"


def wanted_types(config: SpeculationConfig, *, has_draft_model: bool) -> tuple[str, ...]:
    """Names of the speculators to load, in order of preference.

    Raises:
        ConfigError: an unknown name, or a draft model that nothing would use.
    """
    if config.spec == SequenceMode.OFF.value or config.spec_type == NONE:
        return ()
    if config.spec_type is None:
        text = AUTO_TYPES if config.spec != SequenceMode.FIXED.value else (() if has_draft_model else ("ngram-simple",))
        return (*text, *(("draft-model",) if has_draft_model else ()))
    names = tuple(dict.fromkeys(name.strip() for name in config.spec_type.split(",") if name.strip()))
    for name in names:
        if name not in SPECULATORS:
            raise ConfigError(f"--spec-type names {name!r}; there are {', '.join(sorted(SPECULATORS))} and {NONE}")
    if "draft-model" in names and not has_draft_model:
        raise ConfigError("--spec-type names draft-model but no draft model is given; add --draft-model FILE")
    if has_draft_model and "draft-model" not in names:
        raise ConfigError(
            "a draft model is given but --spec-type does not name draft-model; add it there or leave out one of them"
        )
    return names


def make_speculator(
    name: str, options: Mapping[str, Mapping[str, Any]], parts: Mapping[str, Callable[[], Any]]
) -> Speculator:
    """Create a speculator; `parts` holds what its constructor may ask for by parameter name.

    Raises:
        ConfigError: an option is unknown or has a value that cannot work.
    """
    kind = SPECULATORS[name]
    arguments = {p: parts[p]() for p in inspect.signature(kind).parameters if p in parts}
    if kind.Options is not None:
        try:
            arguments["options"] = kind.Options(**options.get(name, {}))
        except TypeError as error:
            raise ConfigError(f"speculator {name} does not take that option: {error}") from error
    elif options.get(name):
        raise ConfigError(f"speculator {name} takes no options")
    return kind(**arguments)
