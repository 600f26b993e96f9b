"""The engine's loop keeps what control learned, and ends in time, which is told once."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import pytest
from tests.harness import Model, make_requests, make_scheduler
from tests.planted import noted
from tests.unit.scheduler.test_embedding import FakeEmbedder
from tests.unit.scheduler.test_transport import hang, refuse

from headstart.scheduler.scheduler import WAIT_SECONDS, Scheduler
from headstart.scheduler.warm_up import WarmUp
from headstart.types.report import WorkerReport
from headstart.types.request import (
    EmbeddingRequest,
    Event,
    FinishEvent,
    ProgressEvent,
    Request,
)
from headstart.worker import transport as transport_module
from headstart.worker.embedding import EmbeddingQueue
from headstart.worker.loop import SAVE_SECONDS, run_loop
from headstart.worker.pipes import Command, Said
from headstart.worker.transport import QUIET_SECONDS, STOP_SECONDS, ProcessTransport


class ScriptedCommands:
    """Commands at given seconds. Time passes while the loop waits, and a second with each look for
    commands.
    """

    def __init__(self, *commands: tuple[float, Command]) -> None:
        self.now = 0.0
        self.saves: list[float] = []
        self.said: list[Said] = []
        self._commands = list(commands)

    def clock(self) -> float:
        return self.now

    def receive(self, seconds: float | None) -> Sequence[Command]:
        following = self._commands[0][0]
        if seconds == 0.0:
            self.now += 1.0
        else:
            self.now = max(
                self.now, following if seconds is None else min(following, self.now + seconds)
            )
        due = [command for at, command in self._commands if at <= self.now]
        del self._commands[: len(due)]
        return due

    def run(self) -> list[float]:
        """When something was written before the end."""
        scheduler = make_scheduler(Model())
        drafting = scheduler.drafting
        drafting.save = lambda: self.saves.append(self.now)
        drafting.close = lambda: None
        run_loop(scheduler, self.receive, self.said.append, self.clock)
        return self.saves[:-1]


def request(number: int, max_tokens: int) -> Request:
    (made,) = make_requests(1, max_tokens=max_tokens)
    return replace(made, request_id=f"r{number}", sampling=replace(made.sampling, ignore_eos=True))


def events_of(said: Sequence[Said]) -> list[Event]:
    return [event for one in said if isinstance(one, list) for event in one]


def test_a_report_is_sent_at_the_end_of_an_answer_and_not_with_each_piece_of_its_prompt() -> None:
    (made,) = make_requests(1, max_tokens=5)
    commands: list[Command] = [replace(made, prompt=(1,) * 3000, wants_progress=True)]
    said = list[Said]()

    def receive(seconds: float | None) -> Sequence[Command]:
        if any(isinstance(event, FinishEvent) for event in events_of(said)):
            return [None]
        return [commands.pop()] if commands else []

    run_loop(make_scheduler(Model(context_size=4096)), receive, said.append, lambda: 0.0)
    events = events_of(said)
    assert sum(isinstance(event, ProgressEvent) for event in events) > 5
    at_the_start, at_the_end = (at for at, one in enumerate(said) if isinstance(one, WorkerReport))
    assert at_the_start == 0
    *_, end = events_of(said[at_the_end:])
    assert isinstance(end, FinishEvent)


def test_texts_are_embedded_without_pauses_while_a_file_is_read() -> None:
    class Reading:
        """A file that is read all the time."""

        has_work = True

        def answers(self, seconds: float) -> list[Event]:
            waits.append(seconds)
            return []

    scheduler, said, waits = make_scheduler(Model()), list[Said](), list[float]()
    scheduler.media = Reading()
    scheduler.embeddings = EmbeddingQueue(FakeEmbedder(), scheduler.counters, lambda: 0.0)
    commands: list[Command] = [EmbeddingRequest("r", ((1,) * 8,) * 5)]

    def receive(seconds: float | None) -> Sequence[Command]:
        return [commands.pop()] if commands else [None] * any(map(events_of, [said]))

    run_loop(scheduler, receive, said.append, lambda: 0.0)
    assert waits == [0.0] * 4 + [WAIT_SECONDS]


@pytest.mark.parametrize("num_tokens", [5, 300], ids=["idle", "busy"])
def test_what_was_learned_is_written_within_a_minute_and_while_requests_run(num_tokens) -> None:
    saves = ScriptedCommands((0.0, request(1, num_tokens)), (290.0, None)).run()
    assert len(saves) == (1 if num_tokens == 5 else 4)
    for before, after in zip([0.0, *saves], saves, strict=False):
        assert SAVE_SECONDS <= after - before < SAVE_SECONDS + 4


def test_nothing_is_written_while_there_is_nothing_new() -> None:
    for asked in ([], [(10.0, request(1, 5)), (1000.0, request(2, 5))]):
        assert len(ScriptedCommands(*asked, (10_000.0, None)).run()) == len(asked)


def test_requests_that_come_in_hundreds_are_taken_a_few_before_each_step(monkeypatch) -> None:
    class Slow(ScriptedCommands):
        def clock(self) -> float:
            self.now += 0.001
            return self.now

    done = list[str]()
    for name in ("submit", "step"):
        noted(monkeypatch, Scheduler, name, note=lambda *_, name=name: done.append(name))
    Slow(*[(10.0, request(number, 5)) for number in range(300)], (1000.0, None)).run()
    assert done.count("submit") == 300
    assert "step" in done
    assert " submit" * 5 not in " ".join(done)


class SlowWarmUp(WarmUp):
    """Needs so many looks for a request; notes when it went on, and when somebody asked."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float], num_looks: int) -> None:
        super().__init__(scheduler.engine, scheduler.drafting, scheduler.cells, clock, 7.0)
        self.seen: list[tuple[int, bool]] = []
        self._now, self._left = clock, num_looks

    def go_on(self, is_interrupted: Callable[[], bool] = lambda: False) -> None:
        while self._left:
            self._left -= 1
            self.seen.append((int(self._now()), is_interrupted()))
            if self.seen[-1][1]:
                return
        self._tasks.clear()


