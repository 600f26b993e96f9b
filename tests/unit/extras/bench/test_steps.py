"""Timed steps, and the acceptance from which drafts pay."""

from __future__ import annotations

import pytest
from benchmarks.lib.curves import CostCurve
from benchmarks.lib.engines import Clock, PricedEngine

from headstart.extras.bench.steps import break_even, time_steps
from headstart.extras.bench.tune import pays_from
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
    with pytest.raises(ConfigError, match="do not fit into 64"):
        time_steps(FakeEngine(context_size=64), [8], context=60, num_repeats=1)


@pytest.mark.parametrize(("num_draft", "steps"), [(1, 1.4), (3, 2.0), (8, 1.2), (15, 9.0)])
def test_a_draft_gives_as_many_tokens_as_it_costs_steps_where_it_breaks_even(
    num_draft: int, steps: float
) -> None:
    rate = break_even(num_draft, steps)
    assert rate is not None
    assert sum(rate**k for k in range(num_draft + 1)) == pytest.approx(steps)


def test_a_draft_that_costs_a_step_a_token_never_pays() -> None:
    assert break_even(3, 4.0) is None


def test_tune_says_when_a_draft_model_can_never_pay_and_else_from_which_acceptance() -> None:
    rows = {"1": 10.0, "2": 12.0, "3": 18.0, "4": 16.0, "5": 30.0}

    def rate_and_length(round_ms: float) -> list[float]:
        models = {"draft-model": {"round_ms": {"1": round_ms, "4": 1.0}}}
        return [
            *(pays_from({"cost_ms": {"rows": rows}, "draft_models": models}, "draft-model") or ())
        ]

    assert rate_and_length(1.0) == pytest.approx([0.3, 1])  # 3 of 10 milliseconds for a token
    assert rate_and_length(0.0) == pytest.approx([0.2, 1])
    assert rate_and_length(9.0) == []
    assert pays_from({"cost_ms": {}, "draft_models": {}}, "suffix") is None
