"""Creates speculators from the configuration, or gives the reason why one cannot be used."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from headstart.config import Config, SpeculationConfig, speculators_named
from headstart.config.fields import flag_of, option_of
from headstart.speculators import NOT_IMPORTED, SPECULATORS, Speculator
from headstart.types import DraftMode
from headstart.types.errors import ConfigError, HeadstartError, in_words

log = logging.getLogger(__name__)

# Speculators without --spec-type.
AUTO_TYPES: tuple[str, ...] = ("suffix",)
WITH_HEADS = "mtp"
ANY = "any"  # in place of the speculator that a file is for


def file_of(name: str) -> str:
    """The kind of file that a speculator drafts with: a draft model's, or multi-token heads."""
    return SPECULATORS[name].drafts_with if name in SPECULATORS else ""


def needs_draft_model(names: Sequence[str]) -> bool:
    """Whether one of these speculators drafts with the model of `--draft-model`."""
    return any(file_of(name) not in ("", WITH_HEADS) for name in names)


def without_file() -> str:
    """All speculators that draft without a file, as in `--spec-type`."""
    return ",".join(name for name in SPECULATORS if not file_of(name))


def wants_heads(config: Config) -> bool:
    """Whether multi-token heads would be used if there are any."""
    types = config.speculation.spec_type
    if not config.engine.mtp or config.speculation.mode is DraftMode.OFF:
        return False
    return types is None or WITH_HEADS in map(file_of, type_names(types))


def wanted_types(config: SpeculationConfig, drafter: str | None) -> tuple[str, ...]:
    """Names of the speculators to load, in order of preference.

    Args:
        config: what was asked for.
        drafter: the speculator that the file of a draft model or of multi-token heads is for; ANY:
            there may be one, which was not read yet; None: there is none.

    Raises:
        ConfigError: an unknown name, a draft model or an option that nothing would use, or an
            option with a value that cannot work.
    """
    if config.spec == DraftMode.OFF.value or config.spec_type == "none":
        return ()
    options, names = config.options, tuple[str, ...]()
    if config.spec_type is None:
        with_file = () if drafter is None or drafter == ANY else (drafter,)
        if config.spec == DraftMode.FIXED.value:
            names = with_file or ("ngram-simple",)
        else:
            names = (*AUTO_TYPES, *with_file)
        if drafter == ANY:
            options = {name: o for name, o in options.items() if not file_of(name)}
    else:
        names = _named_types(config.spec_type, drafter)
    _check_options(options, names)
    return names


def type_names(spec_type: str) -> tuple[str, ...]:
    """The names in a value of `--spec-type`, each once, llama-server's replaced by ours."""
    return speculators_named(name.strip() for name in spec_type.split(",") if name.strip())


def remarks_on(config: SpeculationConfig) -> list[str]:
    """Warnings: packages that cannot be imported, options for longer drafts than are verified."""
    longest = config.longest_draft(config.mode)
    found = [
        f"the speculator {name} of another package cannot be imported: {why}; repair or uninstall "
        "that package"
        for name, why in NOT_IMPORTED.items()
    ]
    for name, given in config.options.items():
        options = SPECULATORS[name].Options if name in SPECULATORS else None
        for one in fields(options) if options and config.mode is not DraftMode.OFF else ():
            value = given.get(one.name, 0)
            if option_of(one).limits_draft and value > longest:
                found.append(
                    f"{flag_of(f'spec_{name}_{one.name}')} is {value} but no draft is longer than "
                    f"{longest} tokens; raise --draft-max to {value}"
                )
    return found


def _named_types(spec_type: str, drafter: str | None) -> tuple[str, ...]:
    """The speculators of `--spec-type`; at most one of them uses a file, and must fit it."""
    names = type_names(spec_type)
    if not names or "none" in names:
        raise ConfigError(f"--spec-type is {spec_type!r} but must name speculators, or none alone")
    for name in names:
        if name not in SPECULATORS:
            raise ConfigError(
                f"--spec-type names {name!r}; there are {', '.join(sorted(SPECULATORS))} and none"
                + "".join(f"; not imported: {one} ({why})" for one, why in NOT_IMPORTED.items())
            )
    users = [name for name in names if file_of(name)]
    if len(users) > 1:
        raise ConfigError(
            f"--spec-type names {' and '.join(users)}, but the draft model has one cache and one "
            "of them can use it; leave out the others"
        )
    if not users and drafter is not None:
        raise ConfigError(
            "a draft model is given but --spec-type does not name draft-model; add it "
            "there or leave out one of them"
        )
    if users and drafter is None and needs_draft_model(users):
        raise ConfigError(
            f"--spec-type names {users[0]} but no draft model is given; add --draft-model FILE"
        )
    if users and drafter is None:
        raise ConfigError(
            f"--spec-type names {WITH_HEADS} but the model has no multi-token heads (or --no-mtp "
            "leaves them out); leave it out, or name a GGUF with its heads with --draft-model"
        )
    if users and drafter not in (ANY, file_of(users[0])):
        raise ConfigError(
            f"--spec-type names {users[0]} but the draft model's file is for {drafter}; name "
            "that, or leave out --spec-type"
        )
    return names


def _check_options(options: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> None:
    """Check the options of speculators before a model is loaded; each must be used."""
    for name in options.keys() - set(names):
        for option in options[name]:
            raise ConfigError(
                f"{flag_of(f'spec_{name}_{option}')} is given but {name} is not among the "
                f"speculators ({', '.join(names)}); add it with --spec-type "
                f"{','.join([*names, name])} or leave out the flag"
            )
    for name in names:
        _options_of(name, options)


def make_speculator(
    name: str, options: Mapping[str, Mapping[str, Any]], parts: Mapping[str, Callable[[], Any]]
) -> Speculator:
    """Create a speculator; `parts` holds what its constructor may ask for by parameter name.

    Raises:
        ConfigError: an option is unknown or has a value that cannot work, or the constructor
            failed.
    """
    kind = SPECULATORS[name]
    wanted = [name for name in inspect.signature(kind).parameters if name != "options"]
    if unknown := [name for name in wanted if name not in parts]:
        raise ConfigError(
            f"the constructor of speculator {name} asks for {unknown[0]}; it may ask for options, "
            f"{', '.join(sorted(parts))}"
        )
    arguments = {part: parts[part]() for part in wanted}
    if (chosen := _options_of(name, options)) is not None:
        arguments["options"] = chosen
    try:
        return kind(**arguments)
    except HeadstartError:
        raise
    except (Exception, SystemExit) as error:  # of any kind: other packages have speculators, too
        log.exception("the constructor of speculator %s failed", name)
        raise ConfigError(
            f"the constructor of speculator {name} failed: {in_words(error)}; repair it, or leave "
            f"{name} out of --spec-type"
        ) from error


def _options_of(name: str, options: Mapping[str, Mapping[str, Any]]) -> Any:
    """The speculator's options, checked; None if it has none."""
    kind = SPECULATORS[name]
    if kind.Options is None:
        if options.get(name):
            raise ConfigError(f"speculator {name} takes no options")
        return None
    try:
        return kind.Options(**options.get(name, {}))
    except HeadstartError:
        raise
    except Exception as error:  # other packages check theirs in ways of their own
        raise ConfigError(
            f"speculator {name} does not take these options: {in_words(error)}"
        ) from error
