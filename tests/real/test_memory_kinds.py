"""Models whose memory cannot simply be cut: served correctly, with drafts only where they can be
taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.architectures import tiny_hybrid, tiny_recurrent, write_model
from tests.harness import play
from tests.heads import changes_for
from tests.images import VisionSize, picture, projector
from tests.models import tiny_llama
from tests.real.answers import Setting, different, open_config, open_setting
from tests.real.image_prompts import BYTES, TARGETS, ask, models, sampling
from tests.real.recorded_rows import RecordedRows
from tests.real.support import byte_requests, decode, engine_of, without_draft

from headstart.engine.parameters import Limits
from headstart.engine.sequences import Sequences
from headstart.scheduler.copy_prices import CopyPrices
from headstart.types import Batch, CacheKind, Rows, SavedState
from headstart.types.errors import ConfigError, EngineError

PLAIN = Setting(exact=False)  # F32 weights: two rows use other kernels than one, without near ties
KINDS = {
    tiny_llama: CacheKind.CUT,
    tiny_hybrid: CacheKind.ROLLBACK,
    tiny_recurrent: CacheKind.CHECKPOINT,
}


@pytest.fixture(scope="module", params=list(KINDS), ids=lambda write: write.__name__)
def kind_and_path(request: pytest.FixtureRequest, tmp_path_factory) -> tuple[CacheKind, Path]:
    return KINDS[request.param], request.param(tmp_path_factory.mktemp("models") / "tiny.gguf")


def test_a_sequence_of_saved_blocks_continues_in_another_place(kind_and_path) -> None:
    kind, path = kind_and_path
    engine, fresh = engine_of(path), engine_of(path)
    assert engine.has_blocks is (kind is CacheKind.CUT)
    if not engine.has_blocks:
        return
    decode(engine, list(range(40)), 0)
    blocks = [engine.save_block(0, start, end) for start, end in ((0, 16), (16, 32), (32, 40))]
    engine.clear(0)
    decode(engine, [9, 9], 0)  # cells in another order
    for block in blocks:
        assert engine.restore_block(1, block)
    assert not engine.restore_block(1, blocks[0][:-8])
    decode(fresh, list(range(40)), 0)
    np.testing.assert_allclose(decode(engine, [7], 40, seq_id=1), decode(fresh, [7], 40), atol=2e-2)


def test_what_cannot_be_restored_leaves_an_empty_sequence(kind_and_path: tuple[CacheKind, Path]):
    _, path = kind_and_path
    engine = engine_of(path)
    decode(engine, list(range(40)), 0)
    state = bytes(engine.save_sequence(0).state)
    for damaged in (b"", bytes(len(state)), state[: len(state) // 2], bytes(7)):
        assert not engine.restore_sequence(0, SavedState(damaged))
        np.testing.assert_array_equal(decode(engine, [1, 2], 0), decode(engine_of(path), [1, 2], 0))
        engine.clear(0)


def test_a_saved_sequence_shares_its_checkpoints_and_comes_back_as_often_as_wanted(kind_and_path):
    """Each is many megabytes, for which the loop would wait."""
    kind, path = kind_and_path
    engine = engine_of(path)
    decode(engine, list(range(30)), 0)
    engine.checkpoint(0)
    decode(engine, list(range(30, 40)), 30)
    kept = engine.checkpoints.of(0)
    saved, num_bytes = engine.save_sequence(0), engine.checkpoints.num_bytes
    assert saved.checkpoints == tuple(kept)  # the same objects
    assert bool(kept) is (kind is not CacheKind.CUT)
    rows = []
    for seq_id in (0, 1, 0):
        assert engine.restore_sequence(seq_id, saved) == 40
        assert engine.checkpoints.of(seq_id) == kept
        assert engine.checkpoints.num_bytes == num_bytes
        end = decode(engine, [7], 40, seq_id=seq_id).copy()
        assert engine.rewind(seq_id, 30) == 30
        rows.append((end, decode(engine, [7], 30, seq_id=seq_id).copy()))
    for row in rows[1:]:
        np.testing.assert_array_equal(row, rows[0])


def test_text_is_the_same_alone_among_others_and_with_drafts(kind_and_path, caplog) -> None:
    requests = [replace(r, prompt=(*r.prompt,) * 4) for r in byte_requests(6)]
    models = without_draft(kind_and_path[1])
    expected = play(open_setting(PLAIN, models), requests)
    with caplog.at_level(logging.WARNING, "headstart"):
        scheduler = open_setting(replace(PLAIN, types="ngram-cache", length=4, num_slots=4), models)
    assert different(expected, play(scheduler, requests)) == ()
    assert scheduler.outcomes.total.drafts.num_drafted > 0
    assert not [r.message for r in caplog.records if "speculation is off" in r.message]


def test_turns_and_branches_answer_as_from_scratch(kind_and_path: tuple[CacheKind, Path]) -> None:
    models, first = without_draft(kind_and_path[1]), byte_requests(1)[0]
    scheduler = open_setting(replace(PLAIN, types="ngram-cache", length=4, num_slots=2), models)
    answer = play(scheduler, [first])["0"]
    history = (*first.prompt, *answer.tokens)
    follow = [
        replace(first, request_id="turn", prompt=(*history, 65, 66)),
        replace(first, request_id="branch", prompt=(*history[:10], 67)),
        replace(first, request_id="again"),
    ]
    fresh = [replace(r, cache_prompt=False) for r in follow]
    expected = play(open_setting(PLAIN, models), fresh)
    assert different(expected, play(scheduler, follow)) == ()


EXACT = {
    "qwen3moe": "ngram-cache",
    "gemma3": "ngram-cache",
    "mamba": "ngram-cache",
    "granitehybrid": "ngram-cache",
    "lfm2": "ngram-cache",
    "qwen35": "mtp,ngram-cache",
    "step35": "mtp",
    "glm4moe": "mtp",
}


@pytest.mark.parametrize("architecture", EXACT)
def test_exact_texts_of_every_memory_kind_are_the_same_with_drafts_beside_others_and_restored(
    architecture: str, tmp_path: Path
) -> None:
    types, path = EXACT[architecture], tmp_path / "tiny.gguf"
    changes = changes_for(architecture, int("mtp" in types))
    models = without_draft(write_model(path, architecture, changes=changes, is_quantized=True))
    requests = [
        replace(r, request_id=f"{temperature} {r.request_id}", prompt=(*r.prompt,) * 9)
        for temperature in (0.0, 0.8, 1.5)
        for r in byte_requests(2, temperature)
    ]
    drafting = [open_setting(Setting(types, 4, num_slots), models) for num_slots in (4, 1)]
    expected = play(open_setting(Setting(), models), requests)
    for scheduler in drafting:
        for _ in range(2):  # prompts that are kept, and that come back from main memory
            assert different(expected, play(scheduler, requests)) == ()
        assert scheduler.outcomes.total.drafts.num_drafted > 0
    # with one slot; of a model with windows one window would come back, behind the answer
    assert bool(scheduler.counters.prompts_restored) == (not scheduler.engine.window)


def test_exact_rows_behind_a_large_image_are_the_same_behind_a_window_from_main_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window comes back to other cells, and attention of 64 rows or more sums by their tiles."""
    monkeypatch.setattr(CopyPrices, "saves_time", lambda *given: True)
    large = projector(tmp_path / "large.gguf", "gemma3", 64, size=VisionSize(image=112))
    found = replace(models(tmp_path, *TARGETS["non-causal"]), projector=large)
    fresh, scheduler = (open_setting(Setting(), found) for _ in range(2))
    alone, restored = (RecordedRows(one.engine) for one in (fresh, scheduler))
    first = ask(scheduler, "a", BYTES * 3, sampling=sampling(0.8))
    text = [*first.prompt, *play(scheduler, [first])["a"].tokens]
    play(scheduler, [ask(scheduler, "b", BYTES[::-1] * 3, sampling=sampling(0.8))])
    for one in (fresh, scheduler):
        asked = ask(one, "c", text, picture(1), BYTES, sampling=sampling(0.8))
        ((_, chunk),) = asked.media
        assert chunk.num_cells == 64
        play(one, [asked])
    assert scheduler.counters.prompts_restored == 1
    differences = alone.differences(restored)
    assert len(differences) > 10
    assert not differences.any()


