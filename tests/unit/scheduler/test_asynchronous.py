"""Where a device computes by itself, a step is counted while it computes the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from tests.harness import (
    AUTO,
    Answer,
    Model,
    endless,
    fixed,
    make_requests,
    make_scheduler,
    make_speculators,
    renamed,
    run,
    run_checked,
    steps,
    submit_all,
)
from tests.planted import fail_at

from headstart.control.controller import Controller
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.step import StepRecord
from headstart.speculators import Speculator
from headstart.types import Batch, CacheKind, Draft, DraftRequest, Logits
from headstart.types.request import ErrorEvent, FinishEvent, TokenEvent
from headstart.worker.loop import run_loop
from headstart.worker.pipes import Cancel, Command, Said

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


def counted(scheduler: Scheduler, answers: dict[str, Answer]) -> list[object]:
    """All that was counted."""
    stats = [answers[name].stats for name in sorted(answers)]
    return [
        asdict(scheduler.outcomes.total.drafts),
        [asdict(report.stats) for report in scheduler.outcomes.report()],
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
        scheduler = make_scheduler(engine, make_speculators(CHAIN), fixed(4))
        answers = run_checked(scheduler, requests)
        learned = scheduler.drafting.controller.describe()
        for model in learned["draft_models"].values():
            del model["balance"]  # counts the steps before it learned, one more with such a device
        parts = ("acceptance", "cost_ms", "draft_models")
        found.append([*counted(scheduler, answers), *(learned[part] for part in parts)])
    assert found[0] == found[1]


class NotingController(Controller):
    """Writes down when it is told what a draft model took."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def read(self, record: StepRecord) -> None:
        if any(call.catch_up is not None for call in record.plan.calls):
            self.log.append("learned")
        super().read(record)


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_control_learns_of_a_models_draft_while_a_device_verifies_it(*, is_asynchronous) -> None:
    request = endless([1, 2, 3], 30)
    engine = Device()
    engine.is_asynchronous = is_asynchronous
    model = make_speculators(("draft-model",))
    scheduler = make_scheduler(engine, model, controller=NotingController(engine.log))
    run(scheduler, [request])
    told = engine.log[engine.log.index("learned") - 1 :]
    order = ["decode", "learned", "decoded"] if is_asynchronous else ["decoded", "learned"]
    assert told[: len(order)] == order


@pytest.mark.parametrize(
    ("is_asynchronous", "log"),
    [
        (True, "decode decoded decode TokenEvent decoded decode TokenEvent decoded TokenEvent"),
        (False, "decode decoded TokenEvent decode decoded TokenEvent decode decoded TokenEvent"),
    ],
)
def test_events_go_out_while_a_device_computes_the_next_step_and_else_at_once(is_asynchronous, log):
    engine = Device()
    engine.is_asynchronous = is_asynchronous
    scheduler = make_scheduler(engine)
    scheduler.deliver = lambda: engine.log.extend(
        type(event).__name__ for event in scheduler.take_events()
    )
    scheduler.submit(endless([1, 2, 3], 3))
    for _ in steps(scheduler):
        pass
    assert engine.log == [*log.split(), "FinishEvent"]


def test_a_cancelled_request_has_counted_its_last_step() -> None:
    request = endless([1, 2, 3], 100)
    scheduler = make_scheduler(Device(), make_speculators(CHAIN), fixed(4))
    submit_all(scheduler, [request], 8)
    scheduler.cancel(request.request_id)
    scheduler.step()
    (finish,) = [e for e in scheduler.take_events() if isinstance(e, FinishEvent)]
    stats = finish.stats
    assert stats.drafts.num_drafts + stats.drafts.reasons.total() == stats.num_steps - 1 == 7


def test_a_request_whose_decode_fails_has_told_its_tokens_and_counted_its_steps() -> None:
    fail_at(engine := Device(), [5])
    scheduler = make_scheduler(engine, make_speculators(CHAIN), fixed(4))
    scheduler.submit(endless([1, 2, 3], 100))
    *tokens, end = [event for _ in steps(scheduler) for event in scheduler.take_events()]
    assert len(tokens) == 5
    assert all(isinstance(event, TokenEvent) for event in tokens)
    assert isinstance(end, ErrorEvent)
    assert end.stats is not None
    assert end.stats.drafts.num_drafts + end.stats.drafts.reasons.total() == 4  # one was planned


