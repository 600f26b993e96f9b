"""The engine process ends: its end is told when it is gone, and no other."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import pytest
from tests.unit.scheduler.test_transport import hang, refuse

from headstart.worker.transport import ProcessTransport


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
