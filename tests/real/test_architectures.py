"""Every architecture: what its cache gives back is what a fresh cache would hold.

The whole matrix, with speculators and memory, is in benchmarks/models.py; this is its quick form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.architectures import ARCHITECTURES, WINDOW, write_model
from tests.real.support import engine_of

from headstart.engine.parameters import Limits
from headstart.scheduler.widths import WIDE, WidthComparison
from headstart.types import Batch, CacheKind
from headstart.types.errors import ConfigError
from headstart.types.widths import WidthClasses

MEMORY = {
    CacheKind.WINDOW: "gemma2 gemma3 gemma3n gemma4 gpt-oss cohere2 olmo2 mimo2 step35",
    CacheKind.ROLLBACK: "qwen35 qwen35moe nemotron_h deepseek4",
    CacheKind.CHECKPOINT: "qwen3next granitehybrid falcon-h1 jamba kimi-linear mamba mamba2 "
    "rwkv6 rwkv7 lfm2 lfm2moe",
}
KINDS = {name: kind for kind, names in MEMORY.items() for name in names.split()}
TEXT = np.random.default_rng(3).integers(0, 256, 3 * WINDOW).tolist()
PROBE = [5, 6, 7]
# twice what the rows of a decode change alone, where that is more than elsewhere
TOLERANCES = {"gemma3n": 0.015, "gemma4": 0.06, "deepseek4": 1e-3}
# the state of another token is 1.4e-4 off: less than what rounding may do elsewhere
STATE_TOLERANCE = 8e-5
FRESH = 4  # a sequence to compare with


ONE_SEQUENCE = {"plamo2"}  # libllama computes it wrongly for several


@pytest.fixture(scope="module", params=[a for a in ARCHITECTURES if a not in ONE_SEQUENCE])
def model_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = request.param
    return write_model(tmp_path_factory.mktemp("models") / f"{name}.gguf", name)


class Probe:
    """An engine over one file, and what a fresh cache answers.

    Logits may differ in what rounding does to them, unless decodes have widths that agree.
    """

    def __init__(self, path: Path, *, is_exact: bool = False, swa_full: bool = False) -> None:
        self.kind = KINDS.get(path.stem, CacheKind.CUT)
        usual = STATE_TOLERANCE if self.kind is CacheKind.ROLLBACK else 2e-3
        self.tolerance = TOLERANCES.get(path.stem, usual)
        sizes = {"batch": 128, "ubatch": 128, "cache_type_k": "f32", "cache_type_v": "f32"}
        settings = sizes | {"exact": is_exact, "swa_full": swa_full}
        self.engine = engine_of(path, Limits(5, 32, 4), **settings)

    def decode(self, tokens: Sequence[int], position: int, seq_id: int = 0) -> NDArray[np.float32]:
        batch = Batch(128)
        batch.add(seq_id, position, tokens, min(4, len(tokens)))
        return self.engine.decode(batch).copy()

    def is_as_fresh(self, seq_id: int, text: Sequence[int]) -> bool:
        """Whether the sequence goes on as one that only ever held this text."""
        self.engine.clear(FRESH)
        self.decode(text, 0, FRESH)
        got, fresh = (
            np.concatenate([self.decode([t], len(text) + i, s) for i, t in enumerate(PROBE)])
            for s in (seq_id, FRESH)
        )
        assert np.isfinite(fresh).all()
        return self.agrees(got, fresh)

    def agrees(self, got: NDArray[np.float32], fresh: NDArray[np.float32]) -> bool:
        return bool(np.abs(got - fresh).max() < self.tolerance * np.abs(fresh).max())


@pytest.fixture(scope="module")
def loaded(model_file: Path) -> Iterator[Probe]:
    probe = Probe(model_file)
    yield probe
    probe.engine.close()


@pytest.fixture
def probe(loaded: Probe) -> Probe:
    """One of each architecture; its sequences are empty."""
    for seq_id in range(FRESH + 1):
        loaded.engine.clear(seq_id)
    return loaded


def test_the_kind_of_memory_is_recognised(probe: Probe) -> None:
    assert probe.engine.cache_kind is probe.kind


def test_rejected_drafts_leave_no_trace_far_beyond_the_window(probe: Probe) -> None:
    text = list(TEXT)
    probe.decode(text, 0)
    for turn in range(0 if probe.kind is CacheKind.CHECKPOINT else WINDOW // 2):
        probe.decode([turn, 101, 102, 103], len(text))
        text.append(turn)
        assert probe.engine.rewind(0, len(text)) == len(text)
    assert probe.is_as_fresh(0, text)


def test_a_draft_is_cut_off_or_taken_back_to_the_state_before_it(probe: Probe) -> None:
    text = TEXT[:30]
    probe.decode(text, 0)
    for turn in range(3):
        assert probe.engine.keep_for_draft(0)
        probe.decode([turn, 101, 102, 103], len(text))
        text += [turn, 101]
        length = probe.engine.rewind(0, len(text))
        assert length == len(text) - 2 * (probe.kind is CacheKind.CHECKPOINT)
        if length < len(text):
            probe.decode(text[length:], length)
    assert probe.is_as_fresh(0, text)


@pytest.mark.parametrize("num_rows", [1, 4])
def test_no_snapshot_of_another_place_is_taken_for_the_state_before_a_decode(probe, num_rows):
    """libllama says that it went back there, and has a wrong state."""
    probe.decode(TEXT[:30], 0)
    probe.decode(TEXT[30:][:num_rows], 30)
    left = probe.engine.rewind(0, 30)
    assert not left or probe.is_as_fresh(0, TEXT[:left])


@pytest.mark.parametrize("name", ["granitehybrid", "mamba", "qwen35", "lfm2", "qwen3moe", "gemma3"])
def test_a_rejected_draft_leaves_not_one_bit_behind(name: str, tmp_path: Path) -> None:
    """In decodes of the same widths: a state would add up whatever drafts left."""
    path = write_model(tmp_path / f"{name}.gguf", name, is_quantized=True)
    drafted, other = Probe(path), Probe(path)
    for length in range(20, 32):
        rows = []
        for probe, token in ((drafted, 100 + length), (other, 9)):
            if length == 20:
                probe.decode(TEXT[:20], 0)
            if probe.kind is not CacheKind.CHECKPOINT:
                rows.append(probe.decode([7, token, 101, 102], length)[0])
                assert probe.engine.rewind(0, length + 1) == length + 1
                continue
            if probe is drafted:  # the other one never drafts
                assert probe.engine.keep_for_draft(0)
                probe.decode([7, token, 101, 102], length)
                assert probe.engine.rewind(0, length) == length
            rows.append(probe.decode([7], length)[0])
        np.testing.assert_array_equal(*rows)


@pytest.mark.parametrize("seed", [3, 10])
def test_sequences_in_one_batch_do_not_touch_each_other(probe: Probe, seed: int) -> None:
    """Prompts, drafts of any length and rejections in random order; some pause or begin again."""
    random = np.random.default_rng(seed)
    texts: dict[int, list[int]] = {}
    longest = 0 if probe.kind is CacheKind.CHECKPOINT else min(4, probe.engine.max_rollback)
    for _ in range(24):
        order, reads = list(range(FRESH)), None
        if probe.kind is CacheKind.ROLLBACK:  # whose states may move with others' rows
            random.shuffle(order)
            reads = random.random() < 0.4  # prompts, which have decodes of their own
        batch, last_kept, kept = Batch(128), list[int](), list[int]()
        for seq_id in order:
            if random.random() < 0.2:
                probe.engine.clear(seq_id)
                texts.pop(seq_id, None)
            text = texts.get(seq_id, [])
            if random.random() < 0.3 or reads is bool(text):
                continue
            size = 1 + int(random.integers(longest + 1) if text else random.integers(5, 30))
            num_kept = int(random.integers(size)) + 1 if text else size
            tokens = random.integers(0, 256, size).tolist()
            num_outputs = size if text else 1  # all rows of a draft have outputs, of a prompt one
            last_kept.append(batch.num_outputs + min(num_kept, num_outputs) - 1)
            kept.append(seq_id)
            batch.add(seq_id, len(text), tokens, num_outputs)
            texts[seq_id] = [*text, *tokens[:num_kept]]
        if not batch.num_rows:
            continue
        rows = probe.engine.decode(batch).copy()
        for seq_id in kept:  # as after every decode: later ones may overwrite what goes back
            assert probe.engine.rewind(seq_id, len(texts[seq_id])) == len(texts[seq_id])
        for seq_id, row in zip(kept, last_kept, strict=True):
            probe.engine.clear(FRESH)
            fresh = probe.decode(texts[seq_id], 0, FRESH)[-1]
            assert probe.agrees(rows[row], fresh), f"sequence {seq_id}: {texts[seq_id]}"


def test_logits_do_not_depend_on_the_rows_of_a_decode(model_file: Path) -> None:
    """One row and two are computed by other kernels, also behind the last layer."""
    if model_file.stem in KINDS:
        return
    probe = Probe(model_file, is_exact=True)
    answers = []
    for width in (1, 2, 4, 12):
        probe.engine.clear(0)
        rows = [probe.decode(TEXT[at : at + width], at) for at in range(0, 24, width)]
        answers.append(np.stack([row[-1] for row in rows])[11 // width :: max(1, 12 // width)])
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer, answers[0])


@pytest.mark.parametrize("name", ["qwen3next", "lfm2moe", "jamba", "deepseek2", "kimi-linear"])
def test_rows_of_a_quantized_model_are_the_same_beside_others(name: str, tmp_path: Path) -> None:
    """libllama's AMX kernels mix up the sequences of one decode, or abort."""
    probe = Probe(write_model(tmp_path / f"{name}.gguf", name, is_quantized=True))
    for size in (1, 7):
        batch = Batch(128)
        for seq_id in range(FRESH):
            probe.engine.clear(seq_id)
            batch.add(seq_id, 0, TEXT[seq_id:][:size], 1)
        rows = probe.engine.decode(batch).copy()
        for seq_id, row in enumerate(rows):
            probe.engine.clear(FRESH)
            assert probe.agrees(row, probe.decode(TEXT[seq_id:][:size], 0, FRESH)[-1])


