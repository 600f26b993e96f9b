"""Where a device computes by itself, a step is counted while it computes the next one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from tests.harness import (
    Answer,
    Model,
    check,
    fixed,
    make_requests,
    make_scheduler,
    make_speculators,
    run,
)

from headstart.config import SpeculationConfig
from headstart.control.controller import Controller
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.step import StepRecord
from headstart.types import Batch, CacheKind, Logits
from headstart.types.errors import EngineError
from headstart.types.request import ErrorEvent, FinishEvent, StepTokens, TokenEvent
from headstart.worker.loop import run_loop
from headstart.worker.messages import Cancel, Command, Message, Stop

CHAIN = ("ngram-simple", "suffix", "draft-model")


class Device(Model):
    """Computes by itself, and writes down what happens when."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(2, **settings)
        self.is_asynchronous = True
        self.log: list[str] = []

    def launch(self, batch: Batch) -> None:
        self.log.append("decode")
        super().launch(batch)

    def wait(self) -> Logits:
        self.log.append("decoded")
        return super().wait()


def drafting_scheduler(
    engine: Model, spec: SpeculationConfig | None = None, **limits: int
) -> Scheduler:
    chain = make_speculators(CHAIN, lambda: Model(2, skew=0.3))
    return make_scheduler(engine, chain, spec, **limits)


def counted(scheduler: Scheduler, answers: dict[str, Answer]) -> list[object]:
    """All that was counted."""
    stats = [answers[name].finish.stats for name in sorted(answers)]
    return [
        asdict(scheduler.counts.stats),
        [asdict(report.stats) for report in scheduler.counts.report()],
        [(one.num_emitted, one.num_steps, asdict(one.drafts)) for one in stats],
        [{name: asdict(s) for name, s in one.by_speculator.items()} for one in stats],
    ]


@pytest.mark.parametrize("cache_kind", [CacheKind.CUT, CacheKind.ROLLBACK])
def test_texts_and_counts_are_those_of_a_device_that_is_waited_for(cache_kind: CacheKind) -> None:
    requests = make_requests(12)
    found = []
    for is_asynchronous in (False, True):
        engine = Device(cache_kind=cache_kind)
        engine.is_asynchronous = is_asynchronous
        engine.padding_sequence = None  # control learns a step later when rows are added
        scheduler = drafting_scheduler(engine, fixed(4))
        answers = run(scheduler, requests)
        check(engine, requests, answers)
        learned = scheduler.drafting.controller.describe()
        parts = ("acceptance", "cost_ms", "draft_models")
        found.append([*counted(scheduler, answers), *(learned[part] for part in parts)])
    assert found[0] == found[1]


