"""What libllama's samplers on sequences give, and what not: why the server reads whole rows."""

from __future__ import annotations

import numpy as np
import pytest
from tests.models import tiny_llama
from tests.sampling_engine import (
    MixedEngine,
    SamplingEngine,
    check_best,
    clear,
    graphs_reused,
    rows_of,
)

from headstart.config import EngineConfig
from headstart.engine.context import LlamaEngine
from headstart.engine.model import Model
from headstart.engine.parameters import Limits

Engines = tuple[LlamaEngine, SamplingEngine, MixedEngine]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    """Without samplers, with them on all sequences, and on all but one."""
    settings = EngineConfig(context=256, threads=1, gpu_layers=0)
    model = Model(tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf"), settings)
    kinds = (LlamaEngine, SamplingEngine, MixedEngine)
    plain, sampling, mixed = (kind(model, settings, Limits(8, 72, 0)) for kind in kinds)
    assert isinstance(sampling, SamplingEngine)
    assert isinstance(mixed, MixedEngine)
    return plain, sampling, mixed


def test_the_best_logits_are_those_of_the_whole_row_bit_for_bit(engines: Engines) -> None:
    plain, sampling, _ = engines
    check_best(plain, sampling, [2] * 8)


def test_whole_rows_are_copied_for_all_sequences_of_a_decode_or_for_none(engines: Engines) -> None:
    batch = rows_of([2] * 8)
    whole, none, every = (engine.decode(batch).copy() for engine in engines)
    assert not (none == whole).all(axis=1).any()
    np.testing.assert_array_equal(every, whole)
    clear(*engines)


def test_other_shares_of_as_many_rows_take_another_graph_with_samplers(engines: Engines) -> None:
    plain, sampling, _ = engines
    assert graphs_reused(plain) == 20
    assert graphs_reused(sampling) <= 2
