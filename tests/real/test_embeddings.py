"""Vectors and scores of real models: the same alone or in a batch, at once or in pieces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.architectures import tiny_hybrid, tiny_recurrent
from tests.models import tiny_bert, tiny_llama
from tests.real.support import engine_of

from headstart.config import EmbeddingConfig, EngineConfig
from headstart.engine.embedding import LlamaEmbedder
from headstart.engine.model import Model
from headstart.types.errors import ConfigError, ModelError

TEXTS = [[1, 2, 3], [4, 5], [9] * 20, [7]]
WRITERS: dict[str, Callable[[Path], Path]] = {
    "llama": tiny_llama,
    "bert": tiny_bert,
    "hybrid": tiny_hybrid,
    "recurrent": tiny_recurrent,
    "ranker": lambda path: tiny_bert(path, ranks=True),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write(folder / f"{name}.gguf") for name, write in WRITERS.items()}


def embedder(path: Path, **wanted: str | bool) -> LlamaEmbedder:
    config = EngineConfig(gpu_layers=0, threads=1, ubatch=64)
    return LlamaEmbedder(Model(path, config), config, EmbeddingConfig(**wanted))


@pytest.mark.parametrize("pooling", ["mean", "last", "cls", "none"])
def test_a_text_has_the_same_vector_in_pieces(files: dict[str, Path], pooling: str) -> None:
    model = embedder(files["llama"], pooling=pooling)
    pieces = model.embed([TEXTS[2][:6]], is_end=False)
    assert len(pieces) == (pooling == "none")
    pieces += model.embed([TEXTS[2][6:]], 6)
    (whole,) = model.embed([TEXTS[2]])
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "pooling", "size"),
    [
        ("llama", "mean", 64),
        ("llama", "last", 64),
        ("llama", "cls", 64),
        ("llama", "none", 64),
        ("hybrid", "mean", 64),
        ("recurrent", "last", 64),
        ("bert", None, 32),
        ("bert", "last", 32),
        ("ranker", None, 1),
    ],
)
def test_a_text_has_the_same_vector_alone_and_among_others(files, name, pooling, size) -> None:
    model = embedder(files[name], pooling=pooling, rerank=name == "ranker")
    groups = [TEXTS[i : i + model.max_batch_texts] for i in range(0, 4, model.max_batch_texts)]
    together = [rows for group in groups for rows in model.embed(group)]
    alone = [model.embed([text])[0] for text in TEXTS]
    for text, one, other in zip(TEXTS, alone, together, strict=True):
        assert one.shape == (len(text) if pooling == "none" else 1, size)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert np.abs(alone[0][0] - alone[1][0]).max() > 1e-3


def test_a_small_batch_bounds_no_texts(files: dict[str, Path]) -> None:
    config = EngineConfig(gpu_layers=0, threads=1, batch=32)
    model = LlamaEmbedder(Model(files["llama"], config), config, EmbeddingConfig())
    assert len(model.embed([TEXTS[0]])) == 1


@pytest.mark.parametrize("name", ["llama", "hybrid"])
def test_the_last_tokens_vector_does_not_depend_on_the_pieces(files: dict[str, Path], name) -> None:
    model = embedder(files[name], pooling="last")
    assert model.can_split
    assert model.max_tokens > model.max_batch_tokens
    text = [3, 1, 4, 1, 5, 9, 2, 6] * 5
    whole = model.embed([text])[0]
    assert model.embed([text[:25]], is_end=False) == []
    pieces = model.embed([text[25:]], 25)[0]
    np.testing.assert_allclose(whole, pieces, rtol=1e-3, atol=1e-4)
    # a text given up half-way leaves nothing
    assert model.embed([text[:25]], is_end=False) == []
    np.testing.assert_allclose(model.embed([TEXTS[0]])[0], model.embed([TEXTS[0]])[0])


def test_without_pooling_or_a_cache_a_text_is_read_at_once(files: dict[str, Path]) -> None:
    assert embedder(files["llama"], pooling="mean").max_tokens == 64
    assert embedder(files["bert"], pooling="last").max_tokens == 64


def test_a_model_that_cannot_do_it_says_so(files: dict[str, Path]) -> None:
    with pytest.raises(ModelError, match="has no classification head"):
        embedder(files["llama"], rerank=True)
    with pytest.raises(ConfigError, match="bert models generate no text and cannot draft; start"):
        engine_of(files["bert"])
    with pytest.raises(ConfigError, match="--rerank needs --pooling rank, not mean"):
        EmbeddingConfig(rerank=True, pooling="mean")