class NotingController(Controller):
    """Writes down when it is told what a draft model took."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def read(self, record: StepRecord) -> None:
        if any(call.run is not None for call in record.plan.calls):
            self.log.append("learned")
        super().read(record)


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_control_learns_of_a_models_draft_while_a_device_verifies_it(
    *, is_asynchronous: bool
) -> None:
    (request,) = make_requests(1, max_tokens=30)
    request = replace(request, sampling=replace(request.sampling, ignore_eos=True))
    engine = Device()
    engine.is_asynchronous = is_asynchronous
    model = make_speculators(("draft-model",), lambda: Model(2, skew=0.3))
    scheduler = make_scheduler(engine, model, controller=NotingController(engine.log))
    run(scheduler, [request])
    told = engine.log[engine.log.index("learned") - 1 :]
    order = ["decode", "learned", "decoded"] if is_asynchronous else ["decoded", "learned"]
    assert told[: len(order)] == order


def test_events_go_out_while_the_next_step_is_computed_and_the_last_ones_at_once() -> None:
    (request,) = make_requests(1, max_tokens=3)
    request = replace(request, sampling=replace(request.sampling, ignore_eos=True))
    engine = Device()
    scheduler = make_scheduler(engine)

    def deliver() -> None:
        engine.log += [type(event).__name__ for event in scheduler.take_events()]

    scheduler.deliver = deliver
    scheduler.submit(request)
    while scheduler.has_work:
        scheduler.step()
    assert engine.log == [
        *("decode", "decoded"),
        *("decode", "TokenEvent", "decoded"),
        *("decode", "TokenEvent", "decoded", "TokenEvent", "FinishEvent"),
    ]


def test_events_go_out_at_once_where_the_processor_computes() -> None:
    (request,) = make_requests(1, max_tokens=2)
    request = replace(request, sampling=replace(request.sampling, ignore_eos=True))
    engine = Device()
    engine.is_asynchronous = False
    scheduler = make_scheduler(engine)
    scheduler.deliver = lambda: engine.log.extend(
        type(event).__name__ for event in scheduler.take_events()
    )
    scheduler.submit(request)
    scheduler.step()
    assert engine.log == ["decode", "decoded", "TokenEvent"]


def test_a_cancelled_request_has_counted_its_last_step() -> None:
    (request,) = make_requests(1, max_tokens=100)
    request = replace(request, sampling=replace(request.sampling, ignore_eos=True))
    scheduler = drafting_scheduler(Device(), fixed(4))
    scheduler.submit(request)
    for _ in range(8):
        scheduler.step()
    scheduler.cancel(request.request_id)
    scheduler.step()
    (finish,) = [e for e in scheduler.take_events() if isinstance(e, FinishEvent)]
    stats = finish.stats
    assert stats.drafts.num_drafts + stats.drafts.reasons.total() == stats.num_steps - 1 == 7


def test_a_request_whose_decode_fails_has_told_its_tokens_and_counted_its_steps() -> None:
    (request,) = make_requests(1, max_tokens=100)
    request = replace(request, sampling=replace(request.sampling, ignore_eos=True))
    turns = itertools.count()

    def fail(batch: Batch) -> None:
        if next(turns) == 5:
            raise EngineError("broken")

    engine = Device()
    engine.fail = fail
    scheduler = drafting_scheduler(engine, fixed(4))
    events: list[object] = []
    scheduler.deliver = lambda: events.extend(scheduler.take_events())
    scheduler.submit(request)
    while scheduler.has_work:
        scheduler.step()
    *tokens, end = events
    assert len(tokens) == 5
    assert all(isinstance(event, TokenEvent) for event in tokens)
    assert isinstance(end, ErrorEvent)
    assert end.stats is not None
    assert end.stats.drafts.num_drafts + end.stats.drafts.reasons.total() == 4  # one was planned


def test_the_loop_tells_all_that_was_said_before_it_stops() -> None:
    (request,) = make_requests(1, max_tokens=100)
    request = replace(request, sampling=replace(request.sampling, ignore_eos=True))
    commands: list[Sequence[Command]] = [[request], [], [], [], [Stop()]]
    messages: list[Message] = []
    scheduler = make_scheduler(Device())
    run_loop(scheduler, lambda _: commands.pop(0), messages.append)
    told = [e for message in messages for e in message.events if isinstance(e, StepTokens)]
    assert sum(len(event.tokens) for event in told) == 4


def test_a_request_that_is_cancelled_when_the_loop_stops_has_its_end_told() -> None:
    (request,) = make_requests(1, max_tokens=100)
    request = replace(request, sampling=replace(request.sampling, ignore_eos=True))
    commands: list[Sequence[Command]] = [[request], [], [Cancel(request.request_id), Stop()]]
    messages: list[Message] = []
    run_loop(make_scheduler(Device()), lambda _: commands.pop(0), messages.append)
    *_, end = (event for message in messages for event in message.events)
    assert isinstance(end, FinishEvent)
    assert end.reason == "cancelled"


def test_the_loop_tells_of_a_cancelled_request_though_no_step_follows() -> None:
    (request,) = make_requests(1, max_tokens=100)
    request = replace(request, sampling=replace(request.sampling, ignore_eos=True))
    steps: list[Callable[[], Sequence[Command]]] = [
        lambda: [request],
        list,
        lambda: [Cancel(request.request_id)],
    ]
    messages: list[Message] = []
    scheduler = make_scheduler(Device())

    def receive(seconds: float | None) -> Sequence[Command]:
        if steps:
            return steps.pop(0)()
        assert any(isinstance(e, FinishEvent) for message in messages for e in message.events)
        return [Stop()]

    run_loop(scheduler, receive, messages.append)
