from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.inflate import PRESETS, Preset, Shape, Source, build
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray

from headstart.app import demo

Floats = NDArray[np.float32]

SMALL = Preset(
    demo.DRAFT_OTHER,
    Shape(num_layers=3, width=192, ff_width=448, num_heads=4, num_kv_heads=2),
    "Q8_0",
)
PROMPT = (262, 70, 300, 511, 70, 300)


@pytest.fixture(scope="module")
def inflated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inflated") / "small.gguf"
    assert build(SMALL, path)
    return path


def rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    mean_square: Floats = (x * x).mean(-1, keepdims=True)
    normed: Floats = x / np.sqrt(mean_square + np.float32(epsilon)) * weight
    return normed


def rotate(x: Floats) -> Floats:
    """RoPE over interleaved pairs; x has shape (positions, heads, head_size)."""
    angles = np.arange(len(x))[:, None, None] * 10000.0 ** (
        -np.arange(0, x.shape[-1], 2) / x.shape[-1]
    )
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
    return np.stack((turned.real, turned.imag), -1).reshape(x.shape).astype(np.float32)


def attend(x: Floats, block: dict[str, Floats], num_kv_heads: int) -> Floats:
    size = 64
    queries, keys, values = (
        (x @ block[f"attn_{name}"].T).reshape(len(x), -1, size) for name in "qkv"
    )
    group = queries.shape[1] // num_kv_heads
    keys, values = np.repeat(rotate(keys), group, 1), np.repeat(values, group, 1)
    scores = np.einsum("qhd,khd->hqk", rotate(queries), keys) / np.sqrt(size)
    scores += np.triu(np.full((len(x), len(x)), -np.inf), 1)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    mixed: Floats = np.einsum("hqk,khd->qhd", shares / shares.sum(-1, keepdims=True), values)
    return mixed.reshape(len(x), -1) @ block["attn_output"].T


def logits(path: Path) -> Floats:
    """What a llama computes, written down apart from libllama; the last row."""
    reader = GGUFReader(path)
    tensors = {
        t.name.removesuffix(".weight"): dequantize(t.data, t.tensor_type) for t in reader.tensors
    }
    epsilon = reader.fields["llama.attention.layer_norm_rms_epsilon"].contents()
    x: Floats = tensors["token_embd"][list(PROMPT)]
    for layer in range(reader.fields["llama.block_count"].contents()):
        prefix = f"blk.{layer}."
        block = {
            name.removeprefix(prefix): w for name, w in tensors.items() if name.startswith(prefix)
        }
        normed = rms_norm(x, block["attn_norm"], epsilon)
        x = x + attend(normed, block, reader.fields["llama.attention.head_count_kv"].contents())
        normed = rms_norm(x, block["ffn_norm"], epsilon)
        gate = normed @ block["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (normed @ block["ffn_up"].T)) @ block["ffn_down"].T
    last: Floats = rms_norm(x, tensors["output_norm"], epsilon)[-1]
    result: Floats = last @ tensors["output"].T
    return result


def test_an_inflated_model_computes_the_logits_of_its_source(inflated: Path) -> None:
    small, big = logits(demo.path(demo.DRAFT_OTHER)), logits(inflated)
    assert np.ptp(small) > 5
    np.testing.assert_allclose(big, small, atol=1e-3)


def test_an_inflated_model_has_the_shape_and_the_tokenizer_it_was_asked_for(inflated: Path) -> None:
    source, big = Source(demo.path(demo.DRAFT_OTHER)), Source(inflated)
    assert big.shape == SMALL.shape
    for key, field in source.reader.fields.items():
        if key.startswith("tokenizer."):
            assert big.reader.fields[key].contents() == field.contents()


def test_added_layers_are_not_free_weights_but_write_nothing(inflated: Path) -> None:
    big = Source(inflated)
    assert np.abs(big.weights("blk.2.ffn_gate.weight")).mean() > 0.01
    assert not big.weights("blk.2.attn_output.weight").any()
    assert not big.weights("blk.2.ffn_down.weight").any()


def test_a_finished_file_is_kept_and_nothing_else_is_left(inflated: Path) -> None:
    assert not build(SMALL, inflated)
    assert list(inflated.parent.iterdir()) == [inflated]


def test_every_preset_can_hold_its_source() -> None:
    shapes = {name: Source(demo.path(name)).shape for name in demo.NAMES}
    for preset in PRESETS.values():
        small = shapes[preset.source]
        assert preset.shape.width > small.width
        assert (
            preset.shape.num_heads // preset.shape.num_kv_heads
            >= small.num_heads // small.num_kv_heads
        )
