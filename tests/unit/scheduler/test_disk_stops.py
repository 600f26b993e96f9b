"""The server stops or is killed, or the disk fails or does not answer."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import random
import time
from array import array
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from tests.harness import Clock, Model, make_scheduler, submit_all
from tests.planted import noted
from tests.unit.scheduler.conversations import ask, conversation, long
from tests.unit.scheduler.test_disk_cache import (
    cache,
    opened,
    served,
    settled,
    started,
    stop,
    stored,
    texts,
)
from tests.unit.scheduler.test_failures import act

from headstart.scheduler import disk_cache, offloading
from headstart.scheduler.copy_prices import Price
from headstart.scheduler.prompt_store import StoredBlock, StoredPrompt
from headstart.structures.prompt_files import read_prompt, write_prompt
from headstart.types import Batch, CacheKind, SavedState
from headstart.worker.loop import write_idle


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


def test_a_prompt_that_came_from_a_file_of_a_slot_is_written(tmp_path: Path) -> None:
    scheduler = make_scheduler(Model(), parallel=1)
    ask(scheduler, conversation(1))
    act(scheduler, "save", 0, tmp_path / "slot")
    again = started(tmp_path / "prompts")
    act(again, "restore", 0, tmp_path / "slot")
    stop(again)
    assert texts(tmp_path / "prompts") == 1


def test_idle_prompts_are_written_once_a_full_disk_has_room(tmp_path: Path, full: Disk) -> None:
    scheduler = started(tmp_path)
    ask(scheduler, conversation(1))
    due: float | None = 0.0
    for _ in range(3):
        assert due is not None
        due = write_idle(scheduler.cache.offloading, due)
        disk = settled(scheduler.cache.offloading.disk)
    full.is_full, disk.retry_at = False, 0.0
    for _ in range(2):
        assert due is not None
        due = write_idle(scheduler.cache.offloading, due)
        settled(disk)
    assert texts(tmp_path) == 1
    assert due is None


@pytest.mark.parametrize("cache_kind", [CacheKind.CUT, CacheKind.ROLLBACK])
def test_nothing_is_copied_for_a_disk_that_takes_nothing(tmp_path, full, monkeypatch, cache_kind):
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


def test_a_prompt_that_the_disk_refuses_is_copied_once(tmp_path, monkeypatch) -> None:
    """A cache without blocks is copied whole, which was done after each burst."""
    model = Model(context_size=1024, cache_kind=CacheKind.ROLLBACK)
    scheduler = make_scheduler(model, parallel=1)
    ask(scheduler, long(1))
    scheduler.cache.offloading.use_disk(cache(tmp_path, max_bytes=1500))
    copied = noted(monkeypatch, scheduler.engine, "save_sequence")
    for _ in range(3):
        assert not scheduler.cache.offloading.write_next()
    assert len(copied) == 1


def test_a_state_that_does_not_grow_with_its_text_is_written_for_a_long_one_too(
    tmp_path, monkeypatch
) -> None:
    """By what a token of the short one takes, the long one would be too large for the disk."""
    model = Model(context_size=1024, cache_kind=CacheKind.ROLLBACK)
    scheduler = make_scheduler(model, parallel=2)
    ask(scheduler, long(1), conversation(2))
    monkeypatch.setattr(model, "save_sequence", lambda seq_id: SavedState(bytes(5000)))
    scheduler.cache.offloading.use_disk(disk := cache(tmp_path, max_bytes=14_000))
    while scheduler.cache.offloading.write_next():
        settled(disk)
    assert texts(tmp_path) == 2


def test_a_prompt_too_large_for_the_rest_of_the_disk_keeps_no_smaller_one_off_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was used last, and so it is tried first."""
    room = SimpleNamespace(free=disk_cache.LEAST_FREE + 1000)
    monkeypatch.setattr(disk_cache, "disk_usage", lambda path: room)
    scheduler = make_scheduler(Model(context_size=1024), parallel=2)
    ask(scheduler, conversation(1), long(2))
    scheduler.cache.offloading.use_disk(disk := cache(tmp_path))
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            scheduler.cache.offloading.write_next()
            settled(disk)
    assert texts(tmp_path) == 1
    assert ["has no room" in one.message for one in caplog.records] == [True]
    disk.retry_at = 0.0
    while scheduler.cache.offloading.write_next():
        settled(disk)
    assert texts(tmp_path) == 2


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


