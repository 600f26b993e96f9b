"""Costs of steps on this machine, from control's saved state or measured now."""

from __future__ import annotations

from dataclasses import replace

from headstart.app import assemble
from headstart.app.model_files import Models, choose_speculators
from headstart.app.saved_control import load_control
from headstart.config import Config, SpeculationConfig
from headstart.control.cost import CostTable


def of_machine(config: Config, models: Models) -> CostTable:
    """The target's costs from control's saved state, or from a warm-up now, which loads it.

    Raises:
        ConfigError, ModelError: it cannot be loaded.
    """
    spec = SpeculationConfig(spec_type="suffix", spec_state=config.speculation.spec_state)
    alone = replace(config, speculation=spec)
    target = replace(models, draft=None)
    for settings, files in ((config, models), (alone, target)):
        cost = load_control(settings, choose_speculators(settings, files))[0].cost
        if cost.is_known(4):  # rows
            return cost
    scheduler, _ = assemble.build_scheduler(alone, target)
    scheduler.drafting.save()
    return scheduler.drafting.controller.cost
