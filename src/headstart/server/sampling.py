"""Sampling parameters: defaults from flags and the model file, and values of request bodies."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headstart.config import SamplingConfig
from headstart.server.body import check_length, is_id
from headstart.server.constraints import default_constraint
from headstart.server.errors import wrong_value
from headstart.server.schemas import GenerationBody
from headstart.server.service import RequestDefaults
from headstart.types import Vocab
from headstart.types.errors import ConfigError, RequestError
from headstart.types.sampling_params import (
    MAX_SEED,
    NUMBERS,
    SAMPLER_ALIASES,
    SAMPLERS,
    LogitBias,
    SamplingParams,
)

log = logging.getLogger(__name__)


def request_defaults(
    config: SamplingConfig, metadata: Mapping[str, str], vocab_size: int
) -> RequestDefaults:
    """Join flags and the model's metadata.

    Raises:
        ConfigError: a flag is out of range, or names a file that cannot be read.
    """
    values: dict[str, Any] = {"ignore_eos": config.ignore_eos}
    values |= _recommended(metadata)
    values |= config.numbers
    if config.samplers is not None:
        values["samplers"] = _sampler_names(config.samplers.split(";"))
    if config.sampler_seq is not None:
        values["samplers"] = _sampler_letters(config.sampler_seq)
    if config.logit_bias is not None:
        values["logit_bias"] = _flag_logit_bias(config.logit_bias, vocab_size)
    if config.dry_sequence_breaker is not None:
        lines = _lines(config.dry_sequence_breaker, escape=config.escape)
        values["dry_sequence_breakers"] = tuple(line for line in lines if line != "none")
    try:
        sampling = SamplingParams(**_clamped(values))
    except RequestError as error:
        raise ConfigError(f"a sampling flag is out of range: {error}") from error
    return RequestDefaults(
        sampling=sampling,
        seed=None if config.seed == -1 else config.seed % 2**32,
        max_tokens=None if config.predict < 0 else config.predict,
        stop=tuple(_lines(config.reverse_prompt or "", escape=config.escape)),
        constraint=default_constraint(config),
    )


def sampling_params(
    body: GenerationBody, defaults: RequestDefaults, vocab: Vocab
) -> SamplingParams:
    """The server's defaults with the values of the body.

    Raises:
        RequestError: a value has the wrong form or is out of range.
    """
    breakers = body.dry_sequence_breakers
    given: dict[str, Any] = {
        **{one.name: getattr(body, one.name) for one in NUMBERS},
        "ignore_eos": body.ignore_eos,
        "seed": _seed(defaults.seed if body.seed is None else body.seed),
        "samplers": None if body.samplers is None else _samplers(body.samplers),
        "logit_bias": None if body.logit_bias is None else _read_logit_bias(body.logit_bias, vocab),
        "dry_sequence_breakers": None if breakers is None else tuple(breakers),
    }
    if (base := given["dry_base"]) is not None and base < 1.0:  # as in llama-server
        given["dry_base"] = None
    changes = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(defaults.sampling, **_clamped(changes))


def _seed(seed: int | None) -> int:
    """The seed's lower 32 bits, as in llama-server; None and -1 mean a random seed."""
    if seed in (None, -1, MAX_SEED):  # MAX_SEED is -1 as shown by llama-server's /props
        return secrets.randbelow(MAX_SEED)
    return seed % 2**32


