"""llama-server's presets: an INI file with the flags of a model, `--models-preset FILE`.

Keys are flags without their dashes or LLAMA_ARG_ names; the section [*] is for every model, the
other one names the model. A server here serves one model, so there is at most one other.

Source: llama.cpp tools/server/README.md, "Model presets".
"""

from __future__ import annotations

import configparser
from collections.abc import Sequence
from pathlib import Path

from headstart.cli import llama_server
from headstart.cli.arguments import meaning
from headstart.cli.settings import Setting, closest
from headstart.errors import ConfigError

EVERY_MODEL = "*"
# of llama-server's router alone
PASSED_OVER = ("load-on-startup", "stop-timeout", "version")


def read_preset(file: Path, settings: Sequence[Setting]) -> dict[str, str]:
    """Setting -> text.

    Raises:
        ConfigError: an unreadable file, several models, or a flag that is unknown or refused.
    """
    sections = _sections(file)
    models = [name for name in sections if name != EVERY_MODEL]
    if len(models) > 1:
        raise ConfigError(
            f"{file} has {len(models)} models ({', '.join(models)}) but a server serves one; keep "
            "one section and start a server for each"
        )
    found: dict[str, str] = {}
    for name in (EVERY_MODEL, *models):
        for key, value in sections.get(name, {}).items():
            if key not in PASSED_OVER:
                found |= _setting(file, key, value, settings)
    if models:
        found.setdefault("alias", models[0])
        if not {"model", "hf_repo"} & set(found) and "/" in models[0]:
            found["hf_repo"] = models[0]
    return found


def _sections(file: Path) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(
        default_section="", delimiters=("=",), comment_prefixes=("#", ";"), interpolation=None,
        strict=False,
    )  # fmt: skip
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
    for setting in settings:
        if name := next((n for n in setting.spellings if n in (f"--{key}", f"-{key}")), None):
            if name not in setting.negatives:
                return {setting.name: value}
            is_negated = setting.parse(value, f"{key} in {file}")
            return {setting.name: llama_server.OFF if is_negated else llama_server.ON}
    known = llama_server.by_name()
    flag = next((known[name] for name in (f"--{key}", f"-{key}") if name in known), None)
    if flag is None:
        flag = next((one for one in llama_server.flags() if one.environment == key), None)
    if flag is None:
        names = [name.lstrip("-") for name in known]
        raise ConfigError(f"{file} sets {key!r}, which is no flag{closest(key, names)}")
    if f"--{key}" in flag.negatives:
        value = llama_server.OFF if value.lower() in ("", "1", "true", "on") else llama_server.ON
    return meaning(flag, value, settings, f"{key} = {value} in {file}")
