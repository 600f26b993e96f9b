"""What a model takes is known before it is loaded; limits that abort libllama are not reached."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.architectures import tiny_hybrid, write_model
from tests.models import tiny_bert, tiny_llama
from tests.real.support import decode, engine_of, without_draft

from headstart.app import loading
from headstart.app.assemble import Models, build_scheduler, load_served_model
from headstart.app.loading import fit_models
from headstart.config import (
    Config,
    EmbeddingConfig,
    EngineConfig,
    SchedulerConfig,
    SpeculationConfig,
)
from headstart.engine import library
from headstart.engine.context import LlamaEngine
from headstart.engine.embedding import LlamaEmbedder
from headstart.engine.fit import Part
from headstart.engine.footprint import HOST, can_measure, measure, uses_of
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.types import Batch
from headstart.types.errors import ConfigError, ModelError

needs_measuring = pytest.mark.skipif(not can_measure(), reason="libllama tells on Linux x86-64")
LIMITS = Limits(4, 4 * 17, 16)


@pytest.fixture(scope="module", params=["llama", "gemma3", "qwen35", "mamba2", "gpt-oss"])
def model_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", request.param)


@needs_measuring
@pytest.mark.parametrize("context", [512, 4096])
def test_the_estimate_is_what_libllama_takes(model_file: Path, context: int) -> None:
    config = EngineConfig(context=context, gpu_layers=0, threads=1)
    _, expected = measure(model_file, config, LIMITS, context)
    engine = LlamaEngine(Model(model_file, config), config, LIMITS)
    taken = uses_of(engine.handle)[HOST]
    if engine.reader is not None:
        assert engine.reader.open()
        taken += replace(uses_of(engine.reader.handle)[HOST], weights=0)
    assert expected[HOST].cache == taken.cache
    assert expected[HOST].weights == pytest.approx(taken.weights, rel=0.01)
    assert expected[HOST].compute == pytest.approx(taken.compute, rel=0.05)


@needs_measuring
@pytest.mark.parametrize("write", [tiny_bert, tiny_llama])
def test_embeddings_are_counted(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    """Models that compute nothing else are estimated too: a router loads none that are not."""
    path, sums = write(tmp_path / "tiny.gguf"), list[int]()
    engine = EngineConfig(context=512, gpu_layers=0, threads=1)
    wanted = EmbeddingConfig(embeddings=True)
    embedder = LlamaEmbedder(Model(path, engine), engine, wanted)
    taken = uses_of(embedder._handle)[HOST]
    for embedding in (wanted, EmbeddingConfig()) if write is tiny_llama else (wanted,):
        config = Config(engine=engine, embedding=embedding)
        use = fit_models(config, Models(path, None, is_demo=False)).uses[HOST]
        sums.append(use.cache + use.compute)
    assert sums[0] - sum(sums[1:]) == pytest.approx(taken.cache + taken.compute, rel=0.05)


@needs_measuring
def test_libllama_knows_the_nodes_of_memory_before_it_is_asked_anything(tmp_path, monkeypatch):
    """It is started once: by what asks for free memory first, it would be without --numa."""
    told: list[int] = []
    monkeypatch.setattr(library, "_started", False)
    monkeypatch.setattr(library.api, "llama_numa_init", told.append)
    config = Config(engine=EngineConfig(context=512, gpu_layers=0, numa="isolate"))
    fit_models(config, Models(tiny_llama(tmp_path / "tiny.gguf")))
    assert told == [2]


def test_embeddings_beside_texts_are_counted_where_the_layers_are(tmp_path, monkeypatch) -> None:
    asked: list[Callable[[EngineConfig], list[Part]]] = []
    monkeypatch.setattr(loading, "fit", lambda part, beside, **more: asked.append(beside))
    config = Config(engine=EngineConfig(context=512), embedding=EmbeddingConfig(embeddings=True))
    fit_models(config, Models(tiny_llama(tmp_path / "tiny.gguf")))
    (part,) = asked[0](replace(config.engine, context=256, gpu_layers=3))
    assert (part.config.gpu_layers, part.config.context) == (3, 512)


def taken_by_default(path: Path, *, drafts: bool, slots: int) -> tuple[float, int]:
    """Bytes of cache and computing, and snapshots, as a server takes them by default."""
    config = Config(
        engine=EngineConfig(context=32768, gpu_layers=0),
        scheduler=SchedulerConfig(parallel=slots),
        speculation=SpeculationConfig(spec="auto" if drafts else "off"),
    )
    fitted = fit_models(config, Models(path, None, is_demo=False), free={HOST: 2**40})
    return fitted.uses[HOST].cache + fitted.uses[HOST].compute, fitted.limits.max_draft


@needs_measuring
@pytest.mark.parametrize("slots", [1, 4])
def test_by_default_snapshots_of_a_hybrid_take_a_twentieth_at_most(tmp_path, slots: int) -> None:
    """Next to a server that drafts nothing, which takes what llama-server takes."""
    path = write_model(tmp_path / "tiny.gguf", "qwen35", changes={"context_length": 32768})
    without, none = taken_by_default(path, drafts=False, slots=slots)
    taken, snapshots = taken_by_default(path, drafts=True, slots=slots)
    assert taken <= 1.05 * without
    assert (none, snapshots) == (0, 8 if slots == 1 else 0)


@needs_measuring
def test_windows_and_snapshots_are_counted(tmp_path: Path) -> None:
    windowed = write_model(tmp_path / "windowed.gguf", "gemma3")
    config = EngineConfig(context=8192, gpu_layers=0, repack=False)  # no cache for prompts
    sizes = []
    for swa_full in (False, True):
        settings = EngineConfig(context=8192, gpu_layers=0, swa_full=swa_full)
        _, measured = measure(windowed, settings, LIMITS, 8192)
        sizes.append(measured[HOST].cache)
    assert sizes[0] < 0.5 * sizes[1]
    hybrid = tiny_hybrid(tmp_path / "hybrid.gguf")
    sizes = []
    for max_draft in (0, 1, 8):
        _, measured = measure(hybrid, config, Limits(4, 64, max_draft), 512)
        sizes.append(measured[HOST].cache)
    assert sizes[2] - sizes[0] == 8 * (sizes[1] - sizes[0])


@pytest.mark.parametrize(
    "settings",
    [
        EngineConfig(context=256, ubatch=32),
        EngineConfig(context=256, ubatch=2),
        EngineConfig(context=256, batch=8),
        EngineConfig(context=64),
    ],
    ids=["ubatch 32", "ubatch 2", "batch 8", "context 64"],
)
@pytest.mark.parametrize("write", [tiny_llama, tiny_hybrid])
def test_small_batches_and_long_drafts_do_not_abort(tmp_path, settings, write) -> None:
    path = write(tmp_path / "tiny.gguf")
    engine = LlamaEngine(Model(path, settings), settings, Limits(2, 2 * 512, 511))
    most = min(engine.max_batch_tokens, engine.max_outputs, 40)
    assert len(decode(engine, list(range(most)), 0, most)) == most
    assert engine.max_rollback >= 2**20 or engine.max_rollback <= settings.ubatch - 2


def test_more_slots_than_rows_in_a_decode_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--parallel is 8 but a decode takes 4 tokens"):
        engine_of(tiny_llama(tmp_path / "m.gguf"), Limits(8, 8, 0), batch=4)


@needs_measuring
def test_the_start_says_what_memory_is_taken(tmp_path, caplog) -> None:
    config = Config(
        engine=EngineConfig(context=256, batch=64, threads=1, gpu_layers=0),
        scheduler=SchedulerConfig(parallel=1),
        speculation=SpeculationConfig(spec_state="none"),
    )
    with caplog.at_level("INFO", "headstart"):
        build_scheduler(config, Models(tiny_llama(tmp_path / "m.gguf"), None, is_demo=False))
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("memory: ")]
    assert "main memory" in line
    assert "weights 0 MiB, cache 0 MiB" in line


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"override_kv": "a=number:1"}, "--override-kv has 'a=number:1' but must be KEY=TYPE"),
        ({"override_kv": "a=int:x"}, "--override-kv a is 'x', which is no int"),
        ({"override_kv": "a" * 128 + "=int:1"}, "a key of 128 bytes; libllama takes 127"),
        ({"override_tensor": "ffn=Nowhere"}, "must be PATTERN=BUFFER with one of the buffers CPU"),
        ({"override_tensor": "ffn(=CPU"}, "'ffn\\(', which is no regular expression"),
        ({"lora": "/nowhere/a.gguf"}, "--lora names /nowhere/a.gguf, which does not exist"),
        ({"control_vector": "/nowhere/v"}, "--control-vector names /nowhere/v, which does not"),
        ({"lora_scaled": "a.gguf"}, "must be FILE:SCALE"),
    ],
)
def test_impossible_overrides_are_named(tmp_path, settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        engine_of(tiny_llama(tmp_path / "m.gguf"), **settings)


def test_overrides_reach_libllama(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    changed = engine_of(
        path,
        override_kv="llama.context_length=int:77,general.name=str:renamed",
        override_tensor="ffn_.*=CPU",
        n_cpu_moe=2,
        rope_freq_base=5000.0,
        repack=False,
        kv_offload=False,
    )
    assert changed.model.facts.train_context == 77
    text = [1, 2, 3, 4]
    differs = decode(changed, text) != decode(engine_of(path), text)
    assert differs.any(), "another RoPE, other logits"


def test_overrides_reach_the_vocabulary_of_the_web_process(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    for is_on in (True, False):
        override = f"tokenizer.ggml.add_bos_token=bool:{str(is_on).lower()}"
        config = Config(engine=EngineConfig(override_kv=override))
        assert load_served_model(config, without_draft(path)).vocab.add_bos == is_on


def test_one_exact_sequence_without_drafts_decodes(tmp_path: Path) -> None:
    engine = engine_of(tiny_llama(tmp_path / "m.gguf"), Limits(1, 1, 0), exact=True)
    assert len(decode(engine, [1, 2, 3])) == 1


def test_a_batch_that_nobody_fills_again_is_freed(tmp_path: Path) -> None:
    """An interrupted warm-up makes others each time."""
    engine = engine_of(tiny_llama(tmp_path / "tiny.gguf"))
    tokens = []
    for position in range(3):
        batch = Batch(8)
        batch.add(0, position, [1], 1)
        engine.decode(batch)
        tokens.append(weakref.ref(batch.tokens))
    del batch
    assert [token() is None for token in tokens] == [True, True, False]  # the last was launched


@pytest.mark.parametrize("flash_attn", ["auto", "off"])
def test_keys_that_no_quantized_block_can_hold_are_refused(flash_attn: str, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf")
    with pytest.raises(
        ConfigError,
        match=r"a key of this llama model has 16; choose one of f32.*--draft-cache-type-k",
    ):
        engine_of(path, cache_type_k="q4_1", flash_attn=flash_attn)


def test_exact_decodes_may_be_small_but_not_too_small(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf")
    assert engine_of(path, exact=True, batch=7).widths.most == 7
    with pytest.raises(ConfigError, match="decodes of 6 tokens and --batch is 5; raise it"):
        engine_of(path, exact=True, batch=5)


@pytest.mark.parametrize(("is_unified", "warned"), [(True, 2), (False, 0)])
def test_only_a_context_that_a_request_can_have_is_compared_with_the_trained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_unified: bool, warned: int
) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf")  # trained on 2048 tokens
    config = Config(
        engine=EngineConfig(context=4096, gpu_layers=0, threads=1),
        scheduler=SchedulerConfig(parallel=4, kv_unified=is_unified),
        speculation=SpeculationConfig(spec_type="draft-model"),
    )
    with caplog.at_level("WARNING", "headstart"):
        scheduler, _ = build_scheduler(config, Models(path, path), warms_up_later=True)
    scheduler.drafting.close()
    told = [line for line in caplog.messages if "train" in line]
    assert len(told) == warned
    assert all("trained on 2048 tokens but a request may have 4096" in line for line in told)


def test_the_log_names_a_file_before_it_is_read(tmp_path: Path, caplog) -> None:
    path = tmp_path / "missing.gguf"
    with caplog.at_level("INFO", "headstart"), pytest.raises(ModelError):
        build_scheduler(Config(), Models(path))
    assert caplog.messages[0] == f"loading {path}"