def test_exact_rows_behind_an_image_are_the_same_whatever_was_decoded_before_it(tmp_path) -> None:
    """Answers may have other kernels than prompts, and 64 rows differ by these."""
    large = projector(tmp_path / "large.gguf", "janus_pro", 64, size=VisionSize(image=56))
    found = replace(models(tmp_path, *TARGETS["causal"]), projector=large)
    rows = list[RecordedRows]()
    for is_first in (True, False):
        scheduler = open_setting(Setting(), found)
        engine: Any = scheduler.engine
        engine.widths = engine.prompt_widths._replace(is_reference=True)
        if not is_first:
            play(scheduler, [ask(scheduler, "a", BYTES, sampling=sampling(0.8))])
        rows.append(RecordedRows(engine))
        asked = ask(scheduler, "b", picture(1), BYTES, sampling=sampling(0.8))
        assert asked.media[0][1].num_cells == 64
        play(scheduler, [asked])
    differences = rows[0].differences(rows[1])
    assert len(differences) > 10
    assert not differences.any()


def test_exact_texts_of_a_model_with_windows_need_flash_attention(tmp_path: Path) -> None:
    """Without it, what came behind a window from main memory had other last bits."""
    plain, windows = (
        write_model(tmp_path / f"{name}.gguf", name, changes=changes_for(name, 0))
        for name in ("llama", "gemma3")
    )
    assert engine_of(plain, exact=True, flash_attn="off").widths
    with pytest.raises(ConfigError, match="leave out --flash-attn off"):
        engine_of(windows, exact=True, flash_attn="off")


