"""Requests with different adapters never share a decode, and none waits for ever."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.harness import sequence_of

from headstart.scheduler.adapter_turns import STEPS, AdapterTurns, Scales
from headstart.types.request import Request


@dataclass
class Used:
    """Remembers what was applied."""

    calls: list[Scales] = field(default_factory=list)


def active(*scales: float) -> Any:
    return sequence_of(Request(request_id="r", prompt=(1,), adapters=scales))


def test_requests_without_scales_change_nothing() -> None:
    used = Used()
    turns = AdapterTurns(used.calls.append)
    running = [active(), active()]
    for _ in range(3 * STEPS):
        assert turns.choose(running) == running
    assert used.calls == []


def test_sets_take_turns() -> None:
    used = Used()
    turns = AdapterTurns(used.calls.append)
    running = [active(0.5), active(), active(0.5), active(1.0)]
    served: list[int] = [0] * 4
    for _ in range(6 * STEPS):
        sharing = turns.choose(running)
        assert len({one.request.adapters for one in sharing}) == 1
        assert sharing
        for index, one in enumerate(running):
            served[index] += one in sharing
    assert served == [2 * STEPS] * 4
    assert len(used.calls) in (5, 6)


def test_who_is_alone_is_not_interrupted() -> None:
    used = Used()
    turns = AdapterTurns(used.calls.append)
    for _ in range(3 * STEPS):
        turns.choose([active(0.5)])
    assert used.calls == [(0.5,)]
    turns.choose([])
    assert used.calls == [(0.5,)]
