"""The folder of stored prompts: bounded for all servers together, listed seldom, counted."""

from __future__ import annotations

import logging
import os
import random
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any
from zipfile import ZipFile

import pytest
from tests.harness import Model, make_scheduler, run, submit_all
from tests.planted import noted
from tests.unit.scheduler.conversations import ask, conversation
from tests.unit.scheduler.test_disk_cache import (
    cache,
    files,
    opened,
    served,
    settled,
    started,
    stop,
    stored,
    texts,
)

from headstart.scheduler import disk_cache, offloading
from headstart.scheduler.copy_prices import Price
from headstart.scheduler.disk_cache import DiskCache
from headstart.scheduler.prompt_store import StoredPrompt
from headstart.scheduler.scheduler import Scheduler
from headstart.structures.checkpoints import Data, pack
from headstart.structures.prefix import packed
from headstart.structures.prompt_files import (
    PromptIndex,
    StoredFile,
    read_prompt,
    root_of,
    write_prompt,
)
from headstart.types import Checkpoint, SavedState
from headstart.worker.loop import run_loop, write_idle


def put(disk: DiskCache, prompt: StoredPrompt) -> bool:
    """Whether it is written; what has to go for it has gone."""
    is_written = disk.put(prompt)
    settled(disk)
    return is_written


def length_of(disk: DiskCache, number: int, namespace: str = "") -> int:
    """Tokens that are found of `stored(number)`."""
    return disk.index.find(namespace, packed([number] * 40))[1]


def test_the_folder_is_listed_now_and_then_and_not_for_each_prompt(tmp_path, monkeypatch) -> None:
    disk = cache(tmp_path)
    listed = noted(monkeypatch, disk, "_look")
    for number in range(10):
        assert disk.put(stored(number))
    settled(disk)
    assert listed == []
    assert len(files(tmp_path)) == 10
    disk._look_at = 0.0  # the ten seconds are over
    assert put(disk, stored(10))
    assert listed


def test_at_the_bound_the_folder_is_listed_once_for_all_that_may_go(tmp_path, monkeypatch) -> None:
    disk = cache(tmp_path, max_bytes=20 * (stored(0).num_bytes + 280))
    listed = noted(monkeypatch, disk, "_look")
    for number in range(60):
        assert put(disk, stored(number))
    assert 18 <= len(files(tmp_path)) <= 22
    lengths = [length_of(disk, number) for number in range(60)]
    assert lengths.count(40) == len(files(tmp_path))
    assert lengths[59] == 40
    assert len(listed) <= 4
    (oldest,) = disk.index.find("", packed([59 - 15] * 40))[0]
    assert disk.load("", [oldest], "").result() is not None  # used again, later than others
    for number in range(60, 70):
        assert put(disk, stored(number))
    assert length_of(disk, 59 - 15) == 40


@pytest.mark.parametrize("seed", range(5))
def test_files_are_counted_as_they_come_and_go(seed: int, tmp_path: Path) -> None:
    chance, index = random.Random(seed), PromptIndex()
    keys = [root_of(""), *map(str, range(8))]
    there = dict[str, StoredFile]()
    for _ in range(300):
        parent, end = chance.sample(keys, 2)
        name = StoredFile.name("o", parent, 64, {64: end})
        file = StoredFile.of(tmp_path / name, chance.randrange(100))
        if chance.random() < 0.6:
            index.add(file)
            there.setdefault(name, file)
        elif there:
            file = there.pop(chance.choice(list(there)))
            index.remove(StoredFile.of(file.path, 0))  # as a listing of the folder names it
            assert index.same_text(file) is None
        parents = {one.parent for one in there.values()}
        assert index.num_texts == len({one.keys[64] for one in there.values()} - parents)
        assert index.num_bytes == sum(one.num_bytes for one in there.values())


def test_a_new_tenant_makes_no_room_for_more_than_the_others_have(tmp_path: Path) -> None:
    disk = cache(tmp_path, max_bytes=10 * (stored(0).num_bytes + 300))
    for number in range(8):
        assert put(disk, stored(number, namespace="a"))
    put(disk, stored(8, num_bytes=12_000, namespace="b"))
    assert len(files(tmp_path)) == 8
    assert length_of(disk, 0, "a") == 40
    put(disk, stored(9, num_bytes=6_000, namespace="b"))
    assert length_of(disk, 9, "b") == 40


