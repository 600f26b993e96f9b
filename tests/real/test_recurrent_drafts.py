"""Recurrent and hybrid models as draft models: what they draft is right, and no text changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.architectures import write_model
from tests.harness import play
from tests.models import MERGES, OTHER_MERGES, Merges, tiny_llama
from tests.real.answers import Setting, different, open_setting

from headstart.app.assemble import Models
from headstart.config import EngineConfig
from headstart.engine.context import LlamaEngine
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.sampling import SamplingParams
from headstart.speculators.draft_model import DraftModelSpeculator
from headstart.types import CacheKind, DraftRequest
from headstart.types.request import Request

ARCHITECTURES = ("mamba2", "rwkv7", "qwen35", "granitehybrid", "lfm2", "falcon-h1")
SETTINGS = (Setting("draft-model", 5, 1), Setting("draft-model", 3, 4), Setting("auto", 8, 3))
SIZE = 256  # ids that every model here has


def requests() -> list[Request]:
    random = np.random.default_rng(1)
    shared = random.integers(0, SIZE, 90).tolist()
    return [
        Request(
            request_id=str(i),
            prompt=(*shared[: 20 * (i % 4)], *random.integers(0, SIZE, 12).tolist()),
            sampling=SamplingParams(temperature=0.8 * (i % 2), seed=i, ignore_eos=True),
            max_tokens=24,
        )
        for i in range(6)
    ]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_after_rejections_it_drafts_what_it_would_have_drafted_had_it_read_the_text(
    architecture: str, tmp_path: Path
) -> None:
    config = EngineConfig(context=512, threads=1, gpu_layers=0, ctx_checkpoints=8)
    path = write_model(tmp_path / "draft.gguf", architecture)
    engine = LlamaEngine(Model(path, config), config, Limits(2, 2, 0))
    assert engine.cache_kind is CacheKind.CHECKPOINT
    drafter = DraftModelSpeculator(engine, DraftModelSpeculator.Options("argmax"))
    random = np.random.default_rng(2)
    texts = {seq_id: random.integers(0, SIZE, 20 + 60 * seq_id).tolist() for seq_id in range(2)}
    for seq_id, text in texts.items():
        drafter.begin(seq_id, text)
    num_drafted = num_same = 0
    for _ in range(12):
        drafts = drafter.propose([DraftRequest(s, text, 5) for s, text in texts.items()])
        fresh = LlamaEngine(engine.model, config, Limits(1, 1, 0))
        for (seq_id, text), draft in zip(texts.items(), drafts, strict=True):
            alone = DraftModelSpeculator(fresh, DraftModelSpeculator.Options("argmax"))
            alone.begin(0, text)
            fresh.clear(0)
            (expected,) = alone.propose([DraftRequest(0, text, 5)])
            num_drafted += len(draft.tokens)
            # rounding decides between two tokens that are equally likely
            num_same += sum(a == b for a, b in zip(draft.tokens, expected.tokens, strict=True))
            kept = int(random.integers(len(draft.tokens) + 1))
            emitted = [*draft.tokens[:kept], int(random.integers(SIZE))]
            drafter.accept(seq_id, emitted, kept)
            text += emitted
    assert num_drafted == 2 * 12 * 5
    assert num_same >= 0.95 * num_drafted


@pytest.mark.parametrize("merges", [MERGES, OTHER_MERGES], ids=["same", "universal"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_output_is_identical_with_and_without_drafts_of_a_recurrent_model(
    architecture: str, merges: Merges, tmp_path: Path
) -> None:
    target = tiny_llama(tmp_path / "target.gguf")
    draft = write_model(tmp_path / "draft.gguf", architecture, merges=merges)
    models = Models(target, draft, is_demo=False)
    expected = play(open_setting(Setting(), Models(target, None, is_demo=False)), requests())
    num_drafted = 0
    for setting in SETTINGS:
        scheduler = open_setting(setting, models)
        assert different(expected, play(scheduler, requests())) == ()
        assert not any(s.failure for s in scheduler.drafting.speculators.values())
        num_drafted += scheduler.counts.total.by_speculator["draft-model"].num_drafted
    assert num_drafted > 100


def test_a_hybrid_drafts_for_itself_and_is_mostly_right(tmp_path: Path) -> None:
    """Target and draft are the same file: only rounding and noise can part them."""
    model = write_model(tmp_path / "model.gguf", "granitehybrid")
    setting = Setting("draft-model", 4, 2, exact=False)
    scheduler = open_setting(setting, Models(model, model, is_demo=False))
    play(scheduler, requests())
    stats = scheduler.counts.total.drafts
    assert stats.num_accepted > 0.9 * stats.num_drafted > 40
