"""Cost curves, given and measured, and the simulated clock."""

from __future__ import annotations

import pytest
from benchmarks.lib.curves import CostCurve
from benchmarks.lib.engines import Clock, PricedEngine, SilentEngine

from headstart.testing import FakeFilters
from headstart.types import Batch
from headstart.types.errors import ConfigError

CURVE = CostCurve.parse("1:10,2:14,8:20,16:60")


def test_a_curve_is_linear_between_its_points_and_beyond_the_last_two() -> None:
    assert [CURVE(rows) for rows in (1, 2, 8, 16)] == [10.0, 14.0, 20.0, 60.0]
    assert [CURVE(rows) for rows in (5, 12, 24)] == [17.0, 40.0, 100.0]
    assert CostCurve({4: 20.0, 8: 40.0})(2) == 10.0, "before the first two as well"


@pytest.mark.parametrize(
    "text",
    ["", "1", "1:48", "1:48,", "1:48,2", "1:a,2:b", "0:4,1:8", "1:0,2:1", "1:-4,2:5", "1:nan,2:5"],
)
def test_what_is_no_curve_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="cost curve"):
        CostCurve.parse(text)


def test_a_scripted_engine_says_the_script_whatever_was_decoded() -> None:
    engine = SilentEngine(32, 4, FakeFilters)
    engine.scripts = {0: [1, 2, 3, 4], 1: [9, 8, 7]}
    batch = Batch(8)
    batch.add(0, 0, [1, 30, 30], 3)  # the last two are wrong drafts: positions decide
    batch.add(1, 1, [8], 1)
    assert engine.decode(batch).argmax(1).tolist() == [2, 3, 4, 7]
    batch.clear()
    batch.add(1, 2, [7], 1)  # the script is over
    assert not engine.decode(batch).any()


def test_every_row_has_its_price_also_one_without_logits() -> None:
    clock = Clock()
    engine = PricedEngine(SilentEngine(32, 4, FakeFilters), CURVE, clock)
    batch = Batch(8)
    batch.add(0, 0, [1, 2, 3, 4, 5, 6, 7, 8], 1)
    engine.decode(batch)
    assert clock() == pytest.approx(CURVE(8) / 1000.0)
