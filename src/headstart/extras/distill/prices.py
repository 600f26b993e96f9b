"""Costs of steps on this machine, from control's saved state or measured now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from headstart.app import assemble
from headstart.app.model_files import Models, choose_speculators
from headstart.app.saved_control import load_control
from headstart.config import Config, SpeculationConfig

LONGEST = 16  # draft tokens


@dataclass(frozen=True, slots=True)
class StepPrices:
    """Milliseconds of the target's steps and of a model's draft; copies take next to nothing."""

    rows_ms: tuple[float, ...]  # by rows from 0 on, of the cheapest step that has them
    attention_ms: float  # further ones of a row for 1000 tokens before it
    round_ms: float = 0.0  # of a model's draft token

    @classmethod
    def of(cls, cost_ms: Mapping[str, Any]) -> StepPrices:
        """Interpolate from the widths that control has measured, as it describes them."""
        rows = {int(count): float(ms) for count, ms in cost_ms["rows"].items()}
        known = sorted(rows)
        each = np.interp(range(LONGEST + 2), [0, *known], [0.0, *(rows[n] for n in known)])
        slope = (rows[known[-1]] - rows[known[0]]) / max(1, known[-1] - known[0])
        each += slope * np.maximum(0, np.arange(LONGEST + 2) - known[-1])  # where few were measured
        least = list(accumulate(reversed(each.tolist()), min))[::-1]
        return cls((0.0, *least[1:]), float(cost_ms.get("attention", 0.0)))

    def step(self, num_draft: int, by_model: int, context: int) -> float:
        """Milliseconds of a step: draft tokens, of them by a model, tokens before it."""
        attention = self.attention_ms * (1 + num_draft) * context / 1000.0
        return self.rows_ms[1 + num_draft] + attention + by_model * self.round_ms


def of_machine(config: Config, models: Models) -> StepPrices:
    """The target's costs from control's saved state, or from a warm-up now, which loads it.

    Raises:
        ConfigError, ModelError: it cannot be loaded.
    """
    spec = SpeculationConfig(spec_type="suffix", spec_state=config.speculation.spec_state)
    alone = replace(config, speculation=spec)
    target = replace(models, draft=None)
    for settings, files in ((config, models), (alone, target)):
        controller = load_control(settings, choose_speculators(settings, files))[0]
        if len((cost := controller.describe()["cost_ms"]).get("rows", ())) >= 4:  # widths
            break
    else:
        scheduler, _ = assemble.build_scheduler(alone, target)
        cost = scheduler.drafting.describe_control()["cost_ms"]
        scheduler.drafting.save()
    return StepPrices.of(cost)
