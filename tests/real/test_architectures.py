"""Every architecture: what its cache gives back is what a fresh cache would hold.

The whole matrix, with speculators and memory, is in benchmarks/models.py; this is its quick form.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.architectures import ARCHITECTURES, WINDOW, write_model

from headstart.config import EngineConfig
from headstart.engine.context import LlamaEngine
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.types import Batch, MemoryKind

MEMORY = {
    MemoryKind.WINDOW: "gemma2 gemma3 gemma3n gemma4 gpt-oss cohere2 olmo2 mimo2 step35",
    MemoryKind.ROLLBACK: "qwen35 qwen35moe lfm2 lfm2moe nemotron_h",
    MemoryKind.CHECKPOINT: "qwen3next granitehybrid falcon-h1 jamba plamo2 kimi-linear mamba "
    "mamba2 rwkv6 rwkv7",
}
KINDS = {name: kind for kind, names in MEMORY.items() for name in names.split()}
TEXT = np.random.default_rng(3).integers(0, 256, 3 * WINDOW).tolist()
PROBE = [5, 6, 7]


@pytest.fixture(scope="module", params=list(ARCHITECTURES))
def model_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = request.param
    return write_model(tmp_path_factory.mktemp("models") / f"{name}.gguf", name)


class Probe:
    """An engine over one file, and what a fresh cache answers.

    Attention is compared bit for bit, in deterministic mode. Recurrent layers have none: logits may
    differ in what rounding does to them.
    """

    def __init__(self, path: Path) -> None:
        self.kind = KINDS.get(path.stem, MemoryKind.CUT)
        self.is_exact = self.kind in (MemoryKind.CUT, MemoryKind.WINDOW)
        settings = EngineConfig(
            context=256,
            batch=128,
            ubatch=128,
            threads=1,
            gpu_layers=0,
            deterministic=self.is_exact,
            cache_type_k="f32",
            cache_type_v="f32",
        )
        self.engine = LlamaEngine(Model(path, settings), settings, Limits(4, 32, 4))

    def decode(self, tokens: Sequence[int], position: int, seq_id: int = 0) -> NDArray[np.float32]:
        batch = Batch(128)
        batch.add(seq_id, position, tokens, min(4, len(tokens)))
        return self.engine.decode(batch).copy()

    def is_as_fresh(self, seq_id: int, text: Sequence[int]) -> bool:
        """Whether the sequence goes on as one that only ever held this text."""
        self.engine.clear(3)
        self.decode(text, 0, 3)
        got, fresh = (
            np.concatenate([self.decode([t], len(text) + i, s) for i, t in enumerate(PROBE)])
            for s in (seq_id, 3)
        )
        assert np.isfinite(fresh).all()
        if self.is_exact:
            return bool((got == fresh).all())
        return bool(np.abs(got - fresh).max() < 2e-3 * np.abs(fresh).max())


def test_the_kind_of_memory_is_recognised(model_file: Path) -> None:
    probe = Probe(model_file)
    assert probe.engine.memory is probe.kind


def test_rejected_drafts_leave_no_trace_far_beyond_the_window(model_file: Path) -> None:
    probe = Probe(model_file)
    text = list(TEXT)
    probe.decode(text, 0)
    for turn in range(WINDOW // 2 if probe.engine.max_rollback else 0):
        probe.decode([turn, 101, 102, 103], len(text))
        text.append(turn)
        assert probe.engine.rewind(0, len(text)) == len(text)
    assert probe.is_as_fresh(0, text)


@pytest.mark.parametrize("length", [2 * WINDOW + 1, 2 * WINDOW, 10])
def test_an_edited_history_goes_on_from_what_is_left(model_file: Path, length: int) -> None:
    probe = Probe(model_file)
    probe.decode(TEXT[: 2 * WINDOW], 0)
    probe.engine.checkpoint(0)
    probe.decode(TEXT[2 * WINDOW :], 2 * WINDOW)
    reusable = probe.engine.reusable(0, length)
    left = probe.engine.rewind(0, length)
    assert left == reusable
    assert left == length or length < 2 * WINDOW or left == 2 * WINDOW
    if left:
        assert probe.is_as_fresh(0, TEXT[:left])


@pytest.mark.parametrize("length", [len(TEXT), 2 * WINDOW, 10])
def test_a_shared_prefix_serves_another_sequence_and_its_own(model_file: Path, length: int) -> None:
    probe = Probe(model_file)
    probe.decode(TEXT[: 2 * WINDOW], 0)
    probe.engine.checkpoint(0)
    probe.decode(TEXT[2 * WINDOW :], 2 * WINDOW)
    probe.decode([1, 2, 3], 0, 1)
    left = probe.engine.reusable(0, length, by_copy=True)
    if left:
        assert probe.engine.copy_prefix(0, 1, left)
        assert probe.is_as_fresh(1, TEXT[:left])
    assert probe.is_as_fresh(0, TEXT)


def test_a_saved_sequence_comes_back_with_its_checkpoints(model_file: Path) -> None:
    probe = Probe(model_file)
    probe.decode(TEXT[:40], 0)
    probe.engine.checkpoint(0)
    probe.decode(TEXT[40:], 40)
    data = probe.engine.save_sequence(0)
    probe.engine.clear(0)
    assert probe.engine.restore_sequence(1, data)
    if probe.kind is not MemoryKind.CUT:
        assert probe.engine.reusable(1, 40) == 40
    assert probe.is_as_fresh(1, TEXT)
