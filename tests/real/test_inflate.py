from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.inflate import HYBRIDS, PRESETS, Preset, Shape, Source, build
from tests.real.support import decode, engine_of

from headstart.app import demo
from headstart.types import CacheKind

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


@pytest.mark.parametrize("hybrid", ["", *HYBRIDS])
def test_an_inflated_model_computes_the_logits_of_its_source(tmp_path: Path, hybrid: str) -> None:
    path = tmp_path / "big.gguf"
    build(replace(SMALL, shape=replace(SMALL.shape, hybrid=hybrid)), path)
    engines = [engine_of(one) for one in (demo.path(demo.DRAFT_OTHER), path)]
    assert (engines[1].cache_kind is CacheKind.CUT) == (not hybrid)
    small, big = (decode(engine, PROMPT) for engine in engines)
    assert np.ptp(small) > 5
    np.testing.assert_allclose(big, small, atol=1e-3)


def test_an_inflated_model_has_the_shape_and_the_tokenizer_it_was_asked_for(inflated: Path) -> None:
    source, big = Source(demo.path(demo.DRAFT_OTHER)), Source(inflated)
    assert big.shape == replace(SMALL.shape, vocab_size=source.shape.vocab_size)
    for key, field in source.reader.fields.items():
        if key.startswith("tokenizer."):
            assert big.reader.fields[key].contents() == field.contents()


def test_added_tokens_are_unused_and_change_no_logit_of_others(tmp_path: Path) -> None:
    path, shape = tmp_path / "many.gguf", replace(SMALL.shape, vocab_size=5000)
    build(replace(SMALL, shape=shape), path)
    assert Source(path).shape == shape
    small = decode(engine_of(demo.path(demo.DRAFT_OTHER)), PROMPT)
    known, added = np.split(decode(engine_of(path), PROMPT), [small.shape[1]], axis=1)
    np.testing.assert_allclose(known, small, atol=1e-3)
    assert added.shape[1] > 500
    assert not added.any()


def test_added_layers_are_not_free_weights_but_write_nothing(inflated: Path) -> None:
    big = Source(inflated)
    assert np.abs(big.weights("blk.2.ffn_gate.weight")).mean() > 0.01
    assert not big.weights("blk.2.attn_output.weight").any()
    assert not big.weights("blk.2.ffn_down.weight").any()


def test_a_finished_file_is_kept_and_nothing_else_is_left(inflated: Path) -> None:
    assert not build(SMALL, inflated)
    assert list(inflated.parent.iterdir()) == [inflated]


def test_every_preset_can_hold_its_source() -> None:
    shapes = {one.source: Source(demo.path(one.source)).shape for one in PRESETS.values()}
    for preset in PRESETS.values():
        small = shapes[preset.source]
        assert preset.shape.width > small.width
        assert (
            preset.shape.num_heads // preset.shape.num_kv_heads
            >= small.num_heads // small.num_kv_heads
        )
