"""A draft model leaves out the middle of a long text: what it holds, and what it drafts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.harness import (
    AUTO,
    EOS,
    Model,
    RandomController,
    make_requests,
    make_scheduler,
    run_checked,
)

from headstart.speculators.draft_model import DraftModelSpeculator
from headstart.speculators.draft_model_progress import FIRST, CachedSequence
from headstart.types import CacheKind, Draft, DraftRequest

TEXT = [(7 * i + i // 31) % EOS for i in range(100)]


def make_drafter(
    most_read: int = 16, cache_kind: CacheKind = CacheKind.CUT, batch: int = 2048
) -> DraftModelSpeculator:
    model = Model(skew=0.3, cache_kind=cache_kind)
    model.max_batch_tokens = batch
    drafter = DraftModelSpeculator(model)
    drafter.most_read = most_read
    return drafter


def cells(drafter: DraftModelSpeculator, seq_id: int) -> list[int]:
    assert isinstance(drafter.engine, Model)
    return drafter.engine.cache.get(seq_id, [])


def draft(drafter: DraftModelSpeculator, text: list[int], seq_id: int = 0) -> Draft:
    return drafter.propose([DraftRequest(seq_id, text, 3)])[0]


def read(drafter: DraftModelSpeculator, text: list[int], seq_id: int = 0) -> Draft:
    """Its draft once it has read all that it wants."""
    while not (drafted := draft(drafter, text, seq_id)).is_ready:
        pass
    return drafted


def test_the_beginning_and_the_end_of_a_long_text_are_read_in_one_call() -> None:
    drafter = make_drafter()
    drafter.begin(0, TEXT)
    assert drafter.num_catch_up(0, TEXT) == 16
    drafted = draft(drafter, TEXT)
    assert len(drafted.tokens) == 3
    assert cells(drafter, 0)[:16] == [*TEXT[:FIRST], *TEXT[-12:]]
    assert drafter.num_decoded == 16 + 2
    drafter.accept(0, [*drafted.tokens, 5], 3)
    text = [*TEXT, *drafted.tokens, 5]
    assert drafter.num_catch_up(0, text) == 1, "the last token of the draft"
    draft(drafter, text)
    assert drafter.num_decoded == 18 + 2 + 2, "it goes on behind the gap"


def test_a_text_that_takes_two_calls_is_read_whole() -> None:
    """Less would hardly be saved than what is lost."""
    drafter = make_drafter(most_read=50)
    drafter.begin(0, TEXT)
    assert drafter.num_catch_up(0, TEXT) == 99
    read(drafter, TEXT)
    assert cells(drafter, 0)[:100] == TEXT


def test_as_much_is_read_in_small_batches_as_in_large_ones() -> None:
    drafter = make_drafter(most_read=40, batch=16)
    drafter.begin(0, TEXT)
    assert drafter.num_catch_up(0, TEXT) == 40
    read(drafter, TEXT)
    assert drafter.num_decoded == 40 + 2


def test_what_was_read_of_the_beginning_stays() -> None:
    """A conversation goes on: only what is new of it may be left out."""
    drafter = make_drafter()
    drafter.begin(0, TEXT[:30])
    read(drafter, TEXT[:30])
    drafter.end(0)
    drafter.begin(0, TEXT)
    draft(drafter, TEXT)
    assert cells(drafter, 0)[: 30 + 16] == [*TEXT[:30], *TEXT[-16:]]


def test_who_fell_behind_again_leaves_out_more() -> None:
    drafter = make_drafter()
    drafter.begin(0, TEXT[:50])
    draft(drafter, TEXT[:50])
    drafter.accept(0, TEXT[50:], 0)
    assert drafter.num_catch_up(0, TEXT) == 16
    draft(drafter, TEXT)
    assert cells(drafter, 0)[:20] == [*TEXT[:FIRST], *TEXT[-16:]]


def test_a_sequence_with_a_gap_is_saved_and_shared_as_what_it_is() -> None:
    drafter = make_drafter()
    drafter.begin(0, TEXT)
    draft(drafter, TEXT)
    drafter.end(0)
    saved = drafter.save_sequence(0, "")
    assert saved is not None
    drafter.restore_sequence(1, saved, "")
    for seq_id in (1, 2):  # from main memory; then from the other sequences
        drafter.begin(seq_id, TEXT)
        assert drafter.num_catch_up(seq_id, TEXT) == 16
        draft(drafter, TEXT, seq_id)
        assert cells(drafter, seq_id)[: FIRST + 16] == [*TEXT[:FIRST], *TEXT[-16:]]


def test_a_model_whose_memory_takes_nothing_back_reads_everything() -> None:
    drafter = make_drafter(cache_kind=CacheKind.CHECKPOINT)
    drafter.begin(0, TEXT)
    assert drafter.num_catch_up(0, TEXT) == 99
    read(drafter, TEXT)
    assert cells(drafter, 0)[: len(TEXT)] == TEXT


@pytest.mark.parametrize("seed", range(6))
def test_gaps_that_come_and_go_change_no_text(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among other speculators' drafts, with several slots that take over each other's prompts."""
    requests, engine, drafter = make_requests(10), Model(2), make_drafter(most_read=4)
    scheduler = make_scheduler(engine, [drafter], AUTO, RandomController(seed))
    skip_middle, gaps = CachedSequence.skip_middle, []

    def skipped(sequence: CachedSequence, history: Sequence[int], room: int) -> None:
        skip_middle(sequence, history, room)
        gaps.append(len(sequence.gap))

    monkeypatch.setattr(CachedSequence, "skip_middle", skipped)
    run_checked(scheduler, requests)
    assert sum(map(bool, gaps)) > 20
    for seq_id, sequence in drafter._sequences.items():
        assert cells(drafter, seq_id) == sequence.tokens
