"""Texts longer than the context, moved pieces of kept prompts, and a full cache, which is everyday
business: nobody fails, and the log says it once.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from tests.architectures import tiny_hybrid, write_model
from tests.harness import play, submit_all
from tests.models import tiny_llama
from tests.real.answers import (
    Setting,
    at_each_temperature,
    different,
    make_requests,
    open_config,
    open_setting,
)
from tests.real.support import byte_requests, decode, engine_of, without_draft

from headstart.app import demo
from headstart.app.assemble import Models
from headstart.engine import library
from headstart.engine.context import LlamaEngine
from headstart.scheduler import offloading
from headstart.scheduler.offloading import Offloading
from headstart.scheduler.prompt_store import StoredPrompt
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.sequence import Cells

CONTEXT = 160
PAIR = Models(demo.path(demo.TARGET), demo.path(demo.DRAFT), is_demo=True)


def scheduler_of(types: str, num_slots: int) -> Scheduler:
    config = Setting(types, 6, num_slots, CONTEXT).config()
    limits = replace(config.scheduler, context_shift=True)
    return open_config(replace(config, scheduler=limits), PAIR)


def test_a_shifted_text_is_identical_with_and_without_drafts() -> None:
    requests = [
        replace(
            r, prompt=r.prompt[:90], num_keep=keep, sampling=replace(r.sampling, ignore_eos=True)
        )
        for r, keep in zip(
            at_each_temperature(partial(make_requests, 3, max_tokens=200)),
            (0, 8, -1) * 3,
            strict=True,
        )
    ]
    scheduler = scheduler_of("ngram-simple,draft-model", 2)
    expected = play(scheduler_of("off", 1), requests)
    assert [len(result.tokens) for result in expected.values()] == [200] * 9
    assert different(expected, play(scheduler, requests)) == ()
    assert scheduler.outcomes.total.drafts.num_accepted > 0


def test_an_exact_text_that_is_interrupted_behind_a_shift_goes_on_as_alone() -> None:
    """Another tenant takes its cells; what is left of it is read again."""
    requests = [
        replace(
            r,
            prompt=r.prompt[:90],
            num_keep=8,
            namespace=tenant,
            sampling=replace(r.sampling, ignore_eos=True),
        )
        for r, tenant in zip(make_requests(3, 0.8, max_tokens=200), "aab", strict=True)
    ]
    scheduler = scheduler_of("off", 2)
    expected = play(scheduler_of("off", 1), requests)
    submit_all(scheduler, requests[:2], 120)
    assert all(one.num_dropped for one in scheduler.running)
    assert different(expected, play(scheduler, requests[2:])) == ()
    assert scheduler.counters.preemptions == 1


def test_an_exact_text_does_not_depend_on_pieces_of_a_kept_prompt() -> None:
    (first,) = make_requests(1, 0.0, max_tokens=24)
    prompt = (*first.prompt[:10], *first.prompt[30:90])
    request = replace(first, request_id="pieces", prompt=prompt, cache_reuse=8)
    expected = play(scheduler_of("off", 1), [request])
    scheduler = scheduler_of("off", 1)
    play(scheduler, [replace(first, prompt=first.prompt[:90])])
    assert different(expected, play(scheduler, [request])) == ()
    assert scheduler.counters.prompt_tokens_cached == 10


@pytest.fixture(scope="module")
def engine() -> LlamaEngine:
    return engine_of(demo.path(demo.TARGET))


def test_a_shift_leaves_the_sequences_that_share_its_cells_alone(engine: LlamaEngine) -> None:
    text, following = list(range(40, 100)), [7]
    engine.clear(0)
    decode(engine, text, 0)
    expected = decode(engine, following, 60)
    assert engine.truncate(0, 60)
    assert engine.copy_prefix(0, 1, 60)
    assert engine.shift(1, 10, 30)
    moved = decode(engine, following, 40, seq_id=1)
    assert np.allclose(decode(engine, following, 60), expected, atol=1e-3)
    assert not np.allclose(moved, expected, atol=1e-1)


def test_a_text_is_shifted_where_its_beginning_is_shared_and_no_cell_is_free() -> None:
    """Else it would be read again, and go on otherwise than alone."""
    engine, alone = (engine_of(demo.path(demo.TARGET)) for _ in range(2))
    for one in (engine, alone):
        decode(one, list(range(40, 140)), 0)
    assert engine.copy_prefix(0, 1, 100)
    for one, seq_id in ((engine, 1), (alone, 0)):
        decode(one, [7 + i % 90 for i in range(156)], 100, seq_id=seq_id)
        assert one.shift(seq_id, 4, 130)
    moved = [decode(engine, [7], 130, seq_id=1), decode(alone, [7], 130)]
    assert np.allclose(*moved, atol=1e-3)


def test_what_was_shared_and_cut_off_since_hinders_no_shift_in_a_full_cache() -> None:
    engine = engine_of(demo.path(demo.TARGET))
    decode(engine, list(range(40, 140)), 0)
    assert engine.copy_prefix(0, 1, 100)
    assert engine.truncate(1, 10)
    decode(engine, [7 + i % 90 for i in range(156)], 10, seq_id=1)
    assert engine.shift(1, 20, 60)


def test_a_state_that_is_saved_at_once_after_a_shift_is_that_of_the_shifted_text(engine) -> None:
    """libllama moves the tokens with the next decode, which may never come."""
    engine.clear(0)
    engine.clear(1)
    decode(engine, list(range(40, 100)), 0)
    assert engine.shift(0, 10, 30)
    saved = engine.save_sequence(0)
    expected = decode(engine, [7], 40)
    assert engine.restore_sequence(1, saved) == 40
    restored = decode(engine, [7], 40, seq_id=1)
    # in other cells sums come in another order; one that is not moved is 3.3 off
    assert np.abs(restored - expected).max() < 0.5


def test_moved_tokens_stand_where_the_model_expects_them(engine: LlamaEngine) -> None:
    """With all in front dropped, keys turned back are those of a text read from its beginning."""
    text = list(range(40, 100))
    engine.clear(0)
    decode(engine, text[:1], 0)  # in the first layer a key depends on its token alone
    decode(engine, text[1:], 1)
    assert engine.shift(0, 0, 30)
    moved = decode(engine, [7], 30)
    engine.clear(0)
    decode(engine, text[30:], 0)
    fresh = decode(engine, [7], 30)
    engine.clear(0)
    decode(engine, text, 0)
    unmoved = decode(engine, [7], 60)
    assert np.abs(moved - fresh).mean() < 2 * np.abs(unmoved - fresh).mean()
    assert np.corrcoef(moved, fresh)[0, 1] > 0.9


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
        num_own = cells.length  # may have been decoded with another number of rows than the stored
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
                assert block.start < num_own or bytes(saved) == bytes(block.data)
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
