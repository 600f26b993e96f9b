"""Timed steps, and the acceptance from which drafts pay."""

from __future__ import annotations

import pytest
from benchmarks.lib.curves import CostCurve
from benchmarks.lib.engines import Clock, PricedEngine

from headstart.extras.bench.steps import break_even, time_steps
from headstart.testing import FakeEngine
from headstart.types import CacheKind
from headstart.types.errors import ConfigError

CURVE = CostCurve.parse("1:10,2:14,8:20,16:60")


@pytest.mark.parametrize("cache_kind", list(CacheKind))
def test_timed_steps_give_back_the_curve_of_a_priced_engine(cache_kind: CacheKind) -> None:
    clock, fake = Clock(), FakeEngine(cache_kind=cache_kind)
    engine = PricedEngine(fake, CURVE, clock)
    times = time_steps(engine, [1, 2, 8, 16], context=300, num_repeats=3, clock=clock)
    for kind in times:
        assert list(kind) == [1, 2, 8, 16]
        for rows, values in kind.items():
            assert values == pytest.approx([CURVE(rows)] * 3)
    assert fake.cells_used() == 0


def test_steps_that_do_not_fit_are_refused() -> None:
    engine = FakeEngine(context_size=64)
    for rows in ([], [0], [129]):
        with pytest.raises(ConfigError, match="one decode takes 1 to 128"):
            time_steps(engine, rows, context=8, num_repeats=1)
    with pytest.raises(ConfigError, match="do not fit into 64"):
        time_steps(engine, [8], context=60, num_repeats=1)


@pytest.mark.parametrize(("num_draft", "steps"), [(1, 1.4), (3, 2.0), (8, 1.2), (15, 9.0)])
def test_a_draft_gives_as_many_tokens_as_it_costs_steps_where_it_breaks_even(
    num_draft: int, steps: float
) -> None:
    rate = break_even(num_draft, steps)
    assert rate is not None
    assert sum(rate**k for k in range(num_draft + 1)) == pytest.approx(steps)


def test_a_draft_that_costs_a_step_a_token_never_pays() -> None:
    assert break_even(3, 4.0) is None
