"""Failures stay where they happen."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.harness import (
    AUTO,
    Model,
    Oracle,
    check,
    collect,
    make_requests,
    make_scheduler,
    make_speculators,
    renamed,
    run,
)

from headstart.control.controller import Controller
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.warm_up import WarmUp
from headstart.speculators import Speculator
from headstart.types import Batch, Draft, DraftRequest
from headstart.types.errors import EngineError
from headstart.worker.loop import make_report


def test_a_failed_decode_fails_its_requests_only() -> None:
    requests = make_requests(12)
    engine = Model()
    failing = iter([False] * 9 + [True] + [False] * 10_000)

    def fail(batch: Batch) -> None:
        if next(failing):
            raise EngineError("the graph could not be computed")

    engine.fail = fail
    scheduler = make_scheduler(engine, make_speculators(["suffix"], Model))
    answers = run(scheduler, requests)
    failed = [r.request_id for r in requests if answers[r.request_id].error]
    assert 1 <= len(failed) <= 4
    assert {answers[name].reason for name in failed} == {"EngineError"}
    assert scheduler.counters.requests_failed == len(failed)
    engine.fail = None
    check(engine, [r for r in requests if r.request_id not in failed], answers)


def test_after_a_failed_decode_nothing_of_it_is_reused() -> None:
    """What the cache holds after a failure is unknown, so the slots start anew."""
    requests = make_requests(2)
    engine = Model()
    scheduler = make_scheduler(engine, [Oracle(engine, requests)])
    for request in requests:
        scheduler.submit(request)
    scheduler.step()

    def fail(batch: Batch) -> None:
        engine.cache[0].append(7)  # half a decode
        raise EngineError("x")

    engine.fail = fail
    scheduler.step()
    engine.fail = None
    scheduler.take_events()
    answers = run(scheduler, requests)
    check(engine, requests, answers)


def test_unknown_and_finished_requests_can_be_cancelled() -> None:
    requests = make_requests(2)
    engine = Model()
    scheduler = make_scheduler(engine)
    answers = run(scheduler, requests)
    for name in ("nobody", requests[0].request_id):
        scheduler.cancel(name)
    collect(scheduler, answers)  # which accepts no second end
    check(engine, requests, answers)
    assert not scheduler.step().num_emitted  # nothing to do is no error


@pytest.mark.parametrize(
    "method", ["begin", "survival", "share", "read", "label", "prompt_rows", "end"]
)
def test_control_that_fails_ends_drafts_and_no_request(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count()

    def failing(self: Controller, *arguments: object, **named: object) -> object:
        if next(calls) == 5:
            raise ValueError("math domain error")
        return original(self, *arguments, **named)

    original = getattr(Controller, method)
    monkeypatch.setattr(Controller, method, failing)
    engine, requests = Model(2), make_requests(12)
    scheduler = make_scheduler(engine, [Oracle(engine, requests)], AUTO, Controller())
    check(engine, requests, run(scheduler, requests))
    assert scheduler.drafting.describe_control()["failure"] == "ValueError: math domain error"
    later = [renamed(request, f"later {request.request_id}") for request in requests]
    answers = run(scheduler, later)
    check(engine, later, answers)
    for request in later:
        drafts = answers[request.request_id].finish.stats.drafts
        assert drafts.num_drafts == 0
        assert set(drafts.reasons) <= {"control failed"}


@pytest.mark.parametrize("method", ["describe", "save"])
def test_control_that_cannot_say_what_it_knows_ends_drafts_and_not_the_engine(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Controller, *arguments: object) -> object:
        raise ValueError("math domain error")

    engine, requests = Model(2), make_requests(4)
    scheduler = make_scheduler(engine, [Oracle(engine, requests)], AUTO, Controller())
    drafting = Drafting([], AUTO, scheduler.drafting.controller, state=tmp_path / "state")
    monkeypatch.setattr(Controller, method, failing)
    drafting.save()
    drafting.close()
    assert drafting.describe_control() == {"failure": "ValueError: math domain error"}
    make_report(scheduler)
    check(engine, requests, run(scheduler, requests))


def test_control_that_fails_on_what_the_warm_up_timed_ends_drafts_and_not_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(self: Controller, *arguments: object) -> None:
        raise ValueError("math domain error")

    monkeypatch.setattr(Controller, "learn_costs", failing)
    engine, requests = Model(2), make_requests(4)
    scheduler = make_scheduler(engine, [Oracle(engine, requests)], AUTO)
    seconds = itertools.count(0.0, 0.001)
    WarmUp(engine, scheduler.drafting, scheduler.cells, lambda: next(seconds), 1.0).go_on()
    assert scheduler.drafting.failure == "ValueError: math domain error"
    check(engine, requests, run(scheduler, requests))


class Listener(Speculator):
    """Notes which sequences it is told of without having been told that they begin."""

    name = "listener"

    def __init__(self) -> None:
        self.known, self.strangers = set[int](), list[int]()

    def begin(self, seq_id: int, prompt: Sequence[int], namespace: str = "") -> None:
        self.known.add(seq_id)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft(reason="no match")] * len(requests)

    def accept(self, seq_id: int, tokens: Sequence[int], num_accepted: int) -> None:
        if seq_id not in self.known:
            self.strangers.append(seq_id)

    def end(self, seq_id: int) -> None:
        if seq_id not in self.known:
            self.strangers.append(seq_id)


def test_speculators_are_not_told_of_a_sequence_that_control_failed_to_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(self: Controller, number: int, namespace: str) -> None:
        raise ValueError("math domain error")

    monkeypatch.setattr(Controller, "begin", failing)
    engine, requests, listener = Model(2), make_requests(2), Listener()
    scheduler = make_scheduler(engine, [listener], AUTO)
    check(engine, requests, run(scheduler, requests))
    assert not listener.strangers