def told_by_loop(*commands: Sequence[Command]) -> list[list[object]]:
    """What the loop says before it takes each of these commands, and at last."""
    said, told, left = list[Said](), list[list[object]](), [*commands]

    def say() -> None:
        told.append([event for one in said if isinstance(one, list) for event in one])
        said.clear()

    def receive(seconds: float | None) -> Sequence[Command]:
        say()
        return left.pop(0)

    run_loop(make_scheduler(Device()), receive, said.append)
    say()
    return told


REQUEST, CANCEL = endless([1, 2, 3], 100), Cancel("r")


def test_the_loop_tells_all_that_was_said_before_it_stops() -> None:
    told = [event for some in told_by_loop([REQUEST], [], [], [], [None]) for event in some]
    assert sum(len(event.tokens) for event in told if isinstance(event, TokenEvent)) == 4


@pytest.mark.parametrize("last", [[[CANCEL, None]], [[CANCEL], [None]]], ids=["last", "before"])
def test_a_cancelled_request_has_its_end_told_when_the_loop_stops_or_waits(last) -> None:
    end = told_by_loop([REQUEST], [], *last)[3][-1]
    assert isinstance(end, FinishEvent)
    assert end.reason == "cancelled"


LONG = endless((i % 31 for i in range(33)), 10, "long")


class Watching(Speculator):
    """Guesses anything, and remembers what it was told at the beginning."""

    name = "watching"

    def __init__(self) -> None:
        self.began: list[list[int]] = []
        self.open: set[int] = set()

    def begin(self, seq_id: int, text: Sequence[int], namespace: str = "") -> None:
        self.began.append(list(text))
        self.open.add(seq_id)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        assert self.open.issuperset(r.seq_id for r in requests)
        return [Draft([1, 2])] * len(requests)

    def end(self, seq_id: int) -> None:
        self.open.discard(seq_id)


@pytest.mark.parametrize("spec", [fixed(4), AUTO], ids=["fixed", "auto"])
@pytest.mark.parametrize("chunk", [1, 16, 32, 64])
def test_begin_comes_with_the_first_token_and_the_first_step_has_no_draft(chunk, spec) -> None:
    """A prompt of one token, one that is all in the cache, and ones whose last token is a chunk of
    its own.
    """
    engine, watching = Model(), Watching()
    scheduler = make_scheduler(engine, [watching], spec, prefill_chunk=chunk)
    short = replace(LONG, request_id="short", prompt=[7])
    for request in (short, LONG, renamed(short, "short again"), renamed(LONG, "long again")):
        watching.began.clear()
        answers = run_checked(scheduler, [request])
        stats = answers[request.request_id].stats
        assert watching.began == [[*request.prompt, answers[request.request_id].tokens[0]]]
        assert stats.num_steps == 1 + stats.drafts.num_drafts + sum(stats.drafts.reasons.values())
    assert stats.num_cached == len(LONG.prompt) - 1


def test_a_request_that_was_put_back_begins_again_with_all_it_emitted() -> None:
    engine, watching = Model(num_cells=90), Watching()
    requests = [endless([i + 1] * 20, 30, f"{i}") for i in range(3)]
    scheduler = make_scheduler(engine, [watching])
    answers = run_checked(scheduler, requests)
    assert scheduler.counters.preemptions > 0
    texts = [[*r.prompt, *answers[r.request_id].tokens] for r in requests]
    for history in watching.began:
        assert len(history) > 20
        assert any(text[: len(history)] == history for text in texts)
    for request in requests:
        stats = answers[request.request_id].stats
        booked = stats.drafts.num_drafts + sum(stats.drafts.reasons.values())
        assert 1 + booked <= stats.num_steps <= 1 + booked + scheduler.counters.preemptions


@pytest.mark.parametrize("prompt", [[5], LONG.prompt])
def test_the_last_token_of_a_cached_prompt_is_a_row_like_any_other(prompt: list[int]) -> None:
    engine, watching = Model(), Watching()
    scheduler = make_scheduler(engine, [watching])
    run(scheduler, [replace(LONG, prompt=prompt)])
    watching.began.clear()
    only = replace(LONG, request_id="only", prompt=prompt, max_tokens=0)
    assert run(scheduler, [only])["only"].tokens == []
    assert watching.began == []  # it wanted its prompt in the cache
    scheduler.submit(replace(LONG, prompt=prompt))
    step = scheduler.step()
    assert [(one.num_rows, len(one.emitted)) for one in step.results] == [(1, 1)]
    step = scheduler.step()
    assert [(one.num_rows, one.num_outputs) for one in step.results] == [(3, 3)]
