"""Symbols outside libllama's public header: what they return."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.architectures import tiny_hybrid
from tests.models import tiny_llama
from tests.real.support import decode, engine_of

from headstart.engine.c_batch import floats_at
from headstart.engine.context import LlamaEngine
from headstart.engine.library import api
from headstart.engine.parameters import Limits
from headstart.types import Batch
from headstart.types.errors import EngineError, ModelError


def open_engine(path: Path) -> LlamaEngine:
    return engine_of(path, Limits(2, 64, 4), batch=64, ubatch=16)


def test_a_function_that_libllama_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_lib", object())
    vars(api).pop("llama_set_nextn_layer_offset", None)
    with pytest.raises(ModelError, match="does not export llama_set_nextn_layer_offset"):
        api.llama_set_nextn_layer_offset(None, 0)


def test_layer_inputs_are_the_embeddings_in_the_order_of_the_batch(tmp_path: Path) -> None:
    """What enters layer 0 is the token's embedding, also where there are several micro-batches."""
    engine = open_engine(tiny_llama(tmp_path / "llama.gguf"))
    engine.publish_states([0])
    tokens = {0: [5, 6, 7] * 7, 1: [9, 8] * 3}
    seen: dict[int, np.ndarray] = {}
    for seqs in ((0,), (1, 0)):
        engine.clear(0)
        engine.clear(1)
        batch = Batch(64)
        for seq in seqs:
            batch.add(seq, 0, tokens[seq], 1)
        engine.decode(batch)
        inputs = engine.hidden_states()[0]
        for row, token in enumerate(batch.tokens[: batch.num_rows].tolist()):
            expected = seen.setdefault(token, inputs[row].copy())
            assert (inputs[row] == expected).all()
    assert len(seen) == 5
    assert len({bytes(v.tobytes()) for v in seen.values()}) == 5


def test_states_of_all_rows_and_of_output_rows_agree(tmp_path: Path) -> None:
    engine = open_engine(tiny_hybrid(tmp_path / "hybrid.gguf"))
    rows = []
    for outputs_only in (False, True):
        api.llama_set_embeddings_nextn(engine.handle, True, outputs_only)
        engine.clear(0)
        decode(engine, [3, 1, 4, 1, 5], 0, 2)
        states = api.llama_get_embeddings_nextn(engine.handle)
        rows.append(floats_at(states, 2 if outputs_only else 5, 64).copy())
    assert np.abs(rows[0][3:] - rows[1]).max() < 1e-4


def test_asking_for_states_that_were_not_kept_is_an_error(tmp_path: Path) -> None:
    engine = open_engine(tiny_llama(tmp_path / "llama.gguf"))
    decode(engine, [3, 1, 4])
    with pytest.raises(EngineError, match="kept no such numbers"):
        floats_at(api.llama_get_embeddings_nextn(engine.handle), 3, 64)
