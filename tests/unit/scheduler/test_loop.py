"""The engine's loop keeps what control learned, and can be stopped in time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.harness import Model, make_requests, make_scheduler

from headstart.scheduler.loop import SAVE_SECONDS, run_loop
from headstart.scheduler.messages import Command, Message, Stop
from headstart.scheduler.request import FinishEvent, Request
from headstart.scheduler.transport import QUIET_SECONDS, STOP_SECONDS, ProcessTransport


class ScriptedCommands:
    """Commands at given seconds. Time passes while the loop waits, and a second with each look for
    commands.
    """

    def __init__(self, *commands: tuple[float, Command]) -> None:
        self.now = 0.0
        self.saves: list[float] = []
        self.messages: list[Message] = []
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
        run_loop(scheduler, self.receive, self.messages.append, self.clock)
        return self.saves


def request(number: int, max_tokens: int) -> Request:
    (made,) = make_requests(1, max_tokens=max_tokens)
    return replace(made, request_id=f"r{number}", sampling=replace(made.sampling, ignore_eos=True))


def test_what_was_learned_is_written_when_the_first_request_is_over() -> None:
    (saved,) = ScriptedCommands((10.0, request(1, 5)), (10_000.0, Stop())).run()
    assert 10.0 < saved < 20.0


def test_a_server_that_is_always_busy_keeps_what_it_learned_every_minute() -> None:
    saves = ScriptedCommands((0.0, request(1, 300)), (290.0, Stop())).run()
    assert len(saves) == 4
    for before, after in zip([0.0, *saves], saves, strict=False):
        assert SAVE_SECONDS <= after - before < SAVE_SECONDS + 3


def test_what_the_last_request_taught_is_written_within_a_minute_although_nobody_asks() -> None:
    first, second = ScriptedCommands(
        (0.0, request(1, 5)), (10.0, request(2, 5)), (10_000.0, Stop())
    ).run()
    assert second - first == pytest.approx(SAVE_SECONDS)


def test_nothing_is_written_while_there_is_nothing_new() -> None:
    assert ScriptedCommands((10_000.0, Stop())).run() == []
    assert (
        len(
            ScriptedCommands(
                (10.0, request(1, 5)), (1000.0, request(2, 5)), (10_000.0, Stop())
            ).run()
        )
        == 2
    )


def test_what_steps_cost_is_measured_after_readiness_and_a_request_comes_first() -> None:
    seen: list[bool] = []

    class Watched(ScriptedCommands):
        def run(self) -> list[float]:
            scheduler = make_scheduler(Model())
            scheduler.warm_up_seconds = 7.0

            def warm_up(seconds: float, is_interrupted: Callable[[], bool]) -> None:
                assert seconds == 7.0
                assert self.messages, "the first report comes before"
                while not is_interrupted():
                    seen.append(False)
                seen.append(True)

            scheduler.warm_up = warm_up  # type: ignore[method-assign]
            run_loop(scheduler, self.receive, self.messages.append, self.clock)
            assert scheduler.warm_up_seconds == 0.0
            return []

    commands = Watched((3.0, request(1, 5)), (10_000.0, Stop()))
    commands.run()
    assert seen == [False, False, True]
    events = [event for message in commands.messages for event in message.events]
    assert isinstance(events[-1], FinishEvent)


class LongStep:
    """An engine process that ends by itself after some time, or when it is killed."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds
        self.was_killed = False

    def join(self, timeout: float | None = None) -> None:
        self.left -= self.left if timeout is None else timeout

    def is_alive(self) -> bool:
        return self.left > 0

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
    seconds: float,
    is_ready: bool,
    is_killed: bool,
    num_lines: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was learned is not written between two chunks of a prompt, however long they take."""
    transport = ProcessTransport(lambda: pytest.fail("not started"))
    transport._process, transport._is_ready = LongStep(seconds), is_ready
    with caplog.at_level(logging.INFO):
        transport.close()
    assert transport._process.was_killed is is_killed
    assert len(caplog.records) == num_lines


def test_an_engine_that_was_never_started_is_closed() -> None:
    transport = ProcessTransport(lambda: pytest.fail("not started"))
    transport.kill()
    transport.close()
