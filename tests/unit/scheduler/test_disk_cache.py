"""Prompts on the disk: found after a restart, never of another text, and harmless if broken."""

from __future__ import annotations

import logging
import os
import random
import stat
import time
from array import array
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from tests.harness import Clock, Model, make_scheduler, run, step_until, submit_all
from tests.unit.scheduler.conversations import ask, conversation, with_system_prompt

from headstart.app.cli.main import main
from headstart.scheduler import disk_cache
from headstart.scheduler.copy_prices import CopyPrices, Price
from headstart.scheduler.disk_cache import DiskCache
from headstart.scheduler.prompt_store import StoredBlock, StoredPrompt
from headstart.scheduler.scheduler import Scheduler
from headstart.speculators.draft_model import DraftModelSpeculator
from headstart.structures import sequence_files
from headstart.structures.checkpoints import pack
from headstart.structures.prefix import packed
from headstart.structures.prompt_files import PromptIndex, StoredFile, read_prompt, root_of
from headstart.types import CacheKind, SavedState
from headstart.types.request import ReplyEvent, Request, SlotAction
from headstart.worker.loop import run_loop
from headstart.worker.pipes import Command

MIB = 2**20


def opened(folder: Path, max_bytes: int = 100 * MIB, **changes: str) -> DiskCache:
    named = {"name": "tiny", "identity": "model", "drafters": "drafters"}
    return DiskCache(folder, max_bytes, **named | changes)


def settled(disk: DiskCache | None) -> DiskCache:
    """Its thread has done what it was told so far."""
    assert disk is not None
    disk._writer.submit(int).result()
    return disk


def cache(folder: Path, max_bytes: int = 100 * MIB, **changes: str) -> DiskCache:
    """One that has seen what is in its folder."""
    disk = opened(folder, max_bytes, **changes)
    disk.begin()
    return settled(disk)


def started(folder: Path, engine: Model | None = None, **limits) -> Scheduler:
    scheduler = make_scheduler(engine or Model(context_size=1024), parallel=2, **limits)
    scheduler.cache.offloading.use_disk(cache(folder))
    return scheduler


def stop(scheduler: Scheduler) -> None:
    run_loop(scheduler, lambda _: [None], lambda _: None)


def served(folder: Path, *requests: Request, engine: Model | None = None) -> list[int]:
    """Prompt tokens that a server reads for these before it is stopped."""
    scheduler = started(folder, engine)
    read = ask(scheduler, *requests)
    stop(scheduler)
    return read


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.prompt"))


def texts(folder: Path) -> int:
    """Of how many texts there are files."""
    index = PromptIndex()
    for file in files(folder):
        index.add(StoredFile.of(file, 0))
    return index.num_texts