def test_what_was_copied_is_the_same_whatever_becomes_of_its_source_before_the_next_decode(
    tmp_path: Path,
) -> None:
    """In exact mode each sequence has a cache of its own, which libllama copies late."""
    path = tiny_llama(tmp_path / "tiny.gguf")
    engine, fresh = engine_of(path, exact=True), engine_of(path, exact=True)
    text, other = list(range(40)), list(range(100, 150))
    decode(fresh, text, 0)
    expected = decode(fresh, [7], 40)
    decode(engine, other, 0)
    saved = engine.save_sequence(0)
    engine.clear(0)
    decode(engine, text, 0)
    assert engine.copy_prefix(0, 1, 40)
    assert engine.restore_sequence(0, saved)
    np.testing.assert_array_equal(decode(engine, [7], 40, seq_id=1), expected)


@pytest.mark.parametrize(("size", "length"), [(40, 30), (256, 256)], ids=["some", "the context"])
def test_what_was_copied_can_be_saved_at_once(size: int, length: int, tmp_path: Path) -> None:
    """libllama copies beside a token, for which a full context has no room."""
    path = tiny_llama(tmp_path / "tiny.gguf")
    engine, fresh = engine_of(path, exact=True), engine_of(path, exact=True)
    for one in (engine, fresh):
        decode(one, [i % 200 for i in range(size)], 0)
    assert engine.copy_prefix(0, 1, length)
    saved = engine.save_sequence(1)
    engine.clear(0)
    assert engine.restore_sequence(0, saved)
    for one in (engine, fresh):
        one.truncate(0, length - 1)
    np.testing.assert_array_equal(*(decode(one, [7], length - 1) for one in (engine, fresh)))


