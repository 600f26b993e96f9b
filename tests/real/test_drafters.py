"""Draft models: what does not belong to its target is refused in words; what reads its states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import drafters
from tests.architectures import write_model
from tests.drafters import BLOCKS, PLAIN
from tests.heads import (
    AFTER,
    VOCAB_SIZE,
    WIDTH,
    aligned_values,
    continuation,
    only_heads,
    with_heads,
)
from tests.models import OTHER_MERGES, broken, tiny_llama

from headstart.config import EngineConfig
from headstart.engine.c_batch import floats_at
from headstart.engine.context import LlamaEngine
from headstart.engine.draft_context import LlamaDraftContext
from headstart.engine.drafters import find_heads, read_drafter, state_layers, why_not
from headstart.engine.footprint import can_measure
from headstart.engine.gguf_header import GgufHeader
from headstart.engine.library import api
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.types import LAST_STATE, Batch
from headstart.types.errors import ModelError

CONFIG = EngineConfig(context=256, gpu_layers=0)
Write = Callable[[Path], Path]


def refusal(draft: Path, target: Path) -> str | None:
    return why_not(read_drafter(draft), target, Model(target, CONFIG).facts)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drafters.target(tmp_path_factory.mktemp("targets") / "target.gguf")


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("targets") / "gemma4.gguf", "gemma4")


def test_a_file_says_who_drafts_with_it(tmp_path: Path) -> None:
    files = {
        "draft-model": tiny_llama(tmp_path / "llama.gguf"),
        "eagle3": drafters.eagle3(tmp_path / "eagle3.gguf"),
        "dflash": drafters.dflash(tmp_path / "dflash.gguf"),
        "dspark": drafters.dflash(tmp_path / "dspark.gguf", rank=8),
        "gemma4-assistant": drafters.assistant(tmp_path / "assistant.gguf"),
        "mtp": only_heads(tmp_path / "heads.gguf", "step35"),
    }
    found = {name: read_drafter(path).speculator for name, path in files.items()}
    assert found == {name: name for name in files}
    whole = with_heads(tmp_path / "whole.gguf", "step35")
    assert read_drafter(whole).speculator == "draft-model"
    with pytest.raises(ModelError, match="cannot be read as a GGUF"):
        read_drafter(broken(tmp_path / "broken.gguf", "truncated-header"))


def test_layers_come_in_the_order_of_the_draft_model(tmp_path: Path) -> None:
    path = drafters.eagle3(tmp_path / "eagle3.gguf", replace(PLAIN, layers=(3, 1, 4)))
    assert state_layers(path, 4) == (3, 1, LAST_STATE)
    assert state_layers(drafters.assistant(tmp_path / "a.gguf"), 5) == (LAST_STATE,)


def eagle3(**changes: object) -> Write:
    return lambda path: drafters.eagle3(path, replace(PLAIN, **changes))  # type: ignore[arg-type]


def dflash(**changes: object) -> Write:
    return lambda path: drafters.dflash(path, replace(BLOCKS, **changes))  # type: ignore[arg-type]


REFUSED: dict[str, tuple[Write, str]] = {
    "width": (eagle3(target_width=96), "states of 96 numbers and the target's have 64"),
    "two layers": (eagle3(layers=(1, 2)), "names 2 layers of its target"),
    "no such layer": (eagle3(layers=(1, 2, 9)), "no layer 9"),
    "vocabulary": (eagle3(merges=OTHER_MERGES), f"has {VOCAB_SIZE - 2} tokens and the target's"),
    "no embeddings": (eagle3(own_embeddings=False), "no embeddings of its own, is 48 numbers wide"),
    "no head": (eagle3(own_head=False), "no output head of its own, is 48 numbers wide"),
    "ids": (eagle3(draft_ids=(0, 5, VOCAB_SIZE)), f"ids beyond the vocabulary of {VOCAB_SIZE}"),
    "negative ids": (eagle3(draft_ids=(0, -5, 7)), "ids beyond the vocabulary"),
    "last state": (eagle3(layers=(1, 2, 4)), "does not show the last state of llama models"),
    "block width": (dflash(width=96, target_width=96), "states of 96 numbers"),
    "block layers": (dflash(layers=(1, 2, 4)), "reads layer 4, and the target's last is 3"),
    "negative layer": (dflash(layers=(-1,)), "with a number below 0"),
    "another kind": (drafters.assistant, "belongs to a gemma4 model and the target is a llama"),
    "plain": (tiny_llama, "llama models do not read hidden states"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_name(name: str, target: Path, tmp_path: Path) -> None:
    write, reason = REFUSED[name]
    assert reason in str(refusal(write(tmp_path / "draft.gguf"), target))


def test_a_target_that_shows_no_layers_is_named(tmp_path: Path) -> None:
    sizes = {"embedding_length": 64, "block_count": 4}
    silent = write_model(tmp_path / "phi3.gguf", "phi3", changes=sizes)
    reason = refusal(drafters.eagle3(tmp_path / "eagle3.gguf"), silent)
    assert "does not show what enters the layers of phi3 models" in str(reason)


def test_an_assistant_belongs_to_one_shape_of_gemma(gemma: Path, tmp_path: Path) -> None:
    assert refusal(drafters.assistant(tmp_path / "fits.gguf"), gemma) is None
    wrong = drafters.assistant(tmp_path / "wrong.gguf", backbone=64)
    assert "states of 64 numbers and the target's have 128" in str(refusal(wrong, gemma))
    narrow = write_model(
        tmp_path / "narrow.gguf",
        "gemma4",
        changes={"attention.key_length_swa": 32, "attention.value_length_swa": 32},
    )
    fits = tmp_path / "fits.gguf"
    assert "key_length_swa of 64 and the target's have 32" in str(refusal(fits, narrow))


def test_a_libllama_that_lacks_functions_beside_its_header_loses_only_what_needs_them(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Lacking:
        def __getattr__(self, name: str) -> Any:
            if any(name in words for words in api.UNNAMED.split()):
                raise AttributeError(name)
            return getattr(library, name)

    library, heads = api._lib, with_heads(tmp_path / "heads.gguf", "step35")
    monkeypatch.setattr(api, "_lib", Lacking())
    assert find_heads(heads) is None
    assert "this libllama does not export llama_set_embeddings_nextn" in caplog.text
    reason = refusal(drafters.eagle3(tmp_path / "eagle3.gguf"), target)
    assert "does not export" in str(reason)
    assert "llama_model_target_layer_ids_n" in str(reason)
    assert not can_measure()


def test_a_header_answers_for_keys_that_are_absent_or_of_another_type(target: Path) -> None:
    header = GgufHeader(target)
    assert header.architecture == "llama"
    assert header.number("llama.embedding_length") == 64
    assert header.number("llama.nonesuch", 7) == 7
    assert header.numbers("general.architecture") == ()
    assert header.text("llama.embedding_length") == ""
    assert header.count("tokenizer.ggml.tokens") == VOCAB_SIZE
    assert header.shape("token_embd.weight") == (64, VOCAB_SIZE)
    assert header.shape("nonesuch") == ()
    assert header.values("token_embd.weight", np.int64) is None


F32 = {"cache_type_k": "f32", "cache_type_v": "f32"}
F32_CONFIG = EngineConfig(context=256, batch=128, ubatch=128, threads=1, gpu_layers=0, **F32)
START = int(AFTER[7])
TEXT = [START, *continuation(START, 40)]


def open_target(path: Path) -> LlamaEngine:
    return LlamaEngine(Model(path, F32_CONFIG), F32_CONFIG, Limits(2, 64, 4))


def open_drafter(path: Path, target: LlamaEngine) -> LlamaDraftContext:
    return LlamaDraftContext(
        Model(path, F32_CONFIG, is_drafter=True), F32_CONFIG, Limits(2, 64, 0), target
    )


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
    features = Batch(128, one.feature_width, has_tokens=False)
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
def test_a_context_knows_what_it_reads(write, width, feature_width, tmp_path) -> None:
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
