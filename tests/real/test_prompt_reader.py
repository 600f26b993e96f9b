"""Prompts that are read in a cache of their own while other texts are in the shared one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.architectures import write_model
from tests.harness import play
from tests.models import tiny_llama
from tests.planted import noted
from tests.real.answers import make_requests
from tests.real.support import without_draft

from headstart.app import demo, loading
from headstart.app.assemble import build_scheduler
from headstart.config import Config, EngineConfig, SchedulerConfig, SpeculationConfig
from headstart.engine import prompt_reader
from headstart.engine.context import LlamaEngine
from headstart.engine.footprint import HOST, REPACKED, Use
from headstart.engine.library import api
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.offloading import Offloading
from headstart.scheduler.prompt_store import PromptStore, StoredBlock, StoredPrompt
from headstart.scheduler.sequence import Cells
from headstart.structures.prefix import packed
from headstart.types import Batch, ContextFullError
from headstart.types.report import Counters
from headstart.types.sampling_params import SamplingParams

CONFIG = EngineConfig(
    context=2048, batch=512, threads=1, gpu_layers=0, cache_type_k="f32", cache_type_v="f32"
)
NUM = 4


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In F32, so that what is beside a row changes its logits little."""
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


def engine_of(path: Path, *, context: int = 2048, is_apart: bool = True) -> LlamaEngine:
    config = replace(CONFIG, context=context)
    engine = LlamaEngine(Model(path, config), config, Limits(NUM, 64, 8))
    assert engine.reader is not None
    if not is_apart:
        engine.reader = None
    return engine


def lengths(engine: LlamaEngine) -> dict[int, int]:
    """Of the prompts that are read apart, by sequence."""
    assert engine.reader is not None
    return engine.reader.lengths


def read(engine: LlamaEngine, seq_id: int, start: int, num_rows: int) -> NDArray[np.float32]:
    batch = Batch(512)
    batch.add(seq_id, start, [7 + i % 90 for i in range(num_rows)], 1)
    return engine.decode(batch).copy()


def test_only_prompts_beside_others_that_fit_are_read_apart(path: Path) -> None:
    engine = engine_of(path)
    assert engine.reader is not None
    read(engine, 0, 0, 300)  # alone
    assert not lengths(engine)
    assert engine.reader.handle is None  # takes no memory until then
    read(engine, 1, 0, 40)  # less than a tile
    read(engine, 0, 300, 1)
    assert not lengths(engine)
    read(engine, 1, 40, 100)  # with what is known of it
    read(engine, 2, 0, 64)
    assert lengths(engine) == {1: 140, 2: 64}
    read(engine, 1, 140, 1)  # its answer begins
    assert lengths(engine) == {2: 64}
    engine.clear(2)
    assert not lengths(engine)


def test_with_unpacked_weights_all_prompts_but_short_ones_are_read_apart(path: Path) -> None:
    engine, shared = engine_of(path), engine_of(path, is_apart=False)
    assert engine.reader is not None
    engine.reader.unpack(Model(path, CONFIG))
    assert engine.reader.speedup(engine.handle) > 0
    assert not lengths(engine)
    logits = []
    for one in (engine, shared):
        read(one, 0, 0, 31)
        assert one is shared or not lengths(engine)
        read(one, 0, 31, 32)
        assert one is shared or lengths(engine) == {0: 63}
        read(one, 0, 63, 1)  # an answer
        assert one is shared or not lengths(engine)
        logits.append(read(one, 0, 64, 40))  # the next question
    assert lengths(engine) == {0: 104}
    np.testing.assert_allclose(logits[0], logits[1], atol=0.02)
    engine.clear(0)
    engine.reader.unpack(None)
    read(engine, 1, 0, 100)
    assert not lengths(engine)


@pytest.mark.parametrize(
    ("is_repacked", "speedup", "changes", "is_used"),
    [
        (True, 1.5, {}, True),
        (True, 1.04, {}, False),  # not faster
        (False, 1.5, {}, False),  # in a format without repacking
        (True, 1.5, {"repack": False}, False),
        (True, 1.5, {"mmap": False}, False),  # would take memory twice
        (True, 1.5, {"mlock": True}, False),
        (True, 1.5, {"context": 4096}, False),  # of a model with other factors in long contexts
    ],
)
def test_weights_are_mapped_unpacked_where_prompts_are_faster_with_them(
    is_repacked, speedup, changes, is_used, tmp_path, monkeypatch
) -> None:
    name = REPACKED if is_repacked else HOST
    monkeypatch.setattr(loading, "can_measure", lambda: True)
    monkeypatch.setattr(loading, "uses_of", lambda _: {name: Use(weights=1000, cache=1000)})
    monkeypatch.setattr(prompt_reader.PromptReader, "speedup", lambda *_: speedup)
    keys = {"rope.scaling.original_context_length": 2048, "attention.sliding_window": 0}
    monkeypatch.setattr(prompt_reader, "CELLS", 2048)
    path = write_model(tmp_path / "tiny.gguf", "phi3", changes={"context_length": 4096} | keys)
    config = replace(CONFIG, **changes)
    engine = LlamaEngine(Model(path, config), config, Limits(1, 8, 8))
    loading.unpack_prompts(engine, config)
    read(engine, 0, 0, 40)
    assert (engine.reader is not None and 0 in lengths(engine)) == is_used
    if engine.reader is not None and is_used:
        monkeypatch.setattr(loading, "available_memory", lambda: 1999)
        engine.clear(0)
        engine.reader.unpack(None)
        loading.unpack_prompts(engine, config)
        read(engine, 0, 0, 40)
        assert not lengths(engine)


