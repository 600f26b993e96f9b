"""What a request gets that does not say: flags, then what the model file recommends."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headstart.config import SamplingConfig
from headstart.server.constraints import default_constraint
from headstart.server.model import RequestDefaults
from headstart.types.errors import ConfigError, InvalidParameterError
from headstart.types.sampling_params import SAMPLER_ALIASES, SAMPLERS, SamplingParams

# field of a request -> setting, where their names differ
SETTINGS = {
    "temperature": "temp",
    "dynatemp_exponent": "dynatemp_exp",
}
# llama.cpp's keys of model files -> field of a request; Mirostat is not built
METADATA = {
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.xtc_probability": "xtc_probability",
    "general.sampling.xtc_threshold": "xtc_threshold",
    "general.sampling.temp": "temperature",
    "general.sampling.penalty_last_n": "repeat_last_n",
    "general.sampling.penalty_repeat": "repeat_penalty",
}
SEQUENCE_KEY = "general.sampling.sequence"
SAMPLER_LETTERS = {
    "e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p",
    "p": "top_p", "m": "min_p", "x": "xtc", "t": "temperature", "i": "infill",
}  # fmt: skip
# values beyond these are taken as the limit, as llama-server does
SOFT_LIMITS: dict[str, tuple[float, float]] = {
    "top_k": (0, 2**31 - 1),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "temperature": (0.0, math.inf),
}


def request_defaults(config: SamplingConfig, metadata: Mapping[str, str]) -> RequestDefaults:
    """Join flags and the model's metadata.

    Raises:
        ConfigError: a flag is out of range, or names what cannot be read.
    """
    values: dict[str, Any] = {"ignore_eos": config.ignore_eos}
    values |= _recommended(metadata)
    for field in dataclasses.fields(SamplingParams):
        given = getattr(config, SETTINGS.get(field.name, field.name), None)
        if given is not None and field.name not in ("seed", "samplers", "logit_bias"):
            values[field.name] = given
    if config.samplers is not None:
        values["samplers"] = sampler_names(config.samplers.split(";"))
    if config.sampler_seq is not None:
        values["samplers"] = sampler_letters(config.sampler_seq)
    if config.logit_bias is not None:
        values["logit_bias"] = _logit_bias(config.logit_bias)
    if config.dry_sequence_breaker is not None:
        lines = _lines(config.dry_sequence_breaker, escape=config.escape)
        values["dry_sequence_breakers"] = tuple(line for line in lines if line != "none")
    try:
        sampling = SamplingParams(**soften(values))
    except InvalidParameterError as error:
        raise ConfigError(f"a sampling flag is out of range: {error}") from error
    return RequestDefaults(
        sampling=sampling,
        seed=None if config.seed == -1 else config.seed % 2**32,
        max_tokens=None if config.predict < 0 else config.predict,
        stop=tuple(_lines(config.reverse_prompt or "", escape=config.escape)),
        constraint=default_constraint(config),
    )


def soften(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values beyond a limit at which they would mean nothing else become the limit."""
    softened = dict(values)
    for name, (low, high) in SOFT_LIMITS.items():
        value = softened.get(name)
        if isinstance(value, int | float) and value == value:
            softened[name] = type(value)(min(max(value, low), high))
    return softened


def sampler_names(names: Iterable[str]) -> tuple[str, ...]:
    """The samplers that exist among these, under our names, each once; others are left out."""
    known = (SAMPLER_ALIASES.get(name.strip(), name.strip()) for name in names)
    return tuple(dict.fromkeys(name for name in known if name in SAMPLERS))


def sampler_letters(letters: str) -> tuple[str, ...]:
    """The same from one letter for each, as on llama-server's command line."""
    return sampler_names(SAMPLER_LETTERS.get(letter, "") for letter in letters)


def _recommended(metadata: Mapping[str, str]) -> dict[str, Any]:
    """What the model file says; a value that is no number counts as absent."""
    usual = SamplingParams()
    values: dict[str, Any] = {}
    for key, name in METADATA.items():
        try:
            values[name] = type(getattr(usual, name))(float(metadata[key]))
        except (KeyError, ValueError, OverflowError):
            continue
    if sequence := metadata.get(SEQUENCE_KEY):
        values["samplers"] = sampler_names(sequence.split(";"))
    return values


def _lines(text: str, *, escape: bool) -> Sequence[str]:
    """The texts of a repeatable flag."""
    lines = [line for line in text.split("\n") if line]
    return [_unescape(line) for line in lines] if escape else lines


def _unescape(text: str) -> str:
    meanings = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
    return re.sub(r"\\([nrt'\"\\])", lambda match: meanings[match[1]], text)


def _logit_bias(text: str) -> dict[int, float]:
    biases: dict[int, float] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})([+-])([0-9.eE+-]+|inf)\s*", part)
        try:
            token, sign, size = match.groups() if match else ("", "", "")
            biases[int(token)] = float(size) * (-1 if sign == "-" else 1)
        except ValueError:
            raise ConfigError(
                f"--logit-bias is {part!r} but must be as 15043+1, 15043-1 or 15043-inf"
            ) from None
    return biases
