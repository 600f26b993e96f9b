"""The three levels of ngram-cache, and its files."""

from __future__ import annotations

import logging
import os
import struct
from pathlib import Path

import pytest
from tests.unit.speculators.text_support import VOCABULARY, accept, items_of, propose, tokens_of

from headstart.speculators import ngram_cache
from headstart.speculators.ngram_cache import NgramCacheSpeculator
from headstart.speculators.ngram_cache_counts import NgramCounts, pack
from headstart.structures.vocabulary_id import VocabularyId
from headstart.types.errors import ConfigError, ModelError


def dynamic(path: Path, **options: int) -> NgramCacheSpeculator:
    fields = NgramCacheSpeculator.Options(lookup_cache_dynamic=str(path), **options)
    return NgramCacheSpeculator(fields, VOCABULARY)


def generate(
    speculator: NgramCacheSpeculator, tokens: list[int], namespace: str = "", seq_id: int = 0
) -> None:
    """One request from begin to end."""
    speculator.begin(seq_id, [0], namespace)
    speculator.accept(seq_id, tokens, 0)
    speculator.end(seq_id)


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
        generate(speculator, [1, 2, 3, 4, 5])
    assert bool(tokens_of(speculator, [1, 2, 3, 4], seq_id=1)) is drafts


def test_other_namespaces_leave_nothing_in_the_dynamic_level() -> None:
    speculator = NgramCacheSpeculator()
    for _ in range(3):
        generate(speculator, [1, 2, 3, 4, 5], "alice")
    assert tokens_of(speculator, [1, 2, 3, 4], seq_id=1) == []


def test_a_tie_below_the_percentage_is_not_drafted() -> None:
    speculator = NgramCacheSpeculator()
    assert tokens_of(speculator, [1, 5, 1, 6, 1, 7, 1], 1) == []


def test_static_bigrams_draft_alone_and_settle_ties(tmp_path: Path) -> None:
    static = NgramCounts()
    static.learn([1, 2, 8, 1, 2, 8], 0)
    static.save(tmp_path / "static", VOCABULARY)
    options = NgramCacheSpeculator.Options(lookup_cache_static=str(tmp_path / "static"))
    speculator = NgramCacheSpeculator(options, VOCABULARY)
    assert tokens_of(speculator, [1, 2], 1) == [8]
    assert tokens_of(speculator, [0, 1, 2, 7, 5, 1, 2, 8, 6, 1, 2], 1, seq_id=1) == [8]


def test_the_dynamic_file_is_written_at_close_and_read_again(tmp_path: Path) -> None:
    speculator = dynamic(tmp_path / "dynamic")
    for _ in range(2):
        generate(speculator, [1, 2, 3, 4, 5])
    speculator.close()
    assert tokens_of(dynamic(tmp_path / "dynamic"), [1, 2, 3, 4]) == [5]


def test_the_dynamic_file_is_written_when_nobody_generates_or_when_it_is_overdue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody waits while it is written."""
    monkeypatch.setattr(ngram_cache, "SAVE_TOKENS", 3)
    path = tmp_path / "dynamic"
    speculator = dynamic(path)
    speculator.begin(1, [0], "somebody")
    generate(speculator, [1, 2, 3])
    assert not path.exists()
    speculator.end(1)
    assert path.exists()
    path.unlink()
    speculator._seen = None
    speculator.begin(1, [0], "somebody")
    for num_texts in range(1, 5):
        assert not path.exists()
        generate(speculator, [num_texts, 2, 3])
    assert path.exists()


def test_a_dynamic_file_with_more_ngrams_than_are_kept_is_refused_and_left_alone(tmp_path) -> None:
    """Else the first write would replace a collection of somebody's by a part of it."""
    path = tmp_path / "collection"
    counts = NgramCounts()
    counts.learn(list(range(50)), 0)
    counts.save(path, VOCABULARY)
    before = path.read_bytes()
    with pytest.raises(
        ConfigError,
        match=f"holds {len(counts)} .*but {len(counts) - 1} are kept.*raise --spec-ngram",
    ):
        dynamic(path, max_ngrams=len(counts) - 1)
    assert path.read_bytes() == before
    assert dynamic(path, max_ngrams=len(counts)).describe()["dynamic_ngrams"] == len(counts)
    # is only read, and held whole
    options = NgramCacheSpeculator.Options(lookup_cache_static=str(path), max_ngrams=1)
    assert NgramCacheSpeculator(options, VOCABULARY).describe()["static_ngrams"] == len(counts)