def test_decodes_of_few_rows_try_no_unpacked_weights(path: Path, monkeypatch) -> None:
    """Libllama aborts if a decode has more."""
    monkeypatch.setattr(loading, "can_measure", lambda: True)
    monkeypatch.setattr(loading, "uses_of", lambda _: {REPACKED: Use(weights=1000, cache=1000)})
    trials = noted(monkeypatch, loading, "Model")
    config = replace(CONFIG, batch=16)
    engine = LlamaEngine(Model(path, config), config, Limits(1, 8, 8))
    monkeypatch.setattr(prompt_reader.PromptReader, "speedup", lambda *_: 2.0)
    loading.unpack_prompts(engine, config)
    assert not trials


def test_a_known_beginning_that_was_moved_is_where_it_was_moved_to(path: Path) -> None:
    """libllama moves it in the next decode; a state that is read before has it unmoved."""
    logits = []
    for is_apart in (True, False):
        engine = engine_of(path, is_apart=is_apart)
        for seq_id in range(2):
            read(engine, seq_id, 0, 300)
        assert engine.truncate(1, 90)
        assert engine.shift(1, 10, 30)
        logits.append(read(engine, 1, 70, 100))
    np.testing.assert_allclose(logits[0], logits[1], atol=0.02)


def test_a_long_beginning_is_shared_and_not_copied(path: Path) -> None:
    engine = engine_of(path, context=1024)
    read(engine, 0, 0, 300)
    for seq_id in range(1, NUM):
        assert engine.copy_prefix(0, seq_id, 150)
        read(engine, seq_id, 150, 160)
    assert not lengths(engine)
    for seq_id in range(NUM):
        read(engine, seq_id, 310 if seq_id else 300, 1)


def test_a_block_of_a_prompt_can_be_had_where_the_shared_cache_is_full(path: Path) -> None:
    engine, alone = engine_of(path, context=512), engine_of(path, is_apart=False)
    read(engine, 0, 0, 400)
    read(engine, 1, 0, 250)
    read(alone, 0, 0, 250)
    block = engine.save_block(1, 0, 128)
    assert lengths(engine) == {1: 250}
    assert alone.restore_block(1, block)
    assert alone.truncate(0, 128)
    np.testing.assert_allclose(read(alone, 1, 128, 1), read(alone, 0, 128, 1), atol=0.15)


def test_a_stored_prompt_comes_back_whole_where_its_beginning_cannot_be_copied(path: Path) -> None:
    engine, donor = (engine_of(path, context=512) for _ in range(2))
    read(donor, 0, 0, 192)
    tokens = [7 + i % 90 for i in range(192)]
    blocks = tuple(
        StoredBlock(at, at + 64, donor.save_block(0, at, at + 64)) for at in (0, 64, 128)
    )
    read(engine, 0, 0, 350)
    read(engine, 1, 0, 180)  # begins alike, and the shared cache has no room for it
    assert lengths(engine) == {1: 180}
    cells = [Cells(seq_id) for seq_id in range(NUM)]
    cells[1].hold(tokens[:180])
    store, drafting, counters = PromptStore(2**30), Mock(Drafting), Counters()
    offloading = Offloading(cells, store, engine, drafting, counters, lambda: 0.0)
    stored = StoredPrompt("", packed(tokens), blocks, 192, 1.0)
    assert not engine.copy_prefix(1, 2, 128)
    assert not offloading.restore(stored, cells[2], 192)  # all of it is too much
    engine.clear(0)
    assert offloading.restore(stored, cells[2], 192)
    assert (cells[2].length, counters.prompt_tokens_restored) == (192, 192)
    np.testing.assert_allclose(read(engine, 2, 192, 1), read(donor, 0, 192, 1), atol=0.15)


