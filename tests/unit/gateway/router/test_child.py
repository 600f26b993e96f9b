"""A router's models and downloads: a process each."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.gateway.backends import cut_lines, writing
from tests.unit.gateway.router.fakes import FakeStore, cached, loaded, preset, use
from tests.unit.gateway.router.test_app import NAMED, router

from headstart.gateway.router import child, downloads
from headstart.gateway.router.child import ChildProcess

HELLO = """
import os, signal, sys, time
from headstart.app.process import Parent
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


async def test_a_child_goes_on_where_the_routers_log_cannot_be_written(run, monkeypatch) -> None:
    class Full:
        def write(self, text: str) -> None:
            raise OSError(28, "No space left on device")

    lines = "[print('x' * 1000) for _ in range(1000)]; "
    monkeypatch.setattr(sys, "stderr", Full())
    process, heard = run(HELLO + lines + "parent.tell('loaded', url='x'); time.sleep(60)")
    await asyncio.wait_for(heard.news.wait(), 20)
    process.stop()
    assert await asyncio.wait_for(heard.code, 20) == -15


async def test_a_child_goes_on_after_a_line_that_is_too_long_to_be_logged(run, capfd):
    _, heard = run(HELLO + "print('x' * 300_000, flush=True); print('after'); sys.exit(4)")
    assert await asyncio.wait_for(heard.code, 20) == 4
    assert "[m] after" in capfd.readouterr().err


async def test_a_child_whose_report_is_unreadable_is_ended_and_nobody_waits_for_it(run) -> None:
    _, heard = run(HELLO + "parent.tell('loaded', url='x' * 300_000); time.sleep(60)")
    assert await asyncio.wait_for(heard.code, 20) == -9
    assert "unreadable" in heard.states[0]["message"]


async def test_a_report_that_was_cut_off_by_the_end_of_a_child_is_left_out(run) -> None:
    cut = "import os, sys; os.write(int(os.environ['HEADSTART_ROUTER']), b'{\"sta'); sys.exit(5)"
    _, heard = run(cut)
    assert await asyncio.wait_for(heard.code, 20) == 5
    assert not heard.states


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


NAME = "org/model:F16"


async def events_of(routed, *, until: str) -> list[dict[str, object]]:
    queue = routed.queue
    found: list[dict[str, object]] = []
    while not found or found[-1]["event"] != until:
        found.append(await asyncio.wait_for(queue.get(), 60))
    return found


async def names(client) -> dict[str, str]:
    listed = (await client.get("/models")).json()["data"]
    return {one["id"]: one["status"]["value"] for one in listed}


async def test_a_download_is_told_of_and_adds_a_model_without_touching_others() -> None:
    presets = [preset("a")]
    store = FakeStore(presets)
    async with router("a", max_models=1, presets=presets, store=store) as routed:
        await use(routed.pool, "a")
        routed.queue = routed.pool.events.listen()
        answer = await routed.client.post("/models", json={"model": NAME})
        assert (answer.status_code, answer.json()) == (200, {"success": True})
        events = await events_of(routed, until="download_finished")
        progress = {"x": {"done": 1, "total": 2}}
        assert {"model": NAME, "event": "download_progress", "data": progress} in events
        assert await names(routed.client) == {"a": "loaded", NAME: "unloaded"}
        again = await routed.client.post("/models", json={"model": NAME})
        assert (again.status_code, "already exists" in again.text) == (400, True)


async def test_what_fails_is_told_with_the_reason() -> None:
    store = FakeStore([])
    store.lines, store.code = [{"error": "the disk is full"}], 1
    async with router(presets=[], store=store) as routed:
        routed.queue = routed.pool.events.listen()
        for name, says in ((None, "user/repo:QUANT"), ("model", "there is no model")):
            answer = await routed.client.post("/models", json={"model": name})
            assert (answer.status_code, says in answer.text) == (400, True)
        await routed.client.post("/models", json={"model": NAME})
        (failed,) = await events_of(routed, until="download_failed")
        assert failed["data"] == {"message": "the disk is full"}
        assert await names(routed.client) == {}


async def test_a_download_can_be_cancelled_and_only_so_many_run_at_once(monkeypatch) -> None:
    monkeypatch.setattr(downloads, "MAX_AT_ONCE", 1)
    store = FakeStore([])
    store.code = None
    async with router(presets=store.presets, store=store) as routed:
        routed.queue = routed.pool.events.listen()
        assert (await routed.client.post("/models", json={"model": NAME})).status_code == 200
        assert await names(routed.client) == {NAME: "downloading"}
        for name, says in ((NAME, "already"), ("org/other", "1 models are being downloaded")):
            answer = await routed.client.post("/models", json={"model": name})
            assert (answer.status_code, says in answer.text) == (400, True)
        ended = await routed.client.post("/models/unload", json={"model": NAME})
        assert (ended.json(), await names(routed.client)) == ({"success": True}, {})
        assert (await routed.client.post("/models", json={"model": NAME})).status_code == 200
        assert (await routed.client.delete("/models", params={"model": NAME})).status_code == 200
        assert store.dropped == [NAME, NAME]
        events = await events_of(routed, until="model_remove")
        assert "download_failed" in [one["event"] for one in events]
        assert await names(routed.client) == {}


async def test_a_removed_model_is_unloaded_and_gone() -> None:
    presets = [cached(NAME), preset("a")]
    store = FakeStore(presets)
    async with router(cached(NAME), "a", presets=presets, store=store) as routed:
        await use(routed.pool, NAME)
        assert loaded(routed.pool) == {NAME}
        client = routed.client
        assert (await client.delete("/models", params={"model": NAME})).json() == {"success": True}
        assert (store.removed, await names(client)) == ([NAME], {"a": "unloaded"})
        kept = await client.delete("/models", params={"model": "a"})
        assert (kept.status_code, "was not downloaded" in kept.text) == (400, True)
        assert (await client.delete("/models", params={"model": "x"})).status_code == 404


async def test_a_kept_stream_of_lines_ends_with_an_error_line_when_its_model_dies() -> None:
    line = b'{"done": false}\n'
    async with writing(cut_lines(line), closes=True) as model, router("a") as routed:
        routed.children.url = model.url
        answer = await routed.client.post("/api/chat", json={"model": "a"}, headers=NAMED)
    assert json.loads(answer.content.removeprefix(line)) == {"error": "a broke off its answer"}