def test_a_model_that_libllama_gets_wrong_is_served_one_request_at_a_time(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", "plamo2")
    with pytest.raises(ConfigError, match=r"plamo2 models wrongly .* start with --parallel 1"):
        engine_of(path)
    assert engine_of(path, Limits(1, 1, 0)).num_sequences == 1


@pytest.mark.parametrize("length", [2 * WINDOW + 1, 2 * WINDOW, 10])
def test_an_edited_history_goes_on_from_what_is_left(probe: Probe, length: int) -> None:
    probe.decode(TEXT[: 2 * WINDOW], 0)
    probe.engine.checkpoint(0)
    probe.decode(TEXT[2 * WINDOW :], 2 * WINDOW)
    reusable = probe.engine.reusable(0, length)
    left = probe.engine.rewind(0, length)
    assert left == reusable
    assert left == length or length < 2 * WINDOW or left == 2 * WINDOW
    if left:
        assert probe.is_as_fresh(0, TEXT[:left])


@pytest.mark.parametrize("is_exact", [False, True])
def test_a_restored_prompt_is_cut_only_where_a_window_kept_whole_is_still_held(
    model_file: Path, monkeypatch: pytest.MonkeyPatch, *, is_exact: bool
) -> None:
    """libllama saves only what the next token sees, also with --swa-full."""
    if KINDS.get(model_file.stem) is not CacheKind.WINDOW:
        return
    if is_exact:
        all_agree = WidthClasses(((*range(1, 17), *WIDE),), (), 0.0)
        monkeypatch.setattr(WidthComparison, "run", lambda *_: all_agree)
    probe = Probe(model_file, is_exact=is_exact, swa_full=True)
    for length in (len(TEXT) - 1, 2 * WINDOW, 10):
        for seq_id in (0, 1):
            probe.engine.clear(seq_id)
        probe.decode(TEXT, 0)
        assert probe.engine.restore_sequence(0, probe.engine.save_sequence(0))
        reusable = probe.engine.reusable(0, length)
        assert reusable == probe.engine.reusable(0, length, by_copy=True)
        assert reusable in (0, length)
        if reusable:
            assert probe.engine.copy_prefix(0, 1, length)
            assert probe.is_as_fresh(1, TEXT[:length])
        assert probe.engine.rewind(0, length) == reusable
        if reusable:
            assert probe.is_as_fresh(0, TEXT[:length])


@pytest.mark.parametrize("length", [len(TEXT), 2 * WINDOW, 10])
def test_a_shared_prefix_serves_another_sequence_and_its_own(probe: Probe, length: int) -> None:
    probe.decode(TEXT[: 2 * WINDOW], 0)
    probe.engine.checkpoint(0)
    probe.decode(TEXT[2 * WINDOW :], 2 * WINDOW)
    probe.decode([1, 2, 3], 0, 1)
    left = probe.engine.reusable(0, length, by_copy=True)
    if left:
        assert probe.engine.copy_prefix(0, 1, left)
        assert probe.is_as_fresh(1, TEXT[:left])
    assert probe.is_as_fresh(0, TEXT)


def test_a_saved_sequence_comes_back_with_its_checkpoints(probe: Probe) -> None:
    """In the place of another."""
    probe.decode(TEXT[:40], 0)
    probe.engine.checkpoint(0)
    probe.decode(TEXT[40:], 40)
    data = probe.engine.save_sequence(0)
    probe.engine.clear(0)
    probe.decode([9, 9], 0, 1)
    assert probe.engine.restore_sequence(1, data)
    if probe.kind is not CacheKind.CUT:
        assert probe.engine.reusable(1, 40) == 40
    assert probe.is_as_fresh(1, TEXT)


@pytest.mark.parametrize(
    ("widths", "num_snapshots", "longest"),
    [((*range(1, 17), 20, 24), 24, 15), ((*range(1, 9),), 24, 7), ((8, 12, 16), 9, 7)],
    ids=["all", "few rows", "much padding"],
)
def test_an_exact_draft_of_any_length_that_is_allowed_can_be_taken_back(
    widths: tuple[int, ...], num_snapshots: int, longest: int, tmp_path, monkeypatch
) -> None:
    """Else the whole text is read again: what takes two decodes or more padding than snapshots."""
    monkeypatch.setattr(WidthComparison, "run", lambda *_: WidthClasses((widths,), (), 0.0))
    path = write_model(tmp_path / "tiny.gguf", "qwen35")
    engine = engine_of(path, Limits(1, 64, num_snapshots), exact=True)
    lost = []
    for length in range(engine.max_rollback + 1):
        engine.clear(0)
        for position, num_rows, num_outputs in ((0, 40, 1), (40, 1 + length, 1 + length)):
            batch = Batch(256)
            batch.add(0, position, TEXT[:num_rows], num_outputs)
            engine.decode(batch)
        lost += [length] * (engine.rewind(0, 41) != 41)
    assert (engine.max_rollback, lost) == (longest, [])