def test_models_with_other_factors_in_long_contexts_are_read_in_the_shared_cache(tmp_path) -> None:
    changes = {
        "context_length": 8192,
        "rope.scaling.original_context_length": 4096,
        "attention.sliding_window": 0,
    }
    path = write_model(tmp_path / "tiny.gguf", "phi3", changes=changes)
    key = "phi3.rope.scaling.original_context_length"
    for context, original, is_apart in (
        (4096, 4096, True), (8192, 4096, False), (8192, 2048, True), (8192, 8192, True)
    ):  # fmt: skip
        override = None if original == 4096 else f"{key}=int:{original}"
        config = replace(CONFIG, context=context, override_kv=override)
        engine = LlamaEngine(Model(path, config), config, Limits(NUM, 64, 8))
        assert (engine.reader is not None) == is_apart


def test_a_long_prompt_goes_on_in_the_shared_cache(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(prompt_reader, "CELLS", 256)
    engine = engine_of(path)
    read(engine, 0, 0, 300)
    read(engine, 1, 0, 128)
    assert lengths(engine) == {1: 128}
    read(engine, 2, 0, 200)  # there is room for one of them
    assert lengths(engine) == {2: 200}
    read(engine, 2, 200, 100)
    assert not lengths(engine)


def test_with_unpacked_weights_the_separate_cache_grows_with_a_long_prompt(
    path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(prompt_reader, "CELLS", 256)
    engine, shared = engine_of(path), engine_of(path, is_apart=False)
    assert engine.reader is not None
    engine.reader.unpack(Model(path, CONFIG), 768)
    read(engine, 0, 0, 200)
    with monkeypatch.context() as patch:
        patch.setattr(api, "llama_init_from_model", lambda *_: None)
        read(engine, 0, 200, 200)  # there is no memory: the small one stays
    read(engine, 1, 0, 200)
    assert lengths(engine) == {1: 200}
    engine.clear(0)
    engine.clear(1)
    engine.reader.unpack(Model(path, CONFIG), 768)
    logits = []
    for one in (engine, shared):
        read(one, 0, 0, 200)
        read(one, 1, 0, 50)
        read(one, 0, 200, 200)  # together they need more than there is
        assert one is shared or lengths(engine) == {0: 400}
        read(one, 1, 50, 100)
        assert one is shared or lengths(engine) == {0: 400, 1: 150}
        read(one, 0, 400, 1)  # an answer
        logits.append(read(one, 1, 150, 500))
    assert lengths(engine) == {1: 650}
    np.testing.assert_allclose(logits[0], logits[1], atol=0.15)
    read(engine, 0, 401, 200)  # with what is known of it, too much for both
    assert lengths(engine) == {0: 601}


def test_a_prompt_that_the_shared_cache_has_no_room_for_is_not_lost(path: Path) -> None:
    engine = engine_of(path, context=512)
    read(engine, 0, 0, 300)
    read(engine, 1, 0, 250)
    with pytest.raises(ContextFullError):
        read(engine, 1, 250, 1)
    assert lengths(engine) == {1: 250}
    engine.clear(0)
    read(engine, 1, 250, 1)


def test_a_server_short_of_cells_gives_everybody_his_text() -> None:
    """But for near ties: when a prompt is read, and so which texts are beside it, is up to time."""
    requests = [
        replace(
            one,
            prompt=(tuple(one.prompt) * 8)[: 120 + 20 * i],
            sampling=SamplingParams(temperature=0.0),
        )
        for i, one in enumerate(make_requests(8, 0.0, max_tokens=24))
    ]
    config = Config(
        engine=replace(CONFIG, context=512),
        scheduler=SchedulerConfig(parallel=NUM),
        speculation=SpeculationConfig(spec="off", spec_state="none"),
    )
    scheduler = build_scheduler(config, without_draft(demo.path(demo.TARGET)))[0]
    answers = play(scheduler, requests)
    reader = getattr(scheduler.engine, "reader", None)
    assert reader is not None
    assert reader.handle is not None
    assert scheduler.counters.preemptions
    alone, batch = engine_of(demo.path(demo.TARGET), is_apart=False), Batch(512)
    for request in requests:
        tokens = answers[request.request_id].tokens
        assert tokens
        alone.clear(0)
        batch.clear()
        batch.add(0, 0, [*request.prompt, *tokens[:-1]], len(tokens))
        logits = alone.decode(batch)
        chosen = logits[np.arange(len(tokens)), tokens]
        assert (logits.max(axis=1) - chosen).max() < 0.5


def test_where_it_cannot_be_had_prompts_are_read_in_the_shared_cache(path, monkeypatch, caplog):
    engine = engine_of(path)
    read(engine, 0, 0, 300)
    monkeypatch.setattr(api, "llama_init_from_model", lambda model, params: None)
    for _ in range(2):
        read(engine, 1, 0, 100)
        engine.clear(1)
    assert not lengths(engine)
    assert caplog.text.count("processed in the shared cache") == 1
