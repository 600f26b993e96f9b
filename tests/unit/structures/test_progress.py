"""Long work says how far it is; short work is silent."""

from __future__ import annotations

import io
import logging

import pytest

from headstart.structures.progress import Progress
from headstart.types.report import SlotReport
from headstart.worker.request_log import PromptLog


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_every_two_seconds_a_terminal_shows_a_line_that_moves_and_goes() -> None:
    clock, terminal = Clock(), Terminal()
    progress = Progress(clock, terminal)
    for clock.now in (0.5, 1.9):
        progress.tell("early")
    progress.end()
    assert terminal.getvalue() == ""
    for clock.now in (2.0, 3.0, 4.1):
        progress.tell(f"at {clock.now}")
    progress.end()
    assert terminal.getvalue() == "\rat 2.0\x1b[K\rat 4.1\x1b[K\r\x1b[K"


def test_a_long_prompt_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    prompts = PromptLog(clock)
    for step in range(13):
        clock.now = step / 2
        slot = SlotReport(
            slot_id=0,
            request_id="r",
            is_processing=True,
            num_prompt=12_000,
            num_processed=1000 * step,
        )
        prompts.note([slot])
    assert caplog.messages == [
        "request r: prompt, 4000 of 12000 tokens",
        "request r: prompt, 8000 of 12000 tokens",
    ]
