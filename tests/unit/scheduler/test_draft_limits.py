"""How long a request's draft may be, and what to say when it may have none."""

from __future__ import annotations

import pytest
from tests.harness import sequence_of

from headstart.scheduler.batching import limit_drafts
from headstart.scheduler.sequence import Cells
from headstart.scheduler.step import StepPlan
from headstart.testing import FakeEngine
from headstart.types import Batch, CacheKind
from headstart.types.request import Request


def limit(num_tokens: int, max_tokens: int, engine: FakeEngine, num_slots: int) -> tuple[int, str]:
    request = Request(request_id="a", prompt=[1] * num_tokens, max_tokens=max_tokens)
    plan = StepPlan(Batch(1), 0.0)
    plan.answer([sequence_of(request, cells=Cells(0))])
    limit_drafts(plan, engine, num_slots)
    return plan.limits[0], plan.reasons[0, ""]


@pytest.mark.parametrize(
    ("num_tokens", "max_tokens", "num_slots", "expected"),
    [
        (8, 5, 1, (4, "max_tokens reached")),
        (8, 1, 1, (0, "max_tokens reached")),
        (60, 50, 1, (3, "context full")),
        (63, 50, 1, (0, "context full")),
        (8, 50, 128, (0, "batch full")),
    ],
)
def test_the_narrowest_bound_is_named(
    num_tokens: int, max_tokens: int, num_slots: int, expected: tuple[int, str]
) -> None:
    assert limit(num_tokens, max_tokens, FakeEngine(context_size=64), num_slots) == expected


def test_a_cache_that_takes_nothing_back_allows_no_draft() -> None:
    engine = FakeEngine(cache_kind=CacheKind.CHECKPOINT)
    engine.max_rollback = 0
    assert limit(8, 50, engine, 1) == (0, "memory takes nothing back")
