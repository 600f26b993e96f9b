"""Models whose memory cannot simply be cut: served correctly, with drafts only where they can be
taken back.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.equality import Setting, generate, open_setting
from tests.models import tiny_hybrid, tiny_llama, tiny_recurrent
from tests.real.support import byte_requests, engine_of, without_draft

from headstart.engine.context import LlamaEngine
from headstart.errors import ConfigError
from headstart.types import Batch, MemoryKind

# Not the deterministic mode, which recurrent models cannot have; F32 weights leave no near ties
# here.
PLAIN = Setting(deterministic=False)
KINDS = {
    tiny_llama: MemoryKind.CUT,
    tiny_hybrid: MemoryKind.ROLLBACK,
    tiny_recurrent: MemoryKind.CHECKPOINT,
}


@pytest.fixture(scope="module", params=list(KINDS), ids=lambda write: write.__name__)
def kind_and_path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[MemoryKind, Path]:
    return KINDS[request.param], request.param(tmp_path_factory.mktemp("models") / "tiny.gguf")


def decode(
    engine: LlamaEngine, tokens: list[int], position: int, num_outputs: int = 1, seq_id: int = 0
) -> np.ndarray:
    batch = Batch(64)
    batch.add(seq_id, position, tokens, num_outputs)
    return engine.decode(batch).copy()


def test_the_memory_kind_is_recognised(kind_and_path: tuple[MemoryKind, Path]) -> None:
    kind, path = kind_and_path
    assert engine_of(path).memory is kind


def test_a_rolled_back_draft_leaves_no_trace(kind_and_path: tuple[MemoryKind, Path]) -> None:
    kind, path = kind_and_path
    engine, fresh = engine_of(path), engine_of(path)
    decode(engine, [1, 2, 3, 4, 5, 6], 0)
    decode(engine, [7, 100, 101, 102], 6, 4)
    if kind is MemoryKind.CHECKPOINT:
        assert not engine.truncate(0, 7)
        return
    assert engine.truncate(0, 7)
    after = decode(engine, [8], 7)
    decode(fresh, [1, 2, 3, 4, 5, 6, 7], 0)
    np.testing.assert_allclose(after, decode(fresh, [8], 7), atol=2e-2)


def test_a_rollback_that_would_corrupt_the_state_is_refused(
    kind_and_path: tuple[MemoryKind, Path],
) -> None:
    kind, path = kind_and_path
    engine = engine_of(path)
    decode(engine, list(range(40)), 0)
    decode(engine, [1, 2, 3], 40, 3)
    assert engine.truncate(0, 20) is (kind is MemoryKind.CUT)
    if kind is not MemoryKind.CUT:
        assert engine.truncate(0, 0)  # all of it can always go
        np.testing.assert_array_equal(decode(engine, [1, 2], 0), decode(engine_of(path), [1, 2], 0))


def test_a_saved_sequence_continues_in_another_place(
    kind_and_path: tuple[MemoryKind, Path],
) -> None:
    _, path = kind_and_path
    engine, fresh = engine_of(path), engine_of(path)
    decode(engine, list(range(40)), 0)
    saved = engine.save_sequence(0)
    decode(engine, [1, 2, 3], 40)
    decode(engine, [9, 9], 0, seq_id=1)
    assert engine.restore_sequence(1, saved)
    decode(fresh, list(range(40)), 0)
    np.testing.assert_allclose(decode(engine, [7], 40, seq_id=1), decode(fresh, [7], 40), atol=2e-2)


def test_what_cannot_be_restored_leaves_an_empty_sequence(
    kind_and_path: tuple[MemoryKind, Path],
) -> None:
    _, path = kind_and_path
    engine = engine_of(path)
    decode(engine, list(range(40)), 0)
    saved = engine.save_sequence(0)
    for damaged in (b"", bytes(len(saved)), bytes(saved[: len(saved) // 2]), bytes(7)):
        assert not engine.restore_sequence(0, damaged)
        np.testing.assert_array_equal(decode(engine, [1, 2], 0), decode(engine_of(path), [1, 2], 0))
        engine.clear(0)


def test_text_is_the_same_alone_among_others_and_with_drafts(
    kind_and_path: tuple[MemoryKind, Path], caplog
) -> None:
    _, path = kind_and_path
    requests = byte_requests(6)
    models = without_draft(path)
    expected = {k: r.key for k, r in generate(open_setting(PLAIN, models), requests).items()}
    with caplog.at_level(logging.WARNING, "headstart"):
        scheduler = open_setting(replace(PLAIN, types="recycling", length=4, num_slots=4), models)
    results = generate(scheduler, requests)
    assert {k: r.key for k, r in results.items()} == expected
    assert scheduler.drafting.stats.num_drafted > 0
    assert not [r.message for r in caplog.records if "speculation is off" in r.message]


def test_turns_and_branches_answer_as_from_scratch(kind_and_path: tuple[MemoryKind, Path]) -> None:
    _, path = kind_and_path
    scheduler = open_setting(
        replace(PLAIN, types="recycling", length=4, num_slots=2), without_draft(path)
    )
    first = byte_requests(1)[0]
    answer = generate(scheduler, [first])["0"]
    history = (*first.prompt, *answer.tokens)
    follow = [
        replace(first, request_id="turn", prompt=(*history, 65, 66)),
        replace(first, request_id="branch", prompt=(*history[:10], 67)),
        replace(first, request_id="again"),
    ]
    expected = generate(
        open_setting(PLAIN, without_draft(path)), [replace(r, cache_prompt=False) for r in follow]
    )
    results = generate(scheduler, follow)
    assert {k: r.key for k, r in results.items()} == {k: r.key for k, r in expected.items()}


def test_deterministic_mode_refuses_a_recurrent_state(
    kind_and_path: tuple[MemoryKind, Path],
) -> None:
    kind, path = kind_and_path
    if kind is MemoryKind.CUT:
        assert engine_of(path, deterministic=True).deterministic
    else:
        with pytest.raises(ConfigError, match=r"--deterministic needs a model with attention only"):
            engine_of(path, deterministic=True)
