"""A cache that is full is everyday business: nobody fails, and the log says it once."""

from __future__ import annotations

import logging
import random
from collections import Counter
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import cast

import pytest
from tests.architectures import tiny_hybrid, write_model
from tests.harness import play
from tests.models import tiny_llama
from tests.real.answers import Setting, open_setting
from tests.real.support import byte_requests, without_draft

from headstart.engine import library
from headstart.engine.context import LlamaEngine
from headstart.scheduler import offloading
from headstart.scheduler.offloading import Offloading
from headstart.scheduler.prompt_store import StoredPrompt
from headstart.scheduler.sequence import Cells


def hybrid_with_windows(path: Path) -> Path:
    """Write a model of which libllama names both caches of its attention."""
    return write_model(path, "lfm2")


@pytest.mark.parametrize("write", [tiny_llama, tiny_hybrid, hybrid_with_windows])
def test_a_full_cache_is_said_once_and_every_request_ends_well(
    write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "_has_told_full", False)
    setting = Setting("ngram-cache", 4, num_slots=4, context=256, exact=False)
    scheduler = open_setting(setting, without_draft(write(tmp_path / "tiny.gguf")))
    endless = [
        replace(r, max_tokens=120, sampling=replace(r.sampling, ignore_eos=True))
        for r in byte_requests(6)
    ]
    caplog.clear()
    with caplog.at_level(logging.INFO, "headstart"):
        results = play(scheduler, endless)
    assert scheduler.counters.preemptions > 0
    assert not any(r.error for r in results.values())
    assert [len(r.tokens) for r in results.values()] == [120] * 6
    from_libllama = [r for r in caplog.records if r.name == "headstart.libllama"]
    assert [r.levelno for r in from_libllama] == [logging.INFO]
    assert "the cache is full" in from_libllama[0].message


@pytest.mark.parametrize("write", [tiny_llama, tiny_hybrid])
def test_a_prompt_that_finds_no_room_is_not_partly_restored_and_nobody_is_alarmed(
    write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting(num_slots=4, context=512, exact=False)
    scheduler = open_setting(setting, without_draft(write(tmp_path / "tiny.gguf")))
    engine, outcomes = cast("LlamaEngine", scheduler.engine), Counter[str]()
    restore = Offloading.restore

    def checked(self: Offloading, stored: StoredPrompt, cells: Cells, wanted: int) -> bool:
        is_back = restore(self, stored, cells, wanted)
        outcomes[str(is_back)] += 1
        if not cells.length:
            nothing = len(engine.save_sequence(4))  # of no slot
            assert len(engine.save_sequence(cells.seq_id)) == nothing
        elif stored.is_whole:
            assert cells.length == len(stored.tokens)
        else:
            for block in stored.known(cells.length):
                saved = engine.save_block(cells.seq_id, block.start, block.end)
                assert bytes(saved) == bytes(block.data)
        return is_back

    monkeypatch.setattr(Offloading, "restore", checked)
    # on a busy machine a copy would go on in later steps, and slots meanwhile read such texts
    # themselves, with other numbers of rows: then the last bits differ
    monkeypatch.setattr(offloading, "STEP_SECONDS", inf)
    chance = random.Random(0)
    prompts = [[chance.randrange(97, 122) for _ in range(300)] for _ in range(6)]
    with caplog.at_level(logging.WARNING, "headstart"):
        (asked,) = byte_requests(1)
        for number in range(60):
            prompt = chance.choice(prompts)[: chance.randint(100, 300)]
            asked = replace(asked, request_id=f"{number}", prompt=prompt)
            scheduler.submit(replace(asked, max_tokens=chance.randint(1, 40)))
            while len(scheduler.running) + len(scheduler.waiting) > chance.randint(0, 4):
                scheduler.step()
    assert outcomes["True"] > 5
    assert outcomes["False"] > 0
    assert not [record for record in caplog.records if "restore" in record.message]
    assert not [record for record in caplog.records if "available cells" in record.message]


def test_other_warnings_and_errors_of_libllama_stay_loud(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "headstart"):
        for level, line in (
            (3, b"decode: something is odd\n"),
            (4, b"llama_decode: something broke\n"),
        ):
            library._on_log(level, line, None)
        library._on_log(4, b"init_batch: failed to prepare attention ubatches\n", None)
    assert [r.levelno for r in caplog.records if "something" in r.message] == [
        logging.WARNING,
        logging.ERROR,
    ]
    assert library.take_errors() == "something broke"