@pytest.mark.parametrize("error", [EngineError("no bytes"), MemoryError()], ids=repr)
def test_a_prefix_whose_state_cannot_be_had_is_read_again(error, kind_and_path, monkeypatch):
    kind, path = kind_and_path
    engine, fresh = engine_of(path), engine_of(path)
    decode(engine, [1, 2, 3], 0)
    with monkeypatch.context() as patch:
        patch.setattr(Sequences, "_get", Mock(side_effect=error))
        assert engine.copy_prefix(0, 1, 3) is (kind is CacheKind.CUT)
        engine.checkpoint(0)
        assert engine.keep_for_draft(0) is (kind is not CacheKind.CHECKPOINT)
        if kind is CacheKind.CUT:  # cells of its own are a copy of those that it shares
            assert not engine.shift(1, 0, 1)
    text = [1, 2, 3, 7]
    np.testing.assert_array_equal(
        decode(engine, text, 0, seq_id=1), decode(fresh, text, 0, seq_id=1)
    )


@pytest.mark.parametrize("exact", [False, True])
def test_control_knows_whether_a_draft_pads_the_rows_of_other_answers(tmp_path, *, exact: bool):
    assert engine_of(tiny_llama(tmp_path / "tiny.gguf"), exact=exact).rows is (
        Rows.PADDED if exact else Rows.TOGETHER
    )


@pytest.mark.parametrize(("write", "exact"), [(tiny_hybrid, False), (tiny_llama, True)])
def test_the_logits_of_drafts_are_copied_only_where_a_prompt_is_read_in_another_decode(
    write: Callable[[Path], Path], tmp_path: Path, *, exact: bool
) -> None:
    """They are many megabytes a step."""
    path = write(tmp_path / "tiny.gguf")
    engine = engine_of(path, exact=exact)
    engine.width_costs = {}  # as few decodes as possible
    prompt = list(range(50))
    for seq_id in range(2):
        decode(engine, [1, 2, 3], 0, seq_id=seq_id)
    batch = Batch(256)
    batch.add(0, 3, [4, 5, 6], 3)
    batch.add(1, 3, [7], 1)
    logits = engine.decode(batch)
    assert not logits.flags.owndata
    rows = logits.copy()
    batch.clear()
    engine.rewind(0, 4)
    engine.clear(1)
    batch.add(0, 4, [8], 1)
    batch.add(1, 0, prompt, 1)
    beside = engine.decode(batch)
    assert beside.flags.owndata is exact
    texts = [1, 2, 3, 4, 5, 6], [1, 2, 3, 7], [1, 2, 3, 4, 8], prompt
    for row, text in zip((rows[2], rows[3], *beside), texts, strict=True):
        alone = decode(engine_of(path, exact=exact), text, 0)[0]
        np.testing.assert_allclose(row, alone, atol=2e-2)


def test_a_draft_beside_a_prompt_is_read_again_where_its_snapshots_are_lost(tmp_path: Path) -> None:
    """The scheduler decodes no such batch."""
    engine = engine_of(tiny_hybrid(tmp_path / "tiny.gguf"))
    decode(engine, [1, 2, 3], 0)
    batch = Batch(256)
    batch.add(0, 3, [4, 5, 6], 3)
    batch.add(1, 0, list(range(50)), 1)
    engine.decode(batch)
    assert engine.rewind(0, 4) == 0


def _of_long_memory(name: str, shape: tuple[int, ...]) -> NDArray[np.float64] | None:
    """Tensors with which the logits depend on all of the text, not on the last token alone."""
    if name.endswith("ssm_a"):
        return np.full(shape, -0.01)
    scale = 0.01 if name == "token_embd.weight" else 1.0
    is_changed = scale < 1.0 or name.endswith("ssm_out.weight")
    return scale * np.random.default_rng(0).standard_normal(shape) if is_changed else None