def test_no_request_waits_long_for_a_disk_that_does_not_answer(tmp_path, monkeypatch) -> None:
    served(tmp_path, conversation(1), conversation(2))
    monkeypatch.setattr(disk_cache, "Price", lambda: Price(0.0))
    answers = Event()
    monkeypatch.setattr(disk_cache, "read_prompt", lambda path: answers.wait(60))
    scheduler = started(tmp_path)
    clock = scheduler.clock
    assert isinstance(clock, Clock)
    submit_all(scheduler, [conversation(1, 1), conversation(1, 2)], 50)
    assert not scheduler.running
    clock.now += offloading.PATIENCE_SECONDS
    scheduler.step()
    assert len(scheduler.running) == 2
    scheduler.cancel("c1.1")
    submit_all(scheduler, [conversation(2, 1)], 3)  # which begins at once
    answers.set()
    assert len(scheduler.running) == 2


def test_prompts_are_read_from_the_disk_after_it_paused_once(tmp_path, monkeypatch) -> None:
    """It seemed slow from then on, and so nothing was measured again."""
    served(tmp_path, *(long(number) for number in range(4)))
    clock, pauses, engine = Clock(), [1e3], Model(context_size=1024)
    launch = engine.launch

    def launch_slowly(batch: Batch) -> None:
        clock.now += 0.001 * batch.num_rows
        launch(batch)

    def read_with_a_pause(path: Path) -> object:
        clock.now += pauses.pop() if pauses else 0.0
        return read_prompt(path)

    engine.launch = launch_slowly
    monkeypatch.setattr(disk_cache, "read_prompt", read_with_a_pause)
    timed = SimpleNamespace(**vars(time) | {"perf_counter": clock})
    monkeypatch.setattr(disk_cache, "time", timed)
    scheduler = make_scheduler(engine, parallel=1, clock=clock)
    scheduler.cache.offloading.use_disk(cache(tmp_path))
    read = ask(scheduler, conversation(9), *(long(number) for number in range(4)))
    assert not pauses
    assert read == [100, 1, 1, 1, 1]


def test_a_prompt_beyond_its_tenant_s_share_keeps_no_other_tenant_s_off_the_disk(tmp_path) -> None:
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
def test_a_file_that_cannot_be_read_now_is_there_later(tmp_path, monkeypatch, error) -> None:
    served(tmp_path, conversation(1))
    monkeypatch.setattr(disk_cache, "Price", lambda: Price(0.0))
    with monkeypatch.context() as patch:
        patch.setattr(disk_cache, "read_prompt", Mock(side_effect=error))
        assert ask(started(tmp_path), conversation(1, 1)) == [120]
    assert served(tmp_path, conversation(1, 1)) == [20]


NUM_KILLS = int(os.environ.get("HEADSTART_KILLS", "20"))
COMMON = 128  # tokens that all texts begin with
SERVERS = multiprocessing.get_context("forkserver")  # one process loads the modules for all
SERVERS.set_forkserver_preload([__name__])


def write(folder: Path, first: int, told: Connection) -> None:
    """Write texts from this one on without end; say when the first is written."""
    disk = opened(folder, 2**40)
    for number in range(first, 10**9):
        disk.put(text(number))
        if number == first:
            disk._writer.submit(told.send, number).result()


def text(number: int) -> StoredPrompt:
    """Four blocks, whose bytes follow from their tokens."""
    tokens = array("i", [*range(COMMON), *[number] * 100])
    spans = ((0, 64), (64, COMMON), (COMMON, COMMON + 64), (COMMON + 64, COMMON + 100))
    blocks = (StoredBlock(a, b, content(tokens[a:b])) for a, b in spans)
    return StoredPrompt("", tokens, tuple(blocks), len(tokens), time.time())


def content(tokens: array[int]) -> bytes:
    return tokens.tobytes() * 3000


def test_what_killed_servers_left_is_whole(tmp_path, caplog) -> None:
    chance, seen = random.Random(0), set[Path]()
    for turn in range(NUM_KILLS):
        heard, told = SERVERS.Pipe(duplex=False)
        process = SERVERS.Process(target=write, args=(tmp_path, 1000 * turn, told), daemon=True)
        process.start()
        assert heard.recv() == 1000 * turn
        time.sleep(chance.uniform(0.0, 0.1))
        process.kill()
        process.join()
        for end in (heard, told):
            end.close()
        with caplog.at_level(logging.WARNING):
            disk = opened(tmp_path, 2**40)
            disk.begin().result()
        there = {file.path for file in disk.index}
        for path in there - seen:
            read_prompt(path)  # whole, or it is not there
        seen |= there
        for number in {1000 * turn, 1000 * chance.randrange(turn + 1)}:
            expected = text(number)
            files, length = disk.index.find("", expected.tokens)
            assert length == len(expected.tokens)  # that it was written was told
            prompt = disk.load("", files, "").result()
            assert prompt is not None
            assert prompt.tokens == expected.tokens
            assert [b.data for b in prompt.blocks] == [b.data for b in expected.blocks]
        disk.finish(1.0)
    assert len(seen) >= 2 + 2 * NUM_KILLS
    assert not caplog.records
