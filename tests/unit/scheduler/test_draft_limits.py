"""How long a request's draft may be, and what to say when it may have none."""

from __future__ import annotations

import pytest

from headstart.scheduler.batching import DraftLimit, draft_limits
from headstart.scheduler.slot import ActiveRequest
from headstart.testing import FakeEngine
from headstart.types import CacheKind
from headstart.types.request import Request


def generating(num_tokens: int, max_tokens: int) -> ActiveRequest:
    request = Request(request_id="a", prompt=[1] * num_tokens, max_tokens=max_tokens)
    return ActiveRequest(request, submitted=0.0)


@pytest.mark.parametrize(
    ("num_tokens", "max_tokens", "num_slots", "limit"),
    [
        (8, 5, 1, DraftLimit(4, "max_tokens reached")),
        (8, 1, 1, DraftLimit(0, "max_tokens reached")),
        (60, 50, 1, DraftLimit(3, "context full")),
        (63, 50, 1, DraftLimit(0, "context full")),
        (8, 50, 128, DraftLimit(0, "batch full")),
    ],
)
def test_the_narrowest_bound_is_named(
    num_tokens: int, max_tokens: int, num_slots: int, limit: DraftLimit
) -> None:
    engine = FakeEngine(context_size=64)
    assert draft_limits([generating(num_tokens, max_tokens)], engine, num_slots) == [limit]


def test_a_memory_that_takes_nothing_back_allows_no_draft() -> None:
    engine = FakeEngine(cache_kind=CacheKind.CHECKPOINT)
    engine.max_rollback = 0
    assert draft_limits([generating(8, 50)], engine, 1) == [
        DraftLimit(0, "memory takes nothing back")
    ]
