"""From the configuration to working speculators, or the reason why one cannot be used."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headstart.config import SpeculationConfig
from headstart.errors import ConfigError
from headstart.speculators import SPECULATORS, Speculator
from headstart.types import SequenceMode

AUTO_TYPES = (
    "suffix",
)  # of --spec auto. Recycling guesses too, but reading its top candidates costs more than it earns
NONE = "none"
_STATE_BEGINS = b'{"version":'  # of the file that control writes


def wanted_types(config: SpeculationConfig, *, has_draft_model: bool) -> tuple[str, ...]:
    """Names of the speculators to load, in order of preference.

    Raises:
        ConfigError: an unknown name, a draft model or an option that nothing would use, or a state
            file that is none.
    """
    _check_state(config.spec_state)
    if config.spec == SequenceMode.OFF.value or config.spec_type == NONE:
        return ()
    if config.spec_type is None:
        text = AUTO_TYPES if config.spec != SequenceMode.FIXED.value else (() if has_draft_model else ("ngram-simple",))
        names = (*text, *(("draft-model",) if has_draft_model else ()))
    else:
        names = _named_types(config.spec_type, has_draft_model=has_draft_model)
    _check_options(config.options, names)
    return names


def _named_types(spec_type: str, *, has_draft_model: bool) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in spec_type.split(",") if name.strip()))
    if not names or NONE in names:
        raise ConfigError(f"--spec-type is {spec_type!r} but must name speculators, or {NONE} alone")
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


def _check_options(options: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> None:
    """Whoever names a corpus or a lookup file wants it to be read."""
    for name in options.keys() - set(names):
        for option in options[name]:
            flag = f"--spec-{name}-{option.replace('_', '-')}"
            raise ConfigError(
                f"{flag} is given but {name} is not among the speculators ({', '.join(names)}); add it with "
                f"--spec-type {','.join([*names, name])} or leave out the flag"
            )


def _check_state(spec_state: str | None) -> None:
    """The file is replaced when the server stops: it must be absent or one of ours."""
    if spec_state in (None, NONE):
        return
    path = Path(spec_state)
    try:
        if path.exists() and not path.is_file():  # a device would be read without end, and replaced
            raise ConfigError(f"--spec-state {path} is not a regular file; name another, or none")
        is_ours = not path.exists() or _beginning(path) in (_STATE_BEGINS, b"")
    except OSError as error:
        raise ConfigError(f"--spec-state {path} cannot be read: {error.strerror}; name another file") from error
    if not is_ours:
        raise ConfigError(f"--spec-state {path} is not what headstart writes and would be replaced; name another file")


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(_STATE_BEGINS))


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
