"""How long a slot's draft may be, and what to say when there is no room for one."""

from __future__ import annotations

import pytest

from headstart.sampling.params import SamplingParams
from headstart.sampling.sampler import Sampler
from headstart.scheduler.batching import DraftLimit, draft_rooms
from headstart.scheduler.request import Request
from headstart.scheduler.slot import ActiveRequest, Slot
from headstart.testing import FakeEngine
from headstart.types import MemoryKind


def slot(engine: FakeEngine, num_tokens: int, max_tokens: int) -> Slot:
    request = Request(
        request_id="a", prompt=[1] * num_tokens, sampling=SamplingParams(), max_tokens=max_tokens
    )
    return Slot(0, ActiveRequest(request, Sampler(request.sampling, engine, ()), 0.0))


@pytest.mark.parametrize(
    ("num_tokens", "max_tokens", "num_slots", "room"),
    [
        (8, 5, 1, DraftLimit(4, "max_tokens reached")),
        (8, 1, 1, DraftLimit(0, "max_tokens reached")),
        (60, 50, 1, DraftLimit(3, "context full")),
        (63, 50, 1, DraftLimit(0, "context full")),
        (8, 50, 128, DraftLimit(0, "batch full")),
    ],
)
def test_the_narrowest_bound_is_named(
    num_tokens: int, max_tokens: int, num_slots: int, room: DraftLimit
) -> None:
    engine = FakeEngine(context_size=64)
    assert draft_rooms([slot(engine, num_tokens, max_tokens)], engine, num_slots) == [room]


def test_a_memory_that_takes_nothing_back_leaves_no_room() -> None:
    engine = FakeEngine(memory=MemoryKind.CHECKPOINT)
    assert draft_rooms([slot(engine, 8, 50)], engine, 1) == [
        DraftLimit(0, "memory takes nothing back")
    ]
