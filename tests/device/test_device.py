"""On a device: logits are read back, states kept and put back, and texts do not depend on drafts.

`make test-device` runs it on Mesa's software Vulkan, which is slow: small models, few tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.architectures import write_model
from tests.harness import play
from tests.models import MERGES
from tests.real.answers import Setting, different
from tests.real.support import byte_requests, without_draft
from tests.sampling_engine import SamplingEngine, check_best

from headstart.app.assemble import build_scheduler
from headstart.config import EngineConfig
from headstart.engine.context import LlamaEngine
from headstart.engine.devices import list_devices
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.scheduler.scheduler import Scheduler
from headstart.types import Batch, CacheKind

TEXT = list(range(30, 70))
KINDS = (LlamaEngine, SamplingEngine)


@pytest.fixture(scope="module", params=["llama", "qwen35", "granitehybrid"])
def model_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert any("GPU" in device.kind for device in list_devices())
    name = request.param
    path = tmp_path_factory.mktemp("models") / f"{name}.gguf"
    return write_model(path, name, is_quantized=True)


def engine_of(path: Path, gpu_layers: int = 99) -> LlamaEngine:
    settings = EngineConfig(
        context=256, batch=64, threads=1, gpu_layers=gpu_layers, flash_attn="off"
    )
    return LlamaEngine(Model(path, settings), settings, Limits(2, 32, 4))


def decode(
    engine: LlamaEngine, tokens: Sequence[int], position: int, seq_id: int = 0
) -> NDArray[np.float32]:
    batch = Batch(64)
    batch.add(seq_id, position, tokens, min(4, len(tokens)))
    return engine.decode(batch).copy()


def test_rows_that_are_read_back_are_those_of_a_processor(model_file: Path) -> None:
    answers = []
    for engine in (engine_of(model_file), engine_of(model_file, 0)):
        first, other = decode(engine, TEXT, 0), decode(engine, TEXT[7:], 0, 1)
        answers.append(np.concatenate([first, other, decode(engine, [7, 8], len(TEXT))]))
    on_device, on_processor = answers
    tolerance = 0.05 * np.abs(on_processor).max()
    np.testing.assert_allclose(on_device, on_processor, atol=tolerance, rtol=0)


def test_states_are_kept_taken_back_saved_and_restored_bit_for_bit(model_file: Path) -> None:
    engine, plain = engine_of(model_file), engine_of(model_file)
    for one in (engine, plain):
        decode(one, TEXT, 0)
    engine.checkpoint(0)
    assert engine.keep_for_draft(0)
    decode(engine, [7, 100, 101, 102], len(TEXT))
    assert engine.rewind(0, len(TEXT)) == len(TEXT)
    data = engine.save_sequence(0)
    engine.clear(0)
    assert engine.restore_sequence(1, data) == len(TEXT)
    np.testing.assert_array_equal(decode(engine, [7], len(TEXT), 1), decode(plain, [7], len(TEXT)))
    if engine.cache_kind is not CacheKind.CUT:
        assert engine.reusable(1, len(TEXT)) == len(TEXT)


def test_the_best_logits_that_a_device_finds_are_those_of_the_whole_row(tmp_path: Path) -> None:
    settings = EngineConfig(context=256, threads=1, gpu_layers=99, flash_attn="off")
    # libllama aborts on Vulkan where a row does not begin at a multiple of 16 to 64 bytes
    merges = (*MERGES, ("e", "s"), ("o", "r"), ("e", "d"), ("i", "t"), ("a", "l"))
    model = Model(write_model(tmp_path / "a.gguf", "llama", merges=merges), settings)
    assert model.vocab.size % 16 == 0
    plain, sampling = (kind(model, settings, Limits(8, 72, 0)) for kind in KINDS)
    assert isinstance(sampling, SamplingEngine)
    check_best(plain, sampling, [1, 2, 3, 4] * 2)


def open_on_device(path: Path, setting: Setting) -> Scheduler:
    config = setting.config()
    engine = replace(config.engine, gpu_layers=99, flash_attn="off")
    config = replace(config, engine=engine)
    return build_scheduler(config, without_draft(path), warms_up_later=True)[0]


def test_exact_texts_are_the_same_with_drafts_beside_others_and_again(tmp_path: Path) -> None:
    path = write_model(tmp_path / "llama.gguf", "llama", is_quantized=True)
    requests = [replace(r, max_tokens=12) for r in byte_requests(3, 0.8)]
    requests += [replace(r, request_id=f"greedy {r.request_id}") for r in byte_requests(2, 0.0)]
    expected = play(open_on_device(path, Setting(context=256)), requests)
    scheduler = open_on_device(path, Setting("ngram-cache", 4, 2, 256))
    for _ in range(2):
        assert different(expected, play(scheduler, requests)) == ()
    assert scheduler.outcomes.total.drafts.num_drafted > 0
