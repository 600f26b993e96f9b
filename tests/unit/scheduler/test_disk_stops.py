"""The server stops, or the disk fails or does not answer."""

from __future__ import annotations

import errno
import logging
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import pytest
from tests.harness import Clock, Model, make_scheduler, submit_all
from tests.planted import noted
from tests.unit.scheduler.conversations import ask, conversation, long
from tests.unit.scheduler.test_disk_cache import (
    cache,
    served,
    settled,
    started,
    stop,
    stored,
    texts,
)

from headstart.scheduler import disk_cache
from headstart.scheduler.disk_cache import DiskCache
from headstart.structures.prompt_files import write_prompt
from headstart.types import CacheKind
from headstart.worker.loop import _PromptWriter


class Disk:
    """Fails to write while it is full."""

    is_full = True

    def write(self, *given: Any) -> None:
        if self.is_full:
            raise OSError("full")
        write_prompt(*given)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(disk_cache, "write_prompt", disk.write)
    monkeypatch.setattr(disk_cache, "RETRY_SECONDS", 3600.0)
    return disk


def test_the_prompt_of_an_answer_that_a_stop_cuts_off_is_written(tmp_path: Path) -> None:
    scheduler = started(tmp_path)
    submit_all(scheduler, [replace(conversation(1), max_tokens=500)], 20)
    assert scheduler.running
    stop(scheduler)
    assert served(tmp_path, conversation(1, 1)) == [20]


def test_idle_prompts_are_written_once_a_full_disk_has_room(tmp_path: Path, full: Disk) -> None:
    scheduler = started(tmp_path)
    ask(scheduler, conversation(1))
    writer = _PromptWriter(scheduler.cache.offloading)
    writer.note(0.0)
    for _ in range(3):
        assert writer.due is not None
        writer.go_on(writer.due)
        disk = settled(scheduler.cache.offloading.disk)
    full.is_full, disk.retry_at = False, 0.0
    for _ in range(2):
        assert writer.due is not None
        writer.go_on(writer.due)
        settled(disk)
    assert texts(tmp_path) == 1
    assert writer.due is None


@pytest.mark.parametrize("cache_kind", [CacheKind.CUT, CacheKind.ROLLBACK])
def test_nothing_is_copied_for_a_disk_that_takes_nothing(
    tmp_path: Path, full: Disk, monkeypatch: pytest.MonkeyPatch, cache_kind: CacheKind
) -> None:
    scheduler = started(tmp_path, Model(context_size=1024, cache_kind=cache_kind))
    ask(scheduler, conversation(1), conversation(2))
    assert scheduler.cache.offloading.write_next()
    settled(scheduler.cache.offloading.disk)
    copied = [noted(monkeypatch, scheduler.engine, one) for one in ("save_block", "save_sequence")]
    assert not scheduler.cache.offloading.write_next()
    assert copied == [[], []]


def test_a_prompt_too_large_for_the_disk_keeps_no_other_off_it(tmp_path: Path) -> None:
    """Its last block is copied again each time, which took the time of the others."""
    scheduler = make_scheduler(Model(context_size=1024), parallel=2)
    ask(scheduler, conversation(1), long(2))
    scheduler.cache.offloading.use_disk(disk := cache(tmp_path, max_bytes=1500))
    num_left = 50
    while scheduler.cache.offloading.write_next() and num_left:
        settled(disk)
        num_left -= 1
    assert num_left
    assert texts(tmp_path) == 1


def test_a_text_that_is_lost_counts_once_though_main_memory_has_its_beginning(
    tmp_path: Path, full: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = started(tmp_path)
    ask(scheduler, replace(long(1), prompt=[*long(1).prompt] * 3))
    assert scheduler.cache.offloading.write_next()
    (part,) = scheduler.cache.offloading.store
    assert len(part.tokens) < 900
    with caplog.at_level(logging.WARNING):
        stop(scheduler)
    assert "1 prompts are lost" in caplog.text


def test_no_request_waits_long_for_a_disk_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(tmp_path, conversation(1), conversation(2))
    monkeypatch.setattr(DiskCache, "reading_seconds", lambda self, files: 0.0)
    answers = Event()
    monkeypatch.setattr(disk_cache, "read_prompt", lambda path: answers.wait(60))
    scheduler = started(tmp_path)
    clock = scheduler.clock
    assert isinstance(clock, Clock)
    submit_all(scheduler, [conversation(1, 1), conversation(1, 2)], 50)
    assert not scheduler.running
    clock.now += disk_cache.LATE_SECONDS
    scheduler.step()
    assert len(scheduler.running) == 2
    scheduler.cancel("c1.1")
    submit_all(scheduler, [conversation(2, 1)], 3)  # which begins at once
    answers.set()
    assert len(scheduler.running) == 2


def test_a_prompt_beyond_its_tenant_s_share_keeps_no_other_tenant_s_off_the_disk(
    tmp_path: Path,
) -> None:
    disk = cache(tmp_path, max_bytes=10 * (stored(0).num_bytes + 300))
    early = stored(1, namespace="a")
    for number in range(2, 8):
        assert disk.put(stored(number, namespace="a"))
    assert disk.put(stored(8, num_bytes=9_000, namespace="b"))
    settled(disk)
    assert texts(tmp_path) == 6  # the last one found no room
    assert disk.put(early)
    settled(disk)
    assert texts(tmp_path) == 7


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "too many open files"), MemoryError()])
def test_a_file_that_cannot_be_read_now_is_there_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    served(tmp_path, conversation(1))
    monkeypatch.setattr(DiskCache, "reading_seconds", lambda self, files: 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(disk_cache, "read_prompt", Mock(side_effect=error))
        assert ask(started(tmp_path), conversation(1, 1)) == [120]
    assert served(tmp_path, conversation(1, 1)) == [20]
