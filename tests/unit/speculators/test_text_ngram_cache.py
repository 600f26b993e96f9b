"""The three levels of ngram-cache, and its files."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.unit.speculators.text_support import VOCABULARY, accept, propose, tokens_of

from headstart.errors import ModelError
from headstart.speculators.ngram_cache import NgramCacheSpeculator
from headstart.structures.ngram_counts import NgramCounts


def test_single_tokens_are_counted() -> None:
    speculator = NgramCacheSpeculator()
    history = [1]
    speculator.begin(0, history)
    for token in [2, 3, 1, 2, 3, 1]:
        propose(speculator, history)
        accept(speculator, history, [token])
    assert tokens_of(speculator, history, 3) == [2, 3, 1]


def test_the_context_of_one_request_does_not_reach_the_next() -> None:
    speculator = NgramCacheSpeculator()
    speculator.begin(0, [1, 2, 3, 4] * 4)
    speculator.end(0)
    speculator.begin(0, [1, 2, 3])
    assert tokens_of(speculator, [1, 2, 3]) == []


@pytest.mark.parametrize(("times", "drafts"), [(1, False), (2, True)])
def test_the_dynamic_level_wants_two_samples_of_long_ngrams(times: int, drafts: bool) -> None:
    speculator = NgramCacheSpeculator()
    for _ in range(times):
        speculator.begin(0, [0])
        speculator.accept(0, [1, 2, 3, 4, 5], 0)
        speculator.end(0)
    assert bool(tokens_of(speculator, [1, 2, 3, 4], seq_id=1)) is drafts


def test_other_namespaces_leave_nothing_in_the_dynamic_level() -> None:
    speculator = NgramCacheSpeculator()
    for _ in range(3):
        speculator.begin(0, [0], "alice")
        speculator.accept(0, [1, 2, 3, 4, 5], 0)
        speculator.end(0)
    assert tokens_of(speculator, [1, 2, 3, 4], seq_id=1) == []


def test_a_tie_below_the_percentage_is_not_drafted() -> None:
    speculator = NgramCacheSpeculator()
    assert tokens_of(speculator, [1, 5, 1, 6, 1, 7, 1], 1) == []


def test_static_bigrams_draft_alone_and_settle_ties(tmp_path: Path) -> None:
    static = NgramCounts()
    static.learn([1, 2, 8, 1, 2, 8], 0)
    static.save(tmp_path / "static")
    options = NgramCacheSpeculator.Options(lookup_cache_static=str(tmp_path / "static"))
    speculator = NgramCacheSpeculator(options, VOCABULARY)
    assert tokens_of(speculator, [1, 2], 1) == [8]
    assert tokens_of(speculator, [0, 1, 2, 7, 5, 1, 2, 8, 6, 1, 2], 1, seq_id=1) == [8]


def test_the_dynamic_file_is_written_at_close_and_read_again(tmp_path: Path) -> None:
    options = NgramCacheSpeculator.Options(lookup_cache_dynamic=str(tmp_path / "dynamic"))
    speculator = NgramCacheSpeculator(options, VOCABULARY)
    for _ in range(2):
        speculator.begin(0, [0])
        speculator.accept(0, [1, 2, 3, 4, 5], 0)
        speculator.end(0)
    speculator.close()
    assert tokens_of(NgramCacheSpeculator(options, VOCABULARY), [1, 2, 3, 4]) == [5]


def test_the_dynamic_file_is_written_while_running(tmp_path: Path) -> None:
    path = tmp_path / "dynamic"
    options = NgramCacheSpeculator.Options(lookup_cache_dynamic=str(path), save_tokens=3)
    speculator = NgramCacheSpeculator(options, VOCABULARY)
    speculator.begin(0, [0])
    speculator.accept(0, [1, 2, 3], 0)
    speculator.end(0)
    assert len(NgramCounts.load(path, 100)) > 0


def test_a_file_that_cannot_be_written_does_not_stop_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "gone").mkdir()
    options = NgramCacheSpeculator.Options(lookup_cache_dynamic=str(tmp_path / "gone" / "dynamic"))
    speculator = NgramCacheSpeculator(options, VOCABULARY)
    (tmp_path / "gone").rmdir()
    speculator.begin(0, [0])
    speculator.accept(0, [1, 2, 3], 0)
    with caplog.at_level(logging.ERROR):
        speculator.close()
    assert "is not written any more" in caplog.text


def test_files_of_another_vocabulary_are_refused_by_name(tmp_path: Path) -> None:
    counts = NgramCounts()
    counts.learn([1, 200, 3], 0)
    counts.save(tmp_path / "big.bin")
    for field in ("lookup_cache_static", "lookup_cache_dynamic"):
        options = NgramCacheSpeculator.Options(**{field: str(tmp_path / "big.bin")})
        with pytest.raises(ModelError, match=r"big\.bin holds token 200"):
            NgramCacheSpeculator(options, VOCABULARY)
