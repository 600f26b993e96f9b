"""What a request may say about sampling, with llama-server's names and defaults.

Source: llama.cpp common/common.h (common_params_sampling), tools/server/README.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from headstart.types.errors import InvalidParameterError

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling of one request; immutable, so the text is a function of it and the prompt."""

    temperature: float = 0.8  # 0 is greedy
    dynatemp_range: float = 0.0  # temperature varies by +- this with the entropy of the candidates
    dynatemp_exponent: float = 1.0
    top_k: int = 40  # 0 keeps all
    top_p: float = 0.95  # 1 keeps all
    min_p: float = 0.05  # 0 keeps all
    typical_p: float = 1.0  # 1 keeps all
    top_n_sigma: float = -1.0  # <= 0 is off
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1  # > 0.5 is off
    min_keep: int = 0
    repeat_last_n: int = 64  # tokens that penalties look back; 0 is off, -1 the whole context
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0  # 0 is off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    seed: int = 0  # 0 .. 2**32 - 1; the server replaces -1 by a random one and reports it
    samplers: tuple[str, ...] = DEFAULT_SAMPLERS

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not (
                isinstance(value, (int, float)) and math.isfinite(value) and low <= value <= high
            ):
                raise InvalidParameterError(
                    f"{name} is {value!r} but must be a number from {low:g} to {high:g}"
                )
        unknown = [s for s in self.samplers if s not in SAMPLERS]
        if unknown:
            raise InvalidParameterError(
                f"samplers contains {unknown[0]!r}, which is not one of {', '.join(SAMPLERS)}"
            )
        if self.has_infill and not self._cuts_before_infill():
            raise InvalidParameterError(
                "samplers contains infill, which compares every candidate with every other; "
                f"put top_k before it, with top_k from 1 to {MAX_INFILL_TOP_K} (it is {self.top_k})"
            )

    @property
    def is_greedy(self) -> bool:
        return self.temperature <= 0

    @property
    def has_penalties(self) -> bool:
        """Whether the text so far changes the logits (DRY not counted)."""
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
        """Whether a filter may remove the candidate with the highest logit (DRY not counted)."""
        has_typical = "typ_p" in self.samplers and self.typical_p < 1.0
        return self.has_xtc or self.has_infill or has_typical

    def _cuts_before_infill(self) -> bool:
        return (
            "top_k" in self.samplers[: self.samplers.index("infill")]
            and 1 <= self.top_k <= MAX_INFILL_TOP_K
        )


_RANGES = (
    ("temperature", 0.0, 100.0),
    ("dynatemp_range", 0.0, 100.0),
    ("dynatemp_exponent", 0.0, 100.0),
    ("top_k", 0, 2**31 - 1),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("typical_p", 0.0, 1.0),
    ("top_n_sigma", -1.0, 1e6),
    ("xtc_probability", 0.0, 1.0),
    ("xtc_threshold", 0.0, 1.0),
    ("min_keep", 0, 2**31 - 1),
    ("repeat_last_n", -1, 2**31 - 1),
    ("repeat_penalty", 1e-3, 100.0),
    ("presence_penalty", -100.0, 100.0),
    ("frequency_penalty", -100.0, 100.0),
    ("dry_multiplier", 0.0, 100.0),
    ("dry_base", 0.0, 100.0),
    ("dry_allowed_length", 0, 2**31 - 1),
    ("dry_penalty_last_n", -1, 2**31 - 1),
    ("seed", 0, MAX_SEED),
)
