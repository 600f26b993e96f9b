"""llama-server's presets: an INI file with the flags of models, `--models-preset FILE`.

Keys are flags without their dashes or LLAMA_ARG_ names; the section [*] is for every model, any
other one names a model.

Source: llama.cpp tools/server/README.md, "Model presets".
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headstart.app.cli import llama_server
from headstart.app.cli.settings import Setting, closest
from headstart.config import TRUE_WORDS
from headstart.types.errors import ConfigError

EVERY_MODEL = "*"
# of the router alone; the last two are ours, not llama-server's
ROUTER_KEYS = ("load-on-startup", "stop-timeout", "dedup-cache-models", "ttl", "group")
PASSED_OVER = (*ROUTER_KEYS, "version")


@dataclass(frozen=True, slots=True)
class PresetSection:
    """The settings of one model, or of all, and what only the router reads."""

    settings: Mapping[str, str]
    for_router: Mapping[str, str]


def read_preset(file: Path, settings: Sequence[Setting]) -> dict[str, str]:
    """Setting -> text for a server of one model, which is named elsewhere.

    Raises:
        ConfigError: an unreadable file, several models, or a flag that is unknown or refused.
    """
    sections = read_sections(file, settings)
    models = [name for name in sections if name != EVERY_MODEL]
    if len(models) > 1:
        raise ConfigError(
            f"{file} has {len(models)} models ({', '.join(models)}) but --model names one; leave "
            "--model out to serve all of them, or keep one section"
        )
    found: dict[str, str] = {}
    for name in (EVERY_MODEL, *models):
        if name in sections:
            found |= sections[name].settings
    if models:
        found.setdefault("alias", models[0])
    return {name: text for name, text in found.items() if name not in ("model", "hf_repo")}


def read_sections(file: Path, settings: Sequence[Setting]) -> dict[str, PresetSection]:
    """Section -> what it sets, [*] among them, in the order of the file.

    Raises:
        ConfigError: an unreadable file, or a flag that is unknown or refused.
    """
    found: dict[str, PresetSection] = {}
    for name, keys in _sections(file).items():
        own: dict[str, str] = {}
        for key, value in keys.items():
            if key not in PASSED_OVER:
                own |= _setting(file, key, value, settings)
        for_router = {key: value for key, value in keys.items() if key in ROUTER_KEYS}
        found[name] = PresetSection(own, for_router)
    return found


def _sections(file: Path) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(
        default_section="", delimiters=("=",), comment_prefixes=("#", ";"), interpolation=None,
        strict=False,
    )  # fmt: skip
    # keys keep their case, as configparser says it is done
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    try:
        # what stands before the first section is for every model
        parser.read_string(f"[{EVERY_MODEL}]\n{file.read_text('utf-8')}")
    except OSError as error:
        raise ConfigError(f"cannot read the preset {file}: {error.strerror}") from None
    except (configparser.Error, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"the preset {file} is not valid: {reason}") from None
    return {name: dict(parser[name]) for name in parser.sections()}


def _setting(file: Path, key: str, value: str, settings: Sequence[Setting]) -> dict[str, str]:
    origin = f"{key} = {value} in {file}"
    names = {f"--{key}", f"-{key}"}
    for setting in settings:
        if names.intersection(setting.negatives):
            is_off = setting.read(value, f"{key} in {file}")
            return {setting.name: llama_server.OFF if is_off else llama_server.ON}
        if names.intersection(setting.spellings) or key in (
            flag.environment for flag in setting.theirs
        ):
            return {setting.name: value}
    for flag in llama_server.flags():
        if names.intersection(flag.negatives):
            is_off = value.lower() in ("", *TRUE_WORDS)
            return flag.apply_text(llama_server.OFF if is_off else llama_server.ON, origin)
        if names.intersection(flag.names) or flag.environment == key:
            return flag.apply_text(value, origin)
    near = closest(key, [name.lstrip("-") for name in llama_server.by_name()])
    raise ConfigError(f"{file} sets {key!r}, which is no flag{near}")
