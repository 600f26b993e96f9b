"""Recurrent models without snapshots compute equally many rows of each sequence in a pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.architectures import tiny_hybrid, tiny_recurrent
from tests.real.support import decode, engine_of

from headstart.engine.context import LlamaEngine
from headstart.engine.parameters import Limits
from headstart.types import Batch, CacheKind, ContextFullError, Rows
from headstart.types.errors import EngineError

TEXTS = {0: [1, 2, 3, 4], 1: [5, 6], 2: [7, 8, 9]}
ROWS = {0: [10, 11, 12], 1: [13], 2: [14, 15, 16]}


@pytest.fixture(params=[tiny_hybrid, tiny_recurrent])
def engine(request: Any, tmp_path: Path) -> LlamaEngine:
    """Three texts are cached, two of them before a draft."""
    write: Callable[[Path], Path] = request.param
    engine = engine_of(write(tmp_path / "tiny.gguf"), Limits(3, 32, 0))
    assert (engine.cache_kind, engine.rows) == (CacheKind.CHECKPOINT, Rows.EQUAL)
    for seq_id, text in TEXTS.items():
        decode(engine, text, 0, seq_id=seq_id)
    assert engine.keep_for_draft(0)
    assert engine.keep_for_draft(2)
    return engine


def batch_of(rows: dict[int, list[int]]) -> Batch:
    batch = Batch(256)
    for seq_id, tokens in rows.items():
        batch.add(seq_id, len(TEXTS[seq_id]), tokens, len(tokens))
    return batch


def decoded(monkeypatch: pytest.MonkeyPatch, fails_at: int | None = None) -> list[list[int]]:
    """The sequences of each decode; one of them finds no cells."""
    decodes, plain = list[list[int]](), LlamaEngine._decode

    def note(engine: LlamaEngine, batch: Batch, rows: Any) -> None:
        if len(decodes) == fails_at:
            raise ContextFullError
        decodes.append(sorted(set(batch.seq_ids[: batch.num_rows].tolist())))
        plain(engine, batch, rows)

    monkeypatch.setattr(LlamaEngine, "_decode", note)
    return decodes


def alone(engine: LlamaEngine, text: list[int], num_outputs: int) -> NDArray[np.float32]:
    return decode(engine_of(engine.model.path), text, 0, num_outputs)


def test_drafts_come_first_and_rows_have_the_logits_that_they_have_alone(engine, monkeypatch):
    decodes = decoded(monkeypatch)
    logits = engine.decode(batch_of(ROWS)).copy()
    assert decodes == [[0, 2], [1]]
    for seq_id, rows in zip(ROWS, np.split(logits, [3, 4]), strict=True):
        expected = alone(engine, TEXTS[seq_id] + ROWS[seq_id], len(ROWS[seq_id]))
        np.testing.assert_allclose(rows, expected, atol=2e-2)
    assert engine.rewind(0, 5) == 4


def test_if_the_rest_finds_no_cells_drafts_are_as_before_them(engine, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        decoded(patch, fails_at=1)
        with pytest.raises(ContextFullError):
            engine.launch(batch_of(ROWS))
    plain = {seq_id: rows[:1] for seq_id, rows in ROWS.items()}
    logits = engine.decode(batch_of(plain)).copy()
    for seq_id, row in zip(plain, logits, strict=True):
        expected = alone(engine, TEXTS[seq_id] + plain[seq_id], 1)
        np.testing.assert_allclose(row, expected[0], atol=2e-2)


def test_if_what_was_before_a_draft_is_lost_the_batch_fails(engine, monkeypatch) -> None:
    decoded(monkeypatch, fails_at=1)
    monkeypatch.setattr(engine, "rewind", lambda seq_id, length: 0)
    with pytest.raises(EngineError, match="state before a draft"):
        engine.launch(batch_of(ROWS))


def test_without_drafts_or_without_others_there_is_one_decode(engine, monkeypatch) -> None:
    decodes = decoded(monkeypatch)
    engine.decode(batch_of({1: [13], 2: [14]}))
    engine.decode(batch_of({0: ROWS[0]}))
    assert decodes == [[1, 2], [0]]


def test_a_draft_may_follow_rows_that_are_decoded_again(engine, monkeypatch) -> None:
    engine.decode(batch_of(ROWS))
    for round_, accepted in enumerate(([10], [10, 20])):
        assert engine.rewind(0, 4 + len(accepted)) == 4
        assert engine.keep_for_draft(0)
        rows, batch = [*accepted, 20, 21], Batch(256)
        batch.add(0, 4, rows, 2)
        batch.add(1, 3 + round_, [13], 1)
        decodes = decoded(monkeypatch)
        logits = engine.decode(batch).copy()
        assert decodes == [[0], [1]]
        expected = alone(engine, TEXTS[0] + rows, 2)
        np.testing.assert_allclose(logits[:2], expected, atol=2e-2)