def test_a_dynamic_file_of_unknown_vocabulary_is_not_certified(tmp_path: Path) -> None:
    path = tmp_path / "llama-cpp"
    path.write_bytes(struct.pack("=7i", 1, -1, -1, -1, 1, 2, 5))
    speculator = dynamic(path)
    generate(speculator, [1, 2, 3])
    speculator.close()
    other = VocabularyId(VOCABULARY.size, b"another one" + bytes(5))
    assert NgramCounts.load(path, other).after(pack([1])) == {2: 6}


def test_a_server_with_keys_says_that_the_dynamic_file_learns_nothing(tmp_path, caplog) -> None:
    path = tmp_path / "dynamic"
    speculator = dynamic(path)
    for _ in range(3):
        generate(speculator, [1, 2, 3], "alice")
    assert caplog.text.count("dynamic learns from requests without an API key only") == 1
    described = speculator.describe()
    assert (described["dynamic_texts_learned"], described["dynamic_file_is_written"]) == (0, False)
    generate(speculator, [1, 2, 3])
    described = speculator.describe()
    assert (described["dynamic_texts_learned"], described["dynamic_file_is_written"]) == (1, True)
    assert described["dynamic_learns"] == "requests without an API key only"


def test_no_warning_about_keys_without_a_dynamic_file(caplog: pytest.LogCaptureFixture) -> None:
    generate(NgramCacheSpeculator(), [1, 2, 3], "alice")
    assert caplog.text == ""


def test_a_file_that_cannot_be_written_does_not_stop_the_server(tmp_path, caplog) -> None:
    (tmp_path / "gone").mkdir()
    speculator = dynamic(tmp_path / "gone" / "dynamic")
    (tmp_path / "gone").rmdir()
    generate(speculator, [1, 2, 3])
    with caplog.at_level(logging.ERROR):
        speculator.close()
    assert "is not written any more" in caplog.text


@pytest.mark.parametrize("field", ["lookup_cache_static", "lookup_cache_dynamic"])
@pytest.mark.parametrize(
    ("tokens", "digest", "says"),
    [
        ([1, 200, 3], VOCABULARY.digest, "holds token 200"),
        ([1, 2, 3], b"another one" + bytes(5), "was made with another vocabulary"),
    ],
)
def test_files_of_another_vocabulary_are_refused_by_name(tmp_path, field, tokens, digest, says):
    counts = NgramCounts()
    counts.learn(tokens, 0)
    counts.save(tmp_path / "file.bin", VocabularyId(VOCABULARY.size, digest))
    options = NgramCacheSpeculator.Options(**{field: str(tmp_path / "file.bin")})
    with pytest.raises(ModelError, match=rf"file\.bin {says}"):
        NgramCacheSpeculator(options, VOCABULARY)


def test_what_another_process_wrote_is_not_overwritten(tmp_path, caplog, monkeypatch) -> None:
    monkeypatch.setattr(ngram_cache, "SAVE_TOKENS", 1)
    path = tmp_path / "dynamic"
    first, second = dynamic(path), dynamic(path)
    for speculator, tokens in ((first, [1, 2, 3]), (second, [4, 5, 6]), (first, [7, 8, 9])):
        with caplog.at_level(logging.ERROR):
            generate(speculator, tokens)
    assert "dynamic is not written any more: another process wrote it" in caplog.text
    assert not second.describe()["dynamic_file_is_written"]
    saved = {
        token
        for ngram, counts in items_of(NgramCounts.load(path, VOCABULARY)).items()
        for token in (*ngram, *counts)
    }
    assert saved == {0, 1, 2, 3, 7, 8, 9}


def test_files_that_can_have_no_effect_are_refused(tmp_path, monkeypatch) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigError, match="empty is empty; leave it out"):
        NgramCacheSpeculator(
            NgramCacheSpeculator.Options(lookup_cache_static=str(tmp_path / "empty")), VOCABULARY
        )
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=r"cannot be written.*--lookup-cache-static"):
        dynamic(tmp_path / "x")
