"""A child as a process: what it says is heard, and it ends when it should."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.gateway.router.fakes import preset

from headstart.gateway.router import child
from headstart.gateway.router.child import ChildProcess

HELLO = """
import os, signal, sys, time
from headstart.app.parent import Parent
parent = Parent.of(os.environ)
assert "HEADSTART_ROUTER" not in os.environ
print("hello from", os.environ["HEADSTART_API_KEY"][:0] + "a child", flush=True)
"""
LIVES = HELLO + "parent.follow(); parent.tell('loaded', url='x'); time.sleep(60)"
IS_STUBBORN = HELLO + "signal.signal(15, lambda *_: None); parent.tell('loaded'); time.sleep(60)"
FAILS = HELLO + "parent.tell('failed', message='no'); sys.exit(3)"
HAS_A_CHILD = HELLO + (
    "import subprocess; one = subprocess.Popen(['sleep', '60']); "
    "parent.tell('loaded', url=str(one.pid)); time.sleep(60)"
)


class Heard:
    def __init__(self) -> None:
        self.states: list[Mapping[str, Any]] = []
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.news = asyncio.Event()

    def on_state(self, state: Mapping[str, Any]) -> None:
        self.states.append(state)
        self.news.set()

    def on_exit(self, code: int) -> None:
        self.code.set_result(code)


def is_running(pid: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch):
    def run(script: str, **more) -> tuple[ChildProcess, Heard]:
        monkeypatch.setattr(child, "command", lambda *_: [sys.executable, "-c", script])
        heard = Heard()
        environment = dict(os.environ)
        own = preset("m", environment=environment, **more)
        return ChildProcess(own, (), heard.on_state, heard.on_exit), heard

    return run


async def test_a_child_says_how_it_is_doing_and_ends_when_asked(run, capfd) -> None:
    process, heard = run(LIVES)
    await asyncio.wait_for(heard.news.wait(), 20)
    assert heard.states == [{"state": "loaded", "url": "x"}]
    process.stop()
    assert await asyncio.wait_for(heard.code, 20) == -15
    assert "[m] hello from a child" in capfd.readouterr().err


async def test_a_child_that_fails_says_why(run) -> None:
    _, heard = run(FAILS)
    assert await asyncio.wait_for(heard.code, 20) == 3
    assert heard.states == [{"state": "failed", "message": "no"}]


async def test_a_child_that_does_not_end_is_killed_after_its_seconds(run) -> None:
    process, heard = run(IS_STUBBORN, stop_seconds=0.1)
    await asyncio.wait_for(heard.news.wait(), 20)
    process.stop()
    assert await asyncio.wait_for(heard.code, 20) == -9


async def test_a_child_may_be_stopped_before_there_is_a_process(run) -> None:
    process, heard = run(IS_STUBBORN)
    process.kill()
    assert await asyncio.wait_for(heard.code, 20) == -9


async def test_what_a_child_has_started_ends_with_it(run) -> None:
    process, heard = run(HAS_A_CHILD)
    await asyncio.wait_for(heard.news.wait(), 20)
    grandchild = int(heard.states[0]["url"])
    process.kill()
    await asyncio.wait_for(heard.code, 20)
    while is_running(grandchild):
        await asyncio.sleep(0.01)


async def test_a_command_that_cannot_be_run_is_a_failure(monkeypatch) -> None:
    monkeypatch.setattr(child, "command", lambda *_: ["/nowhere/python"])
    heard = Heard()
    ChildProcess(preset("m", environment={}), (), heard.on_state, heard.on_exit)
    assert await asyncio.wait_for(heard.code, 20) == 1
    assert "no process can be made" in heard.states[0]["message"]