def stored(number: int, num_bytes: int = 1000, namespace: str = "") -> StoredPrompt:
    data = SavedState(number.to_bytes(4, "little") * (num_bytes // 4))
    block = StoredBlock(0, 40, data)
    return StoredPrompt(namespace, packed([number] * 40), (block,), 40, time.time())


@pytest.fixture(autouse=True)
def reading(monkeypatch: pytest.MonkeyPatch) -> Price:
    """What a file's way to main memory is said to take: this disk's speed decides nothing here."""
    price = Price(0.0)
    monkeypatch.setattr(disk_cache, "Price", lambda: price)
    return price


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With two conversations, of which the second is longer."""
    served(tmp_path, conversation(1), conversation(2, 1))
    return tmp_path


@pytest.mark.parametrize("cache_kind", CacheKind)
def test_a_prompt_is_not_read_again_after_a_restart(cache_kind: CacheKind, tmp_path: Path) -> None:
    for turn, most in enumerate((120, 25, 25)):
        engine = Model(context_size=1024, cache_kind=cache_kind)
        turns = (conversation(i, turn) for i in range(5))
        assert max(served(tmp_path, *turns, engine=engine)) <= most
    assert texts(tmp_path) == 5  # a longer one replaces what it continues


def test_where_reading_the_prompt_again_is_faster_it_is_read_again(folder, reading: Price) -> None:
    scheduler = started(folder)
    ask(scheduler, conversation(5))  # how fast that is
    reading.seconds = 1e9
    assert ask(scheduler, conversation(1, 1)) == [120]
    assert settled(scheduler.cache.offloading.disk).report().num_restored == 0


def test_conversations_behind_one_system_prompt_share_its_files(tmp_path, monkeypatch) -> None:
    # the clock of these tests goes on with every look at it
    monkeypatch.setattr(CopyPrices, "saves_time", lambda self, gained, copying: gained > 31)
    served(tmp_path, *(with_system_prompt(i) for i in range(10)))
    assert texts(tmp_path) == 10
    assert len(files(tmp_path)) == 3 + 10 * 2
    later = [with_system_prompt(i, 1) for i in range(10)]
    assert ask(started(tmp_path), *later) == [60] * 10
    assert ask(started(tmp_path), with_system_prompt(11)) == [68]  # of 260


def test_conversations_share_files_whatever_their_lengths_and_turns(tmp_path: Path) -> None:
    served(tmp_path, *(with_system_prompt(i, i) for i in range(4)))
    before = set(files(tmp_path))
    first = {file.path for file in cache(tmp_path).index if file.parent == root_of("")}
    assert len(first) == 1  # the first 64 tokens, which all have in common
    served(tmp_path, with_system_prompt(0, 4))  # five blocks of its 500 tokens were there
    assert len(set(files(tmp_path)) - before) == 4


def test_what_main_memory_drops_is_on_the_disk_at_once(tmp_path: Path) -> None:
    scheduler = started(tmp_path)
    scheduler.cache.offloading.store.max_bytes = 2000
    ask(scheduler, *(conversation(i) for i in range(6)))
    for i in range(6):
        settled(scheduler.cache.offloading.disk)
        assert ask(scheduler, conversation(i, 1)) == [20]
    assert texts(tmp_path) >= 2


def test_what_is_idle_is_written_though_nobody_stops_the_server(tmp_path: Path) -> None:
    scheduler = started(tmp_path)
    ask(scheduler, conversation(1))
    seen: list[int] = []
    clock = Clock()

    def receive(seconds: float | None) -> list[Command]:
        if seconds:
            clock.now += seconds
            settled(scheduler.cache.offloading.disk)
            seen.append(texts(tmp_path))
        return [None] if seconds is None else []

    scheduler.submit(conversation(2))
    run_loop(scheduler, receive, lambda _: None, clock)
    assert seen[-1] == 2


@pytest.mark.parametrize("wish", [{"store": False}, {"cache_prompt": False}])
def test_a_text_that_is_not_to_be_kept_reaches_no_file_by_way_of_main_memory_either(tmp_path, wish):
    scheduler = started(tmp_path)
    scheduler.cache.offloading.store.max_bytes = 2000  # it drops some
    ask(scheduler, *(replace(conversation(i), **wish) for i in range(6)))
    scheduler.cache.offloading.evict()  # to main memory, and back into a slot
    ask(scheduler, replace(conversation(5, 1), **wish))
    stop(scheduler)
    assert files(tmp_path) == []


def test_who_continues_a_text_that_was_not_kept_has_its_own_kept(tmp_path: Path) -> None:
    scheduler = started(tmp_path)
    ask(scheduler, replace(conversation(1), store=False), conversation(1, 1))
    stop(scheduler)
    assert texts(tmp_path) == 1


@pytest.mark.parametrize("change", [{"identity": "other"}, {"namespace": "b"}])
def test_other_models_and_tenants_find_nothing(folder: Path, change: dict[str, str]) -> None:
    scheduler = make_scheduler(Model(context_size=1024), parallel=2)
    scheduler.cache.offloading.use_disk(cache(folder, identity=change.get("identity", "model")))
    asked = replace(conversation(1, 1), namespace=change.get("namespace", ""))
    assert ask(scheduler, asked) == [120]


@pytest.mark.parametrize("drafters", ["drafters", "others"])
def test_a_draft_models_cache_comes_back_unless_the_model_is_another(tmp_path, drafters) -> None:
    for turn in range(2):
        speculator = DraftModelSpeculator(Model(skew=0.2))
        scheduler = make_scheduler(Model(), [speculator], parallel=1)
        own = {"drafters": drafters} if turn else {}
        scheduler.cache.offloading.use_disk(cache(tmp_path, **own))
        assert ask(scheduler, conversation(1, turn)) == [20 if turn else 100]
        stop(scheduler)
    assert (speculator.num_decoded < 100) == (drafters == "drafters")


@pytest.mark.parametrize("size", [0, 10, 40, 300, -1])
def test_a_file_that_ends_early_is_dropped_with_one_line(folder: Path, size: int, caplog) -> None:
    num_files = len(files(folder))
    for file in files(folder):
        file.write_bytes(file.read_bytes()[:size])
    with caplog.at_level(logging.WARNING):
        assert ask(started(folder), conversation(1, 1), conversation(2, 2)) == [120, 140]
    assert [one.levelname for one in caplog.records] == ["WARNING"] * 2
    assert len(files(folder)) == num_files - 2  # what began with them is never asked for


def contents(file: Path) -> tuple[array[int], dict[str, bytes]]:
    tokens, caches = read_prompt(file)
    return tokens, {name: b"".join(pack(data)) for name, data in caches.items()}


def test_a_flipped_bit_anywhere_is_noticed_or_changes_nothing(folder: Path) -> None:
    chance, num_read = random.Random(0), 0
    for file in files(folder):
        data, whole = file.read_bytes(), contents(file)
        for _ in range(100):
            damaged = bytearray(data)
            damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            file.write_bytes(damaged)
            try:
                found = contents(file)
            except Exception:
                continue
            assert found[0] == whole[0]
            assert found[1].items() <= whole[1].items()  # the list of entries may end early
            num_read += found == whole  # it is in the time or the mode of an entry
    assert num_read < 25 * len(files(folder))


def test_files_of_others_are_left_alone(folder: Path) -> None:
    (own,) = {file.parent for file in files(folder)}
    for name in ("notes.txt", "half.123.tmp", "x"):
        (own / name).write_bytes(b"mine")
    (folder / "README").write_bytes(b"mine")
    assert ask(started(folder), conversation(1, 1)) == [20]
    assert texts(folder) == 2
    assert sum(file.suffix != ".prompt" for file in own.iterdir()) == 3
    os.utime(own / "half.123.tmp", (0, 0))  # of a server that was killed long ago
    started(folder)
    assert not (own / "half.123.tmp").exists()


@pytest.mark.parametrize("is_whole", [False, True], ids=["blocks", "whole texts"])
@pytest.mark.parametrize("is_continued", [False, True])
def test_an_erased_slot_is_erased_on_the_disk(folder, *, is_continued: bool, is_whole: bool):
    scheduler, asked = started(folder), conversation(3)
    scheduler.engine.has_blocks = not is_whole
    (first,) = run(scheduler, [asked]).values()
    assert scheduler.cache.offloading.write_next()
    settled(scheduler.cache.offloading.disk)
    assert texts(folder) == 3
    if is_continued:  # the later turn is not written yet
        ask(scheduler, replace(asked, prompt=[*asked.prompt, *first.tokens, *range(20)]))
    (held,) = (cells.seq_id for cells in scheduler.cells if cells.length)
    scheduler.act_on_slot(SlotAction("x", "erase", held))
    scheduler.step()
    settled(scheduler.cache.offloading.disk)
    assert texts(folder) == 2


def test_what_others_share_with_an_erased_text_stays_on_the_disk(tmp_path: Path) -> None:
    served(tmp_path, *map(with_system_prompt, range(3)))
    disk = cache(tmp_path)
    disk.erase("", packed([*with_system_prompt(0, 1).prompt, 1]))
    disk.erase("", packed(with_system_prompt(4).prompt))
    disk.erase("", packed(with_system_prompt(1, 1).prompt[:128]))
    assert len(files(settled(disk)._folder)) == 3 + 3 * 2


def test_only_their_owner_can_read_them(folder: Path) -> None:
    assert {stat.S_IMODE(file.parent.stat().st_mode) for file in files(folder)} == {0o700}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files(folder)} == {0o600}


def test_tenants_whose_names_begin_alike_share_no_file(folder: Path) -> None:
    disk, names = cache(folder), ["a" * 64 + end for end in "bc"]
    for name in names:
        assert disk.put(stored(1, namespace=name))
    settled(disk)
    for name in names:
        found, length = disk.index.find(name, packed([1] * 40))
        assert length == 40
        loaded = disk.load(name, found, name).result()
        assert loaded is not None
        assert loaded.namespace == name


@pytest.mark.parametrize("shares", [False, True], ids=["own prompts", "shared prompts"])
def test_prompts_are_read_for_the_tenants_in_turn(tmp_path, monkeypatch, *, shares: bool) -> None:
    disk, is_free, read, load = cache(tmp_path), Event(), list[StoredFile](), DiskCache._load
    found = list[list[StoredFile]]()
    wanted = [(tenant, "" if shares else tenant) for tenant in "aaaab"]
    for number, (_, name) in enumerate(wanted):
        assert disk.put(stored(number, namespace=name))
    settled(disk)

    def noted(self: DiskCache, namespace: str, files: list[StoredFile]) -> StoredPrompt | None:
        read.append(files[0])
        assert is_free.wait(20)
        return load(self, namespace, files)

    monkeypatch.setattr(DiskCache, "_load", noted)
    for number, (_, name) in enumerate(wanted):
        found.append(list(disk.index.find(name, packed([number] * 40))[0]))
    loading = [
        disk.load(name, files, tenant) for (tenant, name), files in zip(wanted, found, strict=True)
    ]
    is_free.set()
    assert all(one.result() is not None for one in loading)
    assert read.index(found[-1][0]) <= 2  # behind the one that was begun, and one more


@pytest.mark.parametrize("is_full", [True, False])
def test_a_disk_that_takes_nothing_costs_nothing_else(is_full, tmp_path, monkeypatch, caplog):
    if is_full:
        monkeypatch.setattr(disk_cache, "disk_usage", lambda path: SimpleNamespace(free=0))
    else:
        (tmp_path / "prompts").write_bytes(b"no folder")
    with caplog.at_level(logging.WARNING):
        served(tmp_path / "prompts", *(conversation(i) for i in range(5)))
    (told,) = (one.message for one in caplog.records if "not kept" in one.message)
    assert ("1024 MiB of its disk are left to others" in told) == is_full


@pytest.mark.parametrize("action", ["save", "restore"])
def test_requests_go_on_while_files_are_written_and_read(action, tmp_path, monkeypatch) -> None:
    go_on, slot_file = Event(), tmp_path / "slot"

    def late(do):
        return lambda *given: go_on.wait(60) and do(*given)

    scheduler = started(tmp_path)
    ask(scheduler, conversation(1))
    held = max(scheduler.cells, key=lambda one: one.length)
    data = scheduler.engine.save_sequence(held.seq_id)
    sequence_files.write(slot_file, held.tokens, data, held.length)
    for module, name in (
        (disk_cache, "write_prompt"),
        (sequence_files, "write"),
        (sequence_files, "read"),
    ):
        monkeypatch.setattr(module, name, late(getattr(module, name)))
    assert scheduler.cache.offloading.write_next()
    scheduler.act_on_slot(SlotAction("slot", action, held.seq_id, path=str(slot_file)))
    while scheduler.slot_actions.file is None:
        scheduler.step()
    submit_all(scheduler, [replace(conversation(2), slot_id=1 - held.seq_id)], 50)
    ends = {event.request_id for event in scheduler.take_events()}
    assert ends == {"c2.0"}
    go_on.set()
    while scheduler.slot_actions.waiting:
        scheduler.step()
    (event,) = scheduler.take_events()
    assert isinstance(event, ReplyEvent)
    assert event.value[0] == 107
    stop(scheduler)
    assert texts(tmp_path) == 2


def test_a_request_waits_for_its_prompt_and_leaves_slots_to_others(folder: Path, monkeypatch):
    go_on, read = Event(), read_prompt
    monkeypatch.setattr(disk_cache, "read_prompt", lambda path: go_on.wait(60) and read(path))
    scheduler = started(folder)
    submit_all(scheduler, [conversation(1, 1)], 1)
    assert not scheduler.running
    scheduler.submit(conversation(7))
    answers = step_until(scheduler, lambda told: told and not scheduler.running)
    assert set(answers) == {"c7.0"}
    go_on.set()
    assert run(scheduler)["c1.1"].stats.num_cached == 100


def test_the_cache_command_removes_prompts_of_all_versions_and_nothing_else(tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/old.prompt").write_bytes(b"HSPROMP1")
    (tmp_path / "model/dropped.prompt").symlink_to("nowhere")  # by a server, after it was listed
    (tmp_path / "of another program").mkdir()
    for word, says in (("list", "0 prompts"), ("clear", "0 prompts"), ("list", "holds no prompts")):
        assert main(["cache", word, "--cache-disk-path", str(tmp_path)]) == 0
        assert says in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["of another program"]