def warmed_up(num_looks: int, *commands: tuple[float, Command]) -> list[tuple[int, bool]]:
    script, scheduler = ScriptedCommands(*commands), make_scheduler(Model())
    scheduler.warm_up = warm_up = SlowWarmUp(scheduler, script.clock, num_looks)
    run_loop(scheduler, script.receive, script.said.append, script.clock)
    reports = [one for one in script.said if isinstance(one, WorkerReport)]
    assert script.said[0] is reports[0], "it is ready before"
    assert [r.control["is_warmed_up"] for r in (reports[0], reports[-1])] == [False, True]
    events = events_of(script.said)
    assert sum(isinstance(event, FinishEvent) for event in events) == len(commands) - 1
    assert warm_up.is_done
    return warm_up.seen


def test_what_steps_cost_is_measured_after_readiness_and_a_request_comes_first() -> None:
    seen = warmed_up(6, (2.5, request(1, 5)), (10_000.0, None))
    assert seen[:3] == [(0, False), (1, False), (2, True)]
    times = [at for at, _ in seen]
    assert times[3] >= times[2] + 5, "it goes on when the request is over"
    assert not any(wanted for _, wanted in seen[3:])


def test_a_server_started_by_its_first_request_measures_afterwards() -> None:
    seen = warmed_up(3, (0.0, request(1, 5)), (0.1, request(2, 5)), (10_000.0, None))
    assert [wanted for _, wanted in seen] == [False] * 3
    assert 5 <= seen[0][0] < 30


class LongStep:
    """An engine process that ends by itself after some time, or when it is killed."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds
        self.was_killed = False
        self.sentinel = self

    def join(self) -> None:
        self.left = 0.0

    def ends(self, seconds: float) -> bool:
        """Whether it ends within this time, which passes."""
        self.left -= seconds
        return self.left <= 0.0

    def kill(self) -> None:
        self.left, self.was_killed = 0.0, True


@pytest.mark.parametrize(
    ("seconds", "is_ready", "is_killed", "num_lines"),
    [
        (0.5 * QUIET_SECONDS, True, False, 0),
        (0.9 * STOP_SECONDS, True, False, 1),
        (1.1 * STOP_SECONDS, True, True, 2),
        (0.9 * STOP_SECONDS, False, True, 1),  # it has learned nothing yet
    ],
)
def test_an_engine_has_time_to_end_its_step_and_the_log_says_what_is_waited_for(
    seconds: float, is_ready: bool, is_killed: bool, num_lines: int, caplog, monkeypatch
) -> None:
    """What was learned is not written between two chunks of a prompt, however long they take."""
    transport = ProcessTransport(lambda: pytest.fail("not started"))
    transport._process, transport._is_ready = LongStep(seconds), is_ready
    monkeypatch.setattr(transport_module, "wait", lambda ones, left: ones[0].ends(left))
    with caplog.at_level(logging.INFO):
        transport.close()
    assert transport._process.was_killed is is_killed
    assert len(caplog.records) == num_lines


def test_an_engine_that_was_never_started_is_closed() -> None:
    transport = ProcessTransport(lambda: pytest.fail("not started"))
    transport.kill()
    transport.close()


def test_a_stop_waits_for_the_slot_file_that_is_being_written() -> None:
    scheduler, file = make_scheduler(Model()), Future[int]()
    scheduler.slot_actions.file = file
    written = threading.Timer(0.1, file.set_result, (1,))
    written.start()
    run_loop(scheduler, lambda _: [None], lambda _: None)
    is_written = file.done()
    written.join()
    assert is_written


async def test_an_engine_that_failed_is_gone_when_its_end_is_told_whatever_its_threads_do() -> None:
    """Otherwise the next one may find no memory."""
    engine = ProcessTransport(partial(hang, 3600.0))
    end = asyncio.get_running_loop().create_future()
    engine.start(end.set_result)
    assert str(await asyncio.wait_for(end, 60)) == "no"
    assert engine._process.exitcode is not None
    engine.close()


async def test_an_engine_that_ended_is_not_said_to_be_killed_if_another_thread_saw_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ProcessTransport(refuse)
    end = asyncio.get_running_loop().create_future()
    engine.start(end.set_result)
    await asyncio.wait_for(end, 60)
    engine._is_ready = True
    popen = engine._process._popen
    monkeypatch.setattr(popen, "returncode", None)  # not written yet, but it was waited for
    with caplog.at_level(logging.WARNING):
        engine.close()
    assert not caplog.records
