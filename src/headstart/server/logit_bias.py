"""`logit_bias`: which tokens a request makes likelier, less likely or impossible."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from headstart.server.errors import ApiError, shorten
from headstart.server.limits import (
    MAX_BIAS,
    MAX_BIAS_TEXT_BYTES,
    MAX_BIAS_TEXTS,
    check_bytes,
    check_length,
)
from headstart.types import Vocab


def read_logit_bias(value: Any, vocab: Vocab) -> dict[int, float]:
    """Read both forms; a text biases every token of it.

    Raises:
        ApiError: it is neither form, names no token, or holds too much.
    """
    if isinstance(value, Mapping | list):
        check_length("logit_bias", value, vocab.size)
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs
    ):
        raise ApiError(400, "logit_bias must be an object {token: bias} or a list of [token, bias]")
    biases: dict[int, float] = {}
    texts: list[str] = []
    for name, bias in pairs:
        token, number = _bias_token(name, is_key=isinstance(value, Mapping)), _bias(name, bias)
        if isinstance(token, str):
            texts.append(token)
            check_length("logit_bias", texts, MAX_BIAS_TEXTS, "texts")
            check_bytes("logit_bias", token, MAX_BIAS_TEXT_BYTES)
            ids = vocab.tokenize(token, add_special=False, parse_special=False)
        else:
            ids = [token] if 0 <= token < vocab.size else []  # others change nothing
        for token_id in ids:
            total = biases.get(token_id, 0.0) + number
            biases[token_id] = total if math.isinf(total) else _clamped(total)
    return biases


def _bias(token: Any, bias: Any) -> float:
    if bias is False:
        return -math.inf
    if isinstance(bias, bool) or not isinstance(bias, int | float):
        raise ApiError(
            400,
            f"logit_bias of {shorten(token)} is {shorten(bias)} but must be a number, or false to "
            "ban it",
        )
    return _clamped(bias)


def _clamped(bias: float) -> float:
    """As far as float32 goes with a temperature: beyond it the sums of the sampler are no
    numbers.
    """
    return float(max(-MAX_BIAS, min(MAX_BIAS, bias)))


def _bias_token(token: Any, *, is_key: bool) -> int | str:
    if is_key and re.fullmatch(r"-?[0-9]{1,12}", token):  # JSON keys are strings, ids included
        token = int(token)
    if not isinstance(token, str | int) or isinstance(token, bool):
        raise ApiError(
            400, f"logit_bias names the token {shorten(token)} but must name an id or a text"
        )
    return token