def test_a_rewind_never_gives_the_state_of_another_sequence_that_decoded_since(tmp_path) -> None:
    """libllama has the states of a decode beside each other, and moves one that is between them,
    but not its snapshots.
    """
    path = write_model(tmp_path / "tiny.gguf", "qwen35", values=_of_long_memory)
    engine, fresh = engine_of(path, Limits(3, 16, 8)), engine_of(path)
    texts = {seq_id: list(range(start, start + 12)) for seq_id, start in ((0, 9), (2, 50), (1, 90))}
    for seq_id, text in texts.items():  # that between the others was read as the second
        decode(engine, text, 0, seq_id=seq_id)
    batch = Batch(256)
    for seq_id in (0, 1):
        batch.add(seq_id, 12, [7], 1)
    engine.decode(batch)
    text = [*texts[2][:10], 7]
    known = engine.rewind(2, 10)
    rows = decode(engine, text[known:], known, seq_id=2)
    np.testing.assert_allclose(rows, decode(fresh, text, 0), atol=2e-2)


def test_a_scored_prompt_keeps_its_checkpoints_beside_another_one(tmp_path: Path) -> None:
    """Each chunk is padded to the length of the longest."""
    models, (first, _) = without_draft(tiny_hybrid(tmp_path / "tiny.gguf")), byte_requests(2)
    scheduler = open_setting(replace(PLAIN, types="ngram-cache", num_slots=2), models)
    scored = replace(first, wants_prompt_scores=True, num_logprobs=1)
    requests = [
        replace(scored, request_id=name, prompt=tuple(range(start, start + length)))
        for name, start, length in (("a", 60, 20), ("b", 100, 17))  # the first reads 16, then 4
    ]
    play(scheduler, requests)
    turn = replace(first, request_id="turn", prompt=(*range(60, 76), *range(150, 170)))
    answer = play(scheduler, [turn])["turn"]
    assert answer.stats.num_cached == 16
    (expected,) = play(open_setting(PLAIN, models), [turn]).values()
    assert answer.tokens == expected.tokens


def test_the_state_before_a_draft_does_not_leave_the_device(tmp_path: Path) -> None:
    engine = engine_of(tiny_recurrent(tmp_path / "tiny.gguf"))
    decode(engine, [1, 2, 3], 0)
    assert engine.keep_for_draft(0)
    kept = engine.checkpoints.best(0, 9)
    engine.checkpoint(0)
    copied = engine.checkpoints.of(0)[0]
    assert kept is not None
    assert len(kept.data) < len(copied.data) / 8


def test_another_sequence_can_begin_with_the_text_before_a_draft(tmp_path: Path) -> None:
    path = tiny_recurrent(tmp_path / "tiny.gguf")
    engine, fresh = engine_of(path), engine_of(path)
    for one in (engine, fresh):
        decode(one, [1, 2, 3], 0)
    assert engine.keep_for_draft(0)
    decode(engine, [4, 5], 3)
    assert engine.copy_prefix(0, 1, 3)
    assert engine.rewind(0, 3) == 3
    expected = decode(fresh, [7], 3)
    for seq_id in (1, 0):
        np.testing.assert_array_equal(decode(engine, [7], 3, seq_id=seq_id), expected)


def test_a_prompt_whose_windows_are_kept_whole_comes_back_where_its_last_token_alone_is_read(
    tmp_path: Path,
) -> None:
    config = replace(PLAIN, num_slots=1).config()
    config = replace(config, engine=replace(config.engine, swa_full=True))
    scheduler = open_config(config, without_draft(write_model(tmp_path / "tiny.gguf", "gemma3")))
    first, other = (
        replace(byte_requests(1)[0], prompt=tuple(range(at, at + 200)), max_tokens=1)
        for at in (20, 40)
    )
    expected = play(scheduler, [replace(first, cache_prompt=False)])
    for one in (first, other):
        play(scheduler, [one])
    answer = play(scheduler, [first])
    assert different(expected, answer) == ()
    assert answer[first.request_id].stats.num_cached == 199
