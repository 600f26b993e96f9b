"""Drafts that a random number accepts, not the model: for measuring what steps cost.

The text is not valid, and every answer says so. Loaded only when named in `--spec-type`.

Source of the idea: llama.cpp's --spec-synth-len and --spec-synth-rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headstart.config import option
from headstart.speculators.base import Speculator, register
from headstart.types import Draft, DraftRequest
from headstart.types.errors import ConfigError


@register
class SyntheticSpeculator(Speculator):
    """Repeats the last token and has a chosen share of the repeats accepted."""

    name = "synthetic"
    skips_verification = True

    @dataclass(frozen=True, slots=True)
    class Options:
        """How often drafts are accepted."""

        # probability (0 to 1) that a draft token is accepted, given those before it
        rate: float = 0.8
        # instead: tokens emitted per step on average, the target's own included
        length: float | None = None
        n_max: int = option(8, "longest draft, in tokens", limits_draft=True)
        seed: int = 0  # seed of the random numbers that decide

        def __post_init__(self) -> None:
            if not 0.0 <= self.rate <= 1.0 or self.n_max < 1:
                raise ConfigError(
                    f"synthetic needs rate in [0, 1] and n-max >= 1, got {self.rate} and "
                    f"{self.n_max}"
                )
            if self.length is not None and not 1.0 <= self.length <= self.n_max + 1:
                raise ConfigError(
                    f"synthetic needs length in [1, n-max + 1 = {self.n_max + 1}], got "
                    f"{self.length}"
                )

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or self.Options()
        self._random = np.random.default_rng(self.options.seed)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(r) for r in requests]

    def _draft(self, request: DraftRequest) -> Draft:
        options = self.options
        size = min(options.n_max, request.max_tokens)
        if options.length is not None:
            wanted = options.length - 1.0
            forced = int(wanted) + int(self._random.random() < wanted % 1.0)
        else:
            failures = np.flatnonzero(self._random.random(size) >= options.rate)
            forced = int(failures[0]) if len(failures) else size
        return Draft(
            [request.tokens[-1]] * size,
            [options.rate] * size,
            self.name,
            num_unverified=min(forced, size),
        )

    def describe(self) -> dict[str, Any]:
        return {"output_is_valid": False, "rate": self.options.rate, "length": self.options.length}