def _clamped(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace values outside a clamped parameter's range by its limit."""
    clamped = dict(values)
    for one in NUMBERS:
        value, clamp = clamped.get(one.name), one.metadata["clamp"]
        if clamp and isinstance(value, int | float) and not math.isnan(value):
            low, high = one.metadata["range"]
            limited = max(value, low)
            clamped[one.name] = type(value)(min(limited, high) if clamp == "both" else limited)
    return clamped


def _samplers(samplers: Any) -> tuple[str, ...]:
    """Names from a list, or from a string of letters as on llama-server's command line."""
    if isinstance(samplers, str | list):
        check_length("samplers", samplers, 32)
    if isinstance(samplers, str):
        return _sampler_letters(samplers)
    names = read_names("samplers", samplers) or ()
    return _sampler_names(names)


def _sampler_names(names: Iterable[str]) -> tuple[str, ...]:
    """The known samplers among these, each once; others are ignored."""
    known = (SAMPLER_ALIASES.get(name.strip(), name.strip()) for name in names)
    return tuple(dict.fromkeys(name for name in known if name in SAMPLERS))


def _sampler_letters(letters: str) -> tuple[str, ...]:
    """The samplers for a string of letters, as in llama-server's --sampler-seq."""
    names = {
        "e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p",
        "p": "top_p", "m": "min_p", "x": "xtc", "t": "temperature", "i": "infill",
    }  # fmt: skip
    return _sampler_names(names.get(letter, "") for letter in letters)


def read_names(field: str, value: Any) -> tuple[str, ...] | None:
    """A list of names, or one string with commas between them."""
    if isinstance(value, str):
        check_length(field, value, 4096, "characters")
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if names is None:
        return None
    if isinstance(names, list):
        check_length(field, names, 64)
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise wrong_value(field, value, "a list of names, or names with commas between")
    return tuple(names)


def _recommended(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Values of the model file; one that is not a number counts as absent."""
    values: dict[str, Any] = {}
    for one in NUMBERS:
        try:
            value = float(metadata[f"general.sampling.{one.metadata['key']}"])
            values[one.name] = int(value) if one.type == "int" else value
        except (KeyError, ValueError, OverflowError):
            continue
    if sequence := metadata.get("general.sampling.sequence"):
        values["samplers"] = _sampler_names(sequence.split(";"))
    return values


def _lines(text: str, *, escape: bool) -> Sequence[str]:
    """The texts of a repeatable flag."""
    lines = [line for line in text.split("\n") if line]
    return [_unescape(line) for line in lines] if escape else lines


def _unescape(text: str) -> str:
    meanings = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
    return re.sub(r"\\([nrt'\"\\])", lambda match: meanings[match[1]], text)


def _flag_logit_bias(text: str, vocab_size: int) -> LogitBias:
    """Read the flag; ids that are not in the vocabulary have no effect, as in llama-server."""
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
    if unknown := [str(token) for token in biases if token >= vocab_size]:
        log.warning(
            "--logit-bias: no effect for %s: the model's tokens are 0 to %d",
            ", ".join(unknown),
            vocab_size - 1,
        )
    return LogitBias({token: bias for token, bias in biases.items() if token < vocab_size})


def _read_logit_bias(value: Any, vocab: Vocab) -> LogitBias:
    """Read both forms; a text biases every token of it. Anything else is skipped, as in
    llama-server.

    Raises:
        RequestError: it has too many entries.
    """
    is_object = isinstance(value, dict)
    pairs = list(value.items()) if is_object else value if isinstance(value, list) else []
    check_length("logit_bias", pairs, vocab.size)
    biases: dict[int, float] = {}
    texts: list[str] = []
    for pair in pairs:
        match pair:
            case [token, False]:
                amount = -math.inf
            case [token, int() | float() as bias] if bias is not True:
                amount = _finite_bias(bias)
            case _:
                continue
        if is_object and re.fullmatch(r"-?[0-9]{1,12}", token):  # JSON keys are strings
            token = int(token)
        if isinstance(token, str):
            texts.append(token)
            check_length("logit_bias", texts, 1024, "texts")
            check_length("logit_bias", token.encode(), 1024, "bytes")
            ids = vocab.tokenize(token, add_special=False, parse_special=False)
        else:
            ids = [token] if is_id(token) and 0 <= token < vocab.size else []
        for token_id in ids:
            total = biases.get(token_id, 0.0) + amount
            biases[token_id] = total if math.isinf(total) else _finite_bias(total)
    return LogitBias(biases)


def _finite_bias(bias: float) -> float:
    """Limit a bias, so that the sampler's sums stay finite in float32 at any temperature."""
    return float(max(-1e30, min(1e30, bias)))
