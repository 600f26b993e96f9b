"""llama-server's presets: an INI file with the flags of models, `--models-preset FILE`.

Keys are flags without their dashes or LLAMA_ARG_ names; the section [*] is for every model, any
other one names a model.

Source: llama.cpp tools/server/README.md, "Model presets".
"""

from __future__ import annotations

import configparser
from collections.abc import Sequence
from pathlib import Path

from headstart.app.cli import llama_server
from headstart.app.cli.settings import Setting, closest
from headstart.config import read_switch
from headstart.types.errors import ConfigError

EVERY_MODEL = "*"
# of the router alone; ttl is ours, not llama-server's
ROUTER_KEYS = ("load-on-startup", "stop-timeout", "dedup-cache-models", "ttl")


def read_preset(file: Path, settings: Sequence[Setting]) -> dict[str, str]:
    """Setting -> text for a server of one model, which is named elsewhere.

    Raises:
        ConfigError: an unreadable file, several models, or a flag that is unknown or refused.
    """
    sections = read_sections(file, settings)
    found = sections.pop(EVERY_MODEL, {})
    if len(sections) > 1:
        raise ConfigError(
            f"{file} has {len(sections)} models ({', '.join(sections)}) but --model names one; "
            "leave --model out to serve all of them, or keep one section"
        )
    for name, section in sections.items():
        found = {"alias": name} | found | section
    return {name: text for name, text in found.items() if name not in ("model", "hf_repo")}


def read_sections(file: Path, settings: Sequence[Setting]) -> dict[str, dict[str, str]]:
    """Section -> text by setting and by key of the router, [*] among them, as in the file.

    Raises:
        ConfigError: an unreadable file, or a flag that is unknown or refused.
    """
    found: dict[str, dict[str, str]] = {}
    for name, keys in _sections(file).items():
        found[name] = {key: value for key, value in keys.items() if key in ROUTER_KEYS}
        for key, value in keys.items():
            if key not in (*ROUTER_KEYS, "version"):
                found[name] |= _setting(file, key, value, settings)
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
            is_off = not value or read_switch(value, f"{key} in {file}")
            return flag.apply_text(llama_server.OFF if is_off else llama_server.ON, origin)
        if names.intersection(flag.names) or flag.environment == key:
            return flag.apply_text(value, origin)
    near = closest(key, [name.lstrip("-") for name in llama_server.by_name()])
    raise ConfigError(f"{file} sets {key!r}, which is no flag{near}")
