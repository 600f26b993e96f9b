"""Sampling parameters of a request, with llama-server's names and defaults.

Source: llama.cpp common/common.h (common_params_sampling), tools/server/README.md.
"""

from __future__ import annotations

import math
from collections.abc import ItemsView, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from headstart.types.errors import RequestError

DEFAULT_SAMPLERS = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)
SAMPLERS = (*DEFAULT_SAMPLERS, "infill")
SAMPLER_ALIASES = {
    "typical_p": "typ_p",
    "typical": "typ_p",
    "temp": "temperature",
    "topk": "top_k",
    "topp": "top_p",
    "minp": "min_p",
    "top-k": "top_k",
    "top-p": "top_p",
    "min-p": "min_p",
    "top-n-sigma": "top_n_sigma",
}
MAX_SEED = 2**32 - 1
MAX_INFILL_TOP_K = 256


class LogitBias:
    """Bias by token: arrays, so that the engine applies 100,000 quickly."""

    def __init__(self, biases: Mapping[int, float]) -> None:
        self.ids = np.fromiter(biases, np.int32, len(biases))
        self.amounts = np.fromiter(biases.values(), np.float64, len(biases))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogitBias) and self.items() == other.items()

    def __len__(self) -> int:
        return len(self.ids)

    def items(self) -> ItemsView[int, float]:
        return dict(zip(self.ids.tolist(), self.amounts.tolist(), strict=True)).items()


def number(default: float, low: float, high: float, help: str = "", **facts: str) -> Any:
    """A numeric parameter from `low` to `high`.

    Args:
        help: of the server's flag for the default; without it there is no flag.
        flag: name of that setting, if different.
        key: of `general.sampling.*` in model files that recommend a value.
        clamp: "below" or "both": as in llama-server, a request's value beyond this side of the
            range is clamped.
    """
    metadata = {"range": (low, high), "help": help, "flag": "", "key": "", "clamp": "", **facts}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class SamplingParams:
    """Sampling of one request; immutable, so the text is a function of it and the prompt."""

    temperature: float = number(
        0.8, 0.0, 100.0, "temperature; 0 always takes the likeliest token", flag="temp",
        key="temp", clamp="below",
    )  # fmt: skip
    dynatemp_range: float = number(
        0.0, 0.0, 100.0, "how much the temperature varies with the entropy of the candidates"
    )
    dynatemp_exponent: float = number(
        1.0, 0.0, 100.0, "exponent of the varying temperature", flag="dynatemp_exp"
    )
    top_k: int = number(
        40, 0, 2**31 - 1, "sample from the k likeliest tokens; 0 from all", key="top_k",
        clamp="both",
    )  # fmt: skip
    top_p: float = number(
        0.95, 0.0, 1.0, "sample from the likeliest tokens that together have this probability",
        key="top_p", clamp="both",
    )  # fmt: skip
    min_p: float = number(
        0.05, 0.0, 1.0, "drop tokens less likely than this share of the likeliest", key="min_p",
        clamp="both",
    )  # fmt: skip
    typical_p: float = number(1.0, 0.0, 1.0, "locally typical sampling; 1 is off")
    top_n_sigma: float = number(
        -1.0, -1.0, 1e6, "drop logits this many standard deviations below the best; -1 is off"
    )
    xtc_probability: float = number(
        0.0, 0.0, 1.0, "how often XTC drops the best tokens", key="xtc_probability", clamp="both"
    )
    xtc_threshold: float = number(
        0.1, 0.0, 1.0, "minimum probability of the tokens that XTC drops", key="xtc_threshold",
        clamp="both",
    )  # fmt: skip
    min_keep: int = number(0, 0, 2**31 - 1)
    repeat_last_n: int = number(
        64, -1, 2**31 - 1, "tokens that penalties look back; 0 is off, -1 the whole context",
        key="penalty_last_n",
    )  # fmt: skip
    repeat_penalty: float = number(
        1.0, 1e-3, 100.0, "penalty for repeated tokens; 1 is off", key="penalty_repeat"
    )
    presence_penalty: float = number(0.0, -100.0, 100.0, "subtracted from tokens seen before")
    frequency_penalty: float = number(
        0.0, -100.0, 100.0, "subtracted from tokens for each time they were seen"
    )
    dry_multiplier: float = number(
        0.0, 0.0, 100.0, "strength of the DRY repetition penalty; 0 is off"
    )
    dry_base: float = number(1.75, 0.0, 100.0, "base of DRY's penalty")
    dry_allowed_length: int = number(
        2, 0, 2**31 - 1, "repetitions up to this length are not penalized"
    )
    dry_penalty_last_n: int = number(
        64, -1, 2**31 - 1, "tokens that DRY looks back; 0 is off, -1 the whole context"
    )
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    logit_bias: LogitBias = field(default_factory=lambda: LogitBias({}))
    ignore_eos: bool = False
    # 0 .. 2**32 - 1; the server replaces -1 by a random seed and reports it
    seed: int = number(0, 0, MAX_SEED)
    samplers: tuple[str, ...] = DEFAULT_SAMPLERS

    def __post_init__(self) -> None:
        for parameter in NUMBERS:
            name, (low, high) = parameter.name, parameter.metadata["range"]
            value = getattr(self, name)
            if not (
                isinstance(value, (int, float)) and math.isfinite(value) and low <= value <= high
            ):
                raise RequestError(
                    f"{name} is {value!r} but must be a number from {low:g} to {high:g}"
                )
        if not isinstance(self.logit_bias, LogitBias):
            raise RequestError(f"logit_bias is {self.logit_bias!r:.60} but must be a LogitBias")
        unknown = [s for s in self.samplers if s not in SAMPLERS]
        if unknown:
            raise RequestError(
                f"samplers contains {unknown[0]!r}, which is not one of {', '.join(SAMPLERS)}"
            )
        names = self.samplers
        cuts = 1 <= self.top_k <= MAX_INFILL_TOP_K
        if self.has_infill and not (cuts and "top_k" in names[: names.index("infill")]):
            raise RequestError(
                "samplers contains infill, which compares every candidate with every other; "
                f"put top_k before it, with top_k from 1 to {MAX_INFILL_TOP_K} (it is {self.top_k})"
            )

    @property
    def is_greedy(self) -> bool:
        return self.temperature <= 0

    @property
    def has_penalties(self) -> bool:
        """Whether the text so far changes the logits (except by DRY)."""
        if "penalties" not in self.samplers or self.repeat_last_n == 0:
            return False
        return (
            self.repeat_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def has_dry(self) -> bool:
        return (
            "dry" in self.samplers
            and self.dry_multiplier != 0.0
            and self.dry_base >= 1.0
            and self.dry_penalty_last_n != 0
        )

    @property
    def has_xtc(self) -> bool:
        return "xtc" in self.samplers and self.xtc_probability > 0.0 and self.xtc_threshold <= 0.5

    @property
    def has_infill(self) -> bool:
        return "infill" in self.samplers

    @property
    def removes_best(self) -> bool:
        """Whether a filter may remove the candidate with the highest logit (except DRY)."""
        has_typical = "typ_p" in self.samplers and self.typical_p < 1.0
        return self.has_xtc or self.has_infill or has_typical


NUMBERS = tuple(one for one in fields(SamplingParams) if one.metadata)