def test_all_servers_together_stay_below_the_bound(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(disk_cache, "LOOK_SECONDS", 0.0)
    bound = 10 * (stored(0).num_bytes + 300)
    one, other = (cache(tmp_path, max_bytes=bound, identity=name) for name in "ab")
    for number in range(20):
        disk = (one, other)[number % 2]
        assert put(disk, stored(number))
    assert 8 <= len(files(tmp_path)) <= 11
    assert sum(file.stat().st_size for file in files(tmp_path)) <= bound
    assert (length_of(one, 18), length_of(one, 2)) == (40, 0)
    late = replace(stored(99), last_used=1.0)  # what is there was used later
    assert put(one, late)
    assert not one.put(late)
    assert one.index.find("", late.tokens)[1] == 0


def test_a_server_sees_what_another_wrote_and_removed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(disk_cache, "LOOK_SECONDS", 0.0)
    one, other = cache(tmp_path), cache(tmp_path)
    put(one, stored(1))
    put(other, stored(2))
    found, length = other.index.find("", packed([1] * 40))
    assert length == 40
    found[0].path.unlink()
    assert other.load("", found, "").result() is None
    assert other.index.find("", packed([1] * 40)) == ([], 0)
    settled(other)
    assert other.report().num_prompts == 1


def test_the_folder_is_not_listed_before_the_server_is_ready(tmp_path, monkeypatch) -> None:
    put(cache(tmp_path), stored(1))
    disk = opened(tmp_path)
    listed = noted(monkeypatch, disk, "_look")
    scheduler = make_scheduler(Model())
    scheduler.cache.offloading.use_disk(settled(disk))
    assert not listed
    run_loop(scheduler, lambda _: [None], lambda _: None)
    assert len(listed) == 1


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """The disk lists no folder before that."""
    event, look = Event(), DiskCache._look
    monkeypatch.setattr(DiskCache, "_look", lambda self: event.wait(60) and look(self))
    yield event
    event.set()


@pytest.fixture
def listing(tmp_path: Path, answers: Event, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    """One that has just started, with a conversation in its folder."""
    answers.set()
    monkeypatch.setattr(disk_cache, "Price", lambda: Price(0.0))
    served(tmp_path, conversation(1))
    answers.clear()
    scheduler = make_scheduler(Model(context_size=1024), parallel=2)
    scheduler.cache.offloading.use_disk(opened(tmp_path))
    return scheduler


def test_a_request_waits_until_the_folder_is_listed_and_finds_its_prompt(listing, answers) -> None:
    submit_all(listing, [conversation(1, 1)], 1)
    assert not listing.running
    answers.set()
    assert run(listing)["c1.1"].stats.num_cached == 100


def test_who_cannot_use_a_stored_prompt_does_not_wait_for_the_list(listing: Scheduler) -> None:
    short = replace(conversation(1, 1), prompt=conversation(1, 1).prompt[:32])
    submit_all(listing, [short, replace(conversation(2), cache_prompt=False)], 1)
    assert len(listing.running) == 2


def test_nobody_waits_long_for_the_list_and_what_it_has_is_found_later(
    listing: Scheduler, answers: Event, monkeypatch, caplog
) -> None:
    with caplog.at_level(logging.WARNING), monkeypatch.context() as patch:
        patch.setattr(offloading, "PATIENCE_SECONDS", 0.0)
        submit_all(listing, [conversation(5), conversation(6)], 1)
    assert len(listing.running) == 2
    assert ["takes long" in one.message for one in caplog.records] == [True]
    answers.set()
    run(listing)
    settled(listing.cache.offloading.disk)
    assert ask(listing, conversation(1, 1)) == [20]


def test_a_stop_waits_so_long_for_a_disk_and_says_what_is_lost(tmp_path, monkeypatch, caplog):
    answers, disk = Event(), cache(tmp_path)
    monkeypatch.setattr(disk_cache, "write_prompt", lambda *_: answers.wait(60))
    for number in (1, 2):
        assert disk.put(stored(number))
    ending = Thread(target=disk.finish, args=(0.0,))
    with caplog.at_level(logging.WARNING):
        ending.start()
        ending.join(20)
    is_over = not ending.is_alive()
    answers.set()
    ending.join()
    assert is_over
    assert "2 prompts are lost" in caplog.text


def held(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    """Has three prompts to write, two of them in main memory; one is queued at a time."""
    monkeypatch.setattr(disk_cache, "MAX_WAITING_BYTES", 1000)
    scheduler = started(folder)
    ask(scheduler, *(conversation(number) for number in range(3)))
    assert not files(folder)
    return scheduler


def test_all_that_is_held_is_written_though_the_queue_is_full_at_times(tmp_path, monkeypatch):
    goes_on = Event()

    def write_later(*given: Any) -> None:
        goes_on.wait(60)
        write_prompt(*given)

    monkeypatch.setattr(disk_cache, "write_prompt", write_later)
    scheduler = held(tmp_path, monkeypatch)
    due: float | None = 0.0
    for _ in range(5):
        assert due is not None
        due = write_idle(scheduler.cache.offloading, due)
    goes_on.set()
    while due is not None:
        settled(scheduler.cache.offloading.disk)
        due = write_idle(scheduler.cache.offloading, due)
    assert texts(tmp_path) == 3


@pytest.mark.parametrize("limit", [1000, 1])  # one prompt, or less
def test_a_stop_writes_more_than_the_queue_takes_at_once(limit: int, tmp_path, monkeypatch) -> None:
    def write_slowly(*given: Any) -> None:
        time.sleep(0.05)
        write_prompt(*given)

    monkeypatch.setattr(disk_cache, "write_prompt", write_slowly)
    scheduler = held(tmp_path, monkeypatch)
    monkeypatch.setattr(disk_cache, "MAX_WAITING_BYTES", limit)
    stop(scheduler)
    assert texts(tmp_path) == 3


def test_a_stop_says_what_is_lost_of_what_was_not_queued_either(tmp_path, monkeypatch, caplog):
    answers = Event()
    monkeypatch.setattr(disk_cache, "write_prompt", lambda *_: answers.wait(60))
    monkeypatch.setattr(offloading, "PATIENCE_SECONDS", 0.1)
    scheduler = held(tmp_path, monkeypatch)
    with caplog.at_level(logging.WARNING):
        scheduler.cache.offloading.finish()
    answers.set()
    assert "3 prompts are lost" in caplog.text


def test_a_stop_says_what_is_lost_because_the_disk_fails(tmp_path, monkeypatch, caplog) -> None:
    def fail(*_: Any) -> None:
        raise OSError("broken")

    monkeypatch.setattr(disk_cache, "write_prompt", fail)
    with caplog.at_level(logging.WARNING):
        stop(held(tmp_path, monkeypatch))
    assert re.search("prompts are lost: .*: broken", caplog.text)


def test_what_is_erased_while_the_folder_is_listed_is_not_found_later(tmp_path, answers: Event):
    answers.set()
    for number in (1, 2):
        put(cache(tmp_path), stored(number))
    answers.clear()
    disk = opened(tmp_path)
    disk.begin()
    disk.erase("", packed([1] * 40))
    answers.set()
    settled(disk)
    assert [length_of(disk, number) for number in (1, 2)] == [0, 40]
    assert len(files(tmp_path)) == 1


def test_what_was_removed_by_hand_is_written_again_with_what_follows(tmp_path: Path) -> None:
    disk, prompt = cache(tmp_path), stored(1)
    assert put(disk, prompt)
    shutil.rmtree(tmp_path)
    longer = replace(prompt, tokens=prompt.tokens + packed([7] * 40))
    longer = replace(longer, blocks=(*prompt.blocks, replace(prompt.blocks[0], start=40, end=80)))
    assert put(disk, longer)
    assert cache(tmp_path).index.find("", longer.tokens)[1] == 80


def test_a_folder_that_may_not_be_read_hides_no_other(tmp_path, monkeypatch, caplog) -> None:
    put(cache(tmp_path), stored(1))
    scan = os.scandir

    def refuse(folder: Path) -> Any:  # root may read whatever the mode says
        if "other" in Path(folder).name:
            raise PermissionError(folder)
        return scan(folder)

    for name in ("0 other", "~ other"):  # one of them comes first
        (tmp_path / name).mkdir()
    monkeypatch.setattr(os, "scandir", refuse)
    assert length_of(cache(tmp_path), 1) == 40
    assert not caplog.records


def test_two_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    """In containers all servers may have the same process id."""
    tokens, caches = packed([1] * 40), {"target": b"once"}
    file, left = tmp_path / "x.prompt", [1]

    def again() -> None:
        if left:
            left.clear()
            write_prompt(file, tokens, caches, again)

    write_prompt(file, tokens, caches, again)
    assert read_prompt(file)[1] == {"target": b"once"}
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("sizes", [(3, 0, 5), (2**20, 2**20 - 37), (5, 3 * 2**20, 2**20 + 1, 7)])
def test_a_saved_state_is_written_as_one_cache_and_comes_back(sizes, tmp_path: Path) -> None:
    """It is never in one piece: joining many megabytes would hold up the loop."""
    state, *others = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    kept = tuple(Checkpoint(one, data) for one, data in enumerate(others))
    saved = SavedState(state, kept, b"text")
    pieces: dict[str, Data] = {"pieces": saved, "joined": b"".join(pack(saved))}
    for name, data in pieces.items():
        write_prompt(tmp_path / name, packed([1] * 40), {"target": data})
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "joined").read_bytes()
    back = read_prompt(tmp_path / "pieces")[1]["target"]
    assert isinstance(back, SavedState)
    assert [bytes(part) for part in back.parts] == saved.parts
    assert [one.length for one in back.checkpoints] == [*range(len(others))]


@pytest.mark.parametrize("entries", [{}, {"tokens": 4}, {"target": 9}, {"tokens": 5, "target": 9}])
def test_a_file_that_says_what_makes_no_sense_is_dropped(entries: Any, tmp_path: Path) -> None:
    disk = cache(tmp_path)
    assert put(disk, stored(1))
    (file,) = files(tmp_path)
    with ZipFile(file, "w") as archive:
        for name, size in entries.items():
            archive.writestr(name, bytes(size))
    found, _ = disk.index.find("", packed([1] * 40))
    assert disk.load("", found, "").result() is None
    assert not files(tmp_path)
