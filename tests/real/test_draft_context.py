"""Contexts of models that read a target's hidden states, driven by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests import drafters
from tests.architectures import write_model
from tests.heads import AFTER, WIDTH, aligned_values, continuation

from headstart.config import EngineConfig
from headstart.engine.c_batch import floats_at
from headstart.engine.context import LlamaEngine
from headstart.engine.draft_context import LlamaDraftContext
from headstart.engine.library import api
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.types import Batch
from headstart.types.state_batch import StateBatch

F32 = {"cache_type_k": "f32", "cache_type_v": "f32"}
CONFIG = EngineConfig(context=256, batch=128, ubatch=128, threads=1, gpu_layers=0, **F32)
START = int(AFTER[7])
TEXT = [START, *continuation(START, 40)]


def open_target(path: Path) -> LlamaEngine:
    return LlamaEngine(Model(path, CONFIG), CONFIG, Limits(2, 64, 4))


def open_drafter(path: Path, target: LlamaEngine) -> LlamaDraftContext:
    return LlamaDraftContext(Model(path, CONFIG, is_drafter=True), CONFIG, Limits(2, 64, 0), target)


def features_of(target: LlamaEngine, tokens: list[int], width: int) -> np.ndarray:
    """The inputs of the layers that draft models here read, side by side."""
    for layer in drafters.LAYERS:
        api.llama_set_embeddings_layer_inp(target.handle, layer, True)
    batch = Batch(128)
    batch.add(0, 0, tokens, 1)
    target.decode(batch)
    found = [api.llama_get_embeddings_layer_inp(target.handle, layer) for layer in drafters.LAYERS]
    return np.concatenate([floats_at(one, len(tokens), width) for one in found], axis=1)


def test_encoded_features_are_those_of_the_model(tmp_path: Path) -> None:
    """The aligned encoder adds up the layers' inputs or takes the first; more rows than a batch."""
    target = open_target(drafters.target(tmp_path / "target.gguf"))
    one = open_drafter(drafters.eagle3(tmp_path / "eagle3.gguf"), target)
    features = np.random.default_rng(0).standard_normal((300, 192)).astype(np.float32)
    together = one.encode(features)
    apart = np.concatenate([one.encode(features[i : i + 7]) for i in range(0, 300, 7)])
    assert together.shape == (300, one.state_width)
    assert np.abs(together - apart).max() < 1e-4


def test_injected_features_are_found_at_their_positions(tmp_path: Path) -> None:
    target = open_target(drafters.aligned_target(tmp_path / "target.gguf"))
    one = open_drafter(drafters.aligned_dflash(tmp_path / "dflash.gguf"), target)
    read = TEXT[:20]
    features = StateBatch(128, one.feature_width, has_tokens=False)
    features.add_rows(1, 0, read, features_of(target, read, WIDTH))
    one.decode(features)
    block = Batch(128)
    mask = [drafters.MASK] * (drafters.BLOCK - 1)
    block.add(1, len(read), [TEXT[20], *mask], drafters.BLOCK)
    guesses = one.decode(block).argmax(axis=1).tolist()
    assert guesses[1:] == TEXT[21 : 20 + drafters.BLOCK]


@pytest.mark.parametrize(
    ("write", "width", "feature_width"),
    [
        (drafters.eagle3, 48, 192),
        (lambda path: drafters.eagle3(path, drafters.SHARED), 64, 192),
        (lambda path: drafters.eagle3(path, drafters.REDUCED), 48, 192),
        (drafters.dflash, 64, 192),
        (lambda path: drafters.dflash(path, rank=8), 64, 192),
    ],
    ids=["eagle3", "shared", "reduced", "dflash", "dspark"],
)
def test_a_context_knows_what_it_reads(
    write: Callable[[Path], Path], width: int, feature_width: int, tmp_path: Path
) -> None:
    target = open_target(drafters.target(tmp_path / "target.gguf"))
    one = open_drafter(write(tmp_path / "draft.gguf"), target)
    assert (one.state_width, one.feature_width) == (width, feature_width)
    assert not one.shares_target


def test_an_assistant_shares_the_cache_of_its_target(tmp_path: Path) -> None:
    sizes = {"embedding_length": WIDTH, "attention.key_length": 64, "attention.value_length": 64}
    target = open_target(
        write_model(tmp_path / "gemma4.gguf", "gemma4", changes=sizes, values=aligned_values)
    )
    one = open_drafter(drafters.aligned_assistant(tmp_path / "assistant.gguf"), target)
    assert one.shares_target
    assert one.state_width == WIDTH
    batch = Batch(128)
    batch.add(0, 0, TEXT[:20], 20)
    assert target.decode(batch).argmax(axis=1).tolist() == TEXT[1:21]
    one.truncate(0, 3)  # changes nothing: the cells are the target's
    batch.clear()
    batch.add(0, 20, [TEXT[20]], 1)
    assert target.decode(batch).argmax() == TEXT[21]
