"""A draft model that leaves out the middle of a long text: what it holds, and what it drafts."""

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
from tests.planted import noted

from headstart.control.values import with_gap
from headstart.speculators.draft_model import DraftModelSpeculator
from headstart.speculators.draft_model_progress import FIRST, CachedSequence
from headstart.types import CacheKind, Draft, DraftRequest

TEXT = [(7 * i + i // 31) % EOS for i in range(100)]


def make_drafter(
    most_read: int = 16, cache_kind: CacheKind = CacheKind.CUT
) -> DraftModelSpeculator:
    drafter = DraftModelSpeculator(Model(skew=0.3, cache_kind=cache_kind))
    drafter.most_read = most_read
    return drafter


def cells(drafter: DraftModelSpeculator, seq_id: int) -> list[int]:
    assert isinstance(drafter.engine, Model)
    return drafter.engine.cache.get(seq_id, [])


def draft(
    drafter: DraftModelSpeculator, text: list[int], *, can_skip: bool, seq_id: int = 0
) -> Draft:
    return drafter.propose([DraftRequest(seq_id, text, 3, can_skip=can_skip)])[0]


def read(
    drafter: DraftModelSpeculator, text: list[int], seq_id: int = 0, *, can_skip: bool = False
) -> Draft:
    """Its draft once it has read all that it wants."""
    while not (drafted := draft(drafter, text, can_skip=can_skip, seq_id=seq_id)).is_ready:
        pass
    return drafted


def test_the_beginning_and_the_end_of_a_long_text_are_read_in_one_call() -> None:
    drafter = make_drafter()
    drafter.begin(0, TEXT)
    assert (drafter.num_catch_up(0, TEXT), drafter.num_recent(0, TEXT)) == (99, 16)
    drafted = draft(drafter, TEXT, can_skip=True)
    assert len(drafted.tokens) == 3
    assert cells(drafter, 0)[:16] == [*TEXT[:FIRST], *TEXT[-12:]]
    assert drafter.num_decoded == 16 + 2
    drafter.accept(0, [*drafted.tokens, 5], 3)
    text = [*TEXT, *drafted.tokens, 5]
    assert drafter.num_recent(0, text) == 1, "the last token of the draft"
    assert drafter.num_catch_up(0, text) == len(text) - 1 - FIRST
    draft(drafter, text, can_skip=True)
    assert drafter.num_decoded == 18 + 2 + 2, "it goes on behind the gap"


def test_a_short_text_is_read_whole() -> None:
    drafter = make_drafter(most_read=100)
    drafter.begin(0, TEXT)
    draft(drafter, TEXT, can_skip=True)
    assert cells(drafter, 0)[:100] == TEXT


def test_what_was_read_of_the_beginning_stays() -> None:
    """A conversation goes on: only what is new of it may be left out."""
    drafter = make_drafter()
    drafter.begin(0, TEXT[:40])
    read(drafter, TEXT[:40])
    drafter.end(0)
    drafter.begin(0, TEXT)
    draft(drafter, TEXT, can_skip=True)
    assert cells(drafter, 0)[: 40 + 16] == [*TEXT[:40], *TEXT[-16:]]
    assert drafter.num_catch_up(0, TEXT) == len(TEXT) - 1 - 40


def test_a_gap_is_read_when_the_whole_text_is_wanted() -> None:
    drafter, fresh = make_drafter(), make_drafter(most_read=200)
    for one in (drafter, fresh):
        one.begin(0, TEXT)
    with_gap = draft(drafter, TEXT, can_skip=True).tokens
    whole = read(drafter, TEXT)
    assert whole.tokens == draft(fresh, TEXT, can_skip=False).tokens != with_gap
    assert cells(drafter, 0) == cells(fresh, 0)
    assert drafter.num_catch_up(0, TEXT) == fresh.num_catch_up(0, TEXT) == 0


def test_who_fell_behind_again_leaves_out_more() -> None:
    drafter = make_drafter()
    drafter.begin(0, TEXT[:50])
    draft(drafter, TEXT[:50], can_skip=True)
    drafter.accept(0, TEXT[50:], 0)
    assert drafter.num_recent(0, TEXT) == 16
    draft(drafter, TEXT, can_skip=True)
    assert cells(drafter, 0)[:20] == [*TEXT[:FIRST], *TEXT[-16:]]


def test_a_sequence_with_a_gap_is_saved_and_shared_as_what_it_is() -> None:
    drafter = make_drafter()
    drafter.begin(0, TEXT)
    draft(drafter, TEXT, can_skip=True)
    drafter.end(0)
    saved = drafter.save_sequence(0, "")
    assert saved is not None
    drafter.restore_sequence(1, saved, "")
    # from main memory; then from the sequence that has read all
    for seq_id, num_left in ((1, len(TEXT) - 1 - FIRST), (2, 0)):
        drafter.begin(seq_id, TEXT)
        assert drafter.num_catch_up(seq_id, TEXT) == num_left
        read(drafter, TEXT, seq_id)
        assert cells(drafter, seq_id)[: len(TEXT)] == TEXT


def test_a_model_whose_memory_takes_nothing_back_reads_everything() -> None:
    drafter = make_drafter(cache_kind=CacheKind.CHECKPOINT)
    drafter.begin(0, TEXT)
    assert drafter.num_recent(0, TEXT) is None
    read(drafter, TEXT, can_skip=True)
    assert cells(drafter, 0)[: len(TEXT)] == TEXT


@pytest.mark.parametrize("seed", range(6))
def test_gaps_that_come_and_go_change_no_text(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among other speculators' drafts, with several slots that take over each other's prompts."""
    requests, engine, drafter = make_requests(10), Model(2), make_drafter(most_read=8)
    controller = RandomController(seed)
    told = noted(monkeypatch, controller._calibration, "record")
    scheduler = make_scheduler(engine, [drafter], AUTO, controller)
    open_gap, gaps = CachedSequence.open_gap, []

    def opened(sequence: CachedSequence, history: Sequence[int], room: int) -> None:
        open_gap(sequence, history, room)
        gaps.append(len(sequence.gap))

    monkeypatch.setattr(CachedSequence, "open_gap", opened)
    run_checked(scheduler, requests)
    assert sum(map(bool, gaps)) > 20
    assert {name.removesuffix("+grammar") for _, name, *_ in told} == {
        "draft-model",
        with_gap("draft-model"),
    }
    for seq_id, sequence in drafter._sequences.items():
        assert cells(drafter, seq_id) == sequence.tokens
