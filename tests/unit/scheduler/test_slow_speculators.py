"""A speculator that takes longer than its drafts earn is asked rarely, and the others as before."""

from __future__ import annotations

from collections.abc import Sequence

from tests.harness import AUTO, Letters, Model, check, make_requests, run

from headstart.config import SchedulerConfig
from headstart.control.controller import Controller
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.scheduler.scheduler import Scheduler
from headstart.speculators import Speculator
from headstart.types import Batch, Draft, DraftRequest


class Time:
    """Passes only where somebody says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed(Speculator):
    """Takes so many seconds, and is never right."""

    name = "timed"

    def __init__(self, name: str, time: Time, seconds: float) -> None:
        self.name = name  # type: ignore[misc]
        self.time, self.seconds, self.num_asked = time, seconds, 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.time.now += self.seconds
        self.num_asked += 1
        return [Draft([30] * request.max_tokens) for request in requests]


class TimedModel(Model):
    """A row takes a millisecond."""

    def __init__(self, time: Time) -> None:
        super().__init__(2)
        self.time = time

    def launch(self, batch: Batch) -> None:
        self.time.now += 0.001 * batch.num_rows
        super().launch(batch)


def test_a_slow_speculator_costs_the_others_nothing() -> None:
    time = Time()
    slow, fast = Timed("slow", time, 0.05), Timed("fast", time, 0.000002)
    engine, requests = TimedModel(time), make_requests(4, max_tokens=60)
    guarded = [GuardedSpeculator(s, engine.vocab_size, time) for s in (slow, fast)]
    drafting = Drafting(guarded, AUTO, Controller(), clock=time)
    scheduler = Scheduler(engine, Letters(), drafting, SchedulerConfig(parallel=1), time)
    answers = run(scheduler, requests)
    check(engine, requests, answers)
    num_steps = sum(answer.finish.stats.num_steps for answer in answers.values())
    assert num_steps > 100
    assert slow.num_asked < 0.1 * num_steps
    assert fast.num_asked > 0.9 * (num_steps - 2 * len(requests))
