"""Servers that are killed while they write prompts to the disk, at moments that a seed chooses.

HEADSTART_KILLS=200 in the environment kills so many.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import time
from array import array
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from headstart.scheduler.disk_cache import DiskCache, DiskPlace
from headstart.scheduler.prompt_store import StoredBlock, StoredPrompt
from headstart.structures.prompt_files import read_prompt

NUM_KILLS = int(os.environ.get("HEADSTART_KILLS", "20"))
COMMON = 128  # tokens that all texts begin with
SERVERS = multiprocessing.get_context("forkserver")  # one process loads the modules for all
SERVERS.set_forkserver_preload([__name__])


def write(folder: Path, first: int, told: Connection) -> None:
    """Write texts from this one on without end; say when the first is written."""
    disk = opened(folder)
    for number in range(first, 10**9):
        disk.put(text(number))
        if number == first:
            disk._writer.submit(told.send, number).result()


def opened(folder: Path) -> DiskCache:
    return DiskCache(DiskPlace(folder, 2**40, "model", "drafters", "tiny"))


def text(number: int) -> StoredPrompt:
    """Four blocks, whose bytes follow from their tokens."""
    tokens = array("i", [*range(COMMON), *[number] * 100])
    spans = ((0, 64), (64, COMMON), (COMMON, COMMON + 64), (COMMON + 64, COMMON + 100))
    blocks = (StoredBlock(a, b, content(tokens[a:b])) for a, b in spans)
    return StoredPrompt("", tokens, tuple(blocks), len(tokens), time.time())


def content(tokens: array[int]) -> bytes:
    return tokens.tobytes() * 3000


def test_what_killed_servers_left_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chance, seen = random.Random(0), set[Path]()
    for turn in range(NUM_KILLS):
        heard, told = SERVERS.Pipe(duplex=False)
        process = SERVERS.Process(target=write, args=(tmp_path, 1000 * turn, told))
        process.start()
        assert heard.recv() == 1000 * turn
        time.sleep(chance.uniform(0.0, 0.1))
        process.kill()
        process.join()
        for end in (heard, told):
            end.close()
        with caplog.at_level(logging.WARNING):
            disk = opened(tmp_path)
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
