"""Every table of the simulation prints lines, and says what each number is."""

from __future__ import annotations

import pytest
from benchmarks import control_simulation


@pytest.mark.parametrize(
    "rows",
    [
        lambda: control_simulation.texts_and_machines(20, 1),
        lambda: control_simulation.tiled(20, 1),
        lambda: control_simulation.snapshots(20, 1),
        lambda: control_simulation.hybrids(20, 1),
    ],
    ids=["table", "tiled", "snapshots", "hybrids"],
)
def test_a_line_has_a_speed_for_each_policy_and_a_ratio_for_each_pair(rows) -> None:
    line = next(rows())
    ratios = len(line.compared) * len(line.others)
    assert ratios
    numbers = str(line).removeprefix(line.name).split()
    assert len(numbers) == len(line.speeds) + bool(line.setting) + ratios
