"""llama-server's presets: an INI file with the flags of models, `--models-preset FILE`.

Keys are flags without their dashes or LLAMA_ARG_ names; the section [*] is for every model, any
other one names a model.

Source: llama.cpp tools/server/README.md, "Model presets".
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headstart.app.cli.arguments import owners, spelling, texts
from headstart.app.cli.resolve import resolve
from headstart.app.cli.settings import all_settings, settings_of
from headstart.config import option
from headstart.types.errors import ConfigError

EVERY_MODEL = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterKeys:
    """Keys of a model that are no flags, but for the router; `ttl` is ours, not llama-server's."""

    load_on_startup: bool = option(False, "load it when the router starts")
    stop_timeout: float = option(10.0, "seconds until it is killed", least=0, most=10**9)
    dedup_cache_models: bool = option(False, "do not list the cached model that it uses")
    ttl: float | None = option(None, "seconds without a request", least=0, most=10**9)


def router_keys(texts: Mapping[str, str], model: str) -> RouterKeys:
    """The keys for the router among the texts of a model.

    Raises:
        ConfigError: one has a value that cannot work.
    """
    given = {name: (text, f"preset of {model}") for name, text in texts.items()}
    return resolve(settings_of(RouterKeys), [given]).own(RouterKeys)


def read_preset(file: Path) -> dict[str, str]:
    """Setting -> text for a server of one model, which is named elsewhere.

    Raises:
        ConfigError: an unreadable file, several models, or a flag that is unknown or refused.
    """
    sections = read_sections(file)
    found = sections.pop(EVERY_MODEL, {})
    if len(sections) > 1:
        raise ConfigError(
            f"{file} has {len(sections)} models ({', '.join(sections)}) but --model names one; "
            "leave --model out to serve all of them, or keep one section"
        )
    for name, section in sections.items():
        found = {"alias": name} | found | section
    return {name: text for name, text in found.items() if name not in ("model", "hf_repo")}


def read_sections(file: Path) -> dict[str, dict[str, str]]:
    """Section -> text by setting and by field of `RouterKeys`, [*] among them, as in the file.

    Raises:
        ConfigError: an unreadable file, or a flag that is unknown or refused.
    """
    found: dict[str, dict[str, str]] = {}
    known = owners([*all_settings(), *settings_of(RouterKeys)])
    for section, keys in _sections(file).items():
        found[section] = {}
        for key, text in keys.items():
            if key == "version":
                continue
            name = spelling(key, known, str(file))
            found[section] |= texts(known[name], name, text, f"{key} = {text} in {file}")
    return found


def _sections(file: Path) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(
        default_section="", delimiters=("=",), comment_prefixes=("#", ";"), interpolation=None,
        strict=False,
    )  # fmt: skip
    # preserves case, as documented by configparser
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    try:
        # everything before the first section is for every model
        parser.read_string(f"[{EVERY_MODEL}]\n{file.read_text('utf-8')}")
    except OSError as error:
        raise ConfigError(f"cannot read the preset {file}: {error.strerror}") from None
    except (configparser.Error, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"the preset {file} is not valid: {reason}") from None
    return {name: dict(parser[name]) for name in parser.sections()}
