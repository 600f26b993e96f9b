"""The tiny models with multi-token heads that other tests use are what they claim to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.heads import AFTER, CYCLE, HEAD_ARCHITECTURES, aligned, only_heads, with_heads

from headstart.config import EngineConfig
from headstart.engine import library
from headstart.engine.context import LlamaEngine
from headstart.engine.library import api
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.types import Batch

CONFIG = EngineConfig(context=256, batch=64, ubatch=64, threads=1, gpu_layers=0)


def open_heads(path: Path) -> tuple[int, bool]:
    """How many heads libllama finds in the file, and whether it makes a context for them."""
    library.start()
    params = api.llama_model_default_params()
    params.load_mtp, params.n_gpu_layers = True, 0
    model: Any = api.llama_model_load_from_file(str(path).encode(), params)
    assert model, library.take_errors()
    settings = api.llama_context_default_params()
    settings.n_ctx, settings.ctx_type = 256, 1
    context: Any = api.llama_init_from_model(model, settings)
    num_heads = int(api.llama_model_n_layer_nextn(model))
    if context:
        api.llama_free(context)
    api.llama_model_free(model)
    return num_heads, bool(context)


@pytest.mark.parametrize("architecture", HEAD_ARCHITECTURES)
def test_libllama_makes_a_context_for_the_heads(architecture: str, tmp_path: Path) -> None:
    num_heads = HEAD_ARCHITECTURES[architecture]
    inside = with_heads(tmp_path / "inside.gguf", architecture, num_heads)
    alone = only_heads(tmp_path / "alone.gguf", architecture, num_heads)
    assert open_heads(inside) == open_heads(alone) == (num_heads, True)
    assert alone.stat().st_size < inside.stat().st_size


@pytest.mark.parametrize("architecture", ["llama", "step35", "mimo2", "qwen35", "glm4moe"])
def test_an_aligned_model_is_sure_of_the_next_token(architecture: str, tmp_path: Path) -> None:
    path = aligned(tmp_path / "aligned.gguf", architecture, int(architecture != "llama"))
    engine = LlamaEngine(Model(path, CONFIG), CONFIG, Limits(1, 64, 4))
    text = [int(AFTER[t]) for t in range(2 * CYCLE)]
    batch = Batch(64)
    batch.add(0, 0, text, len(text))
    logits = engine.decode(batch)
    assert logits.argmax(axis=1).tolist() == AFTER[text].tolist()
    logits.sort(axis=1)
    assert (logits[:, -1] - logits[:, -2]).min() > 10
