"""The three levels of ngram-cache, its counts, and its files, which are llama.cpp's."""

from __future__ import annotations

import logging
import os
import struct
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.speculators.text_support import (
    VOCABULARY,
    accept,
    items_of,
    propose,
    tokens_of,
    unpack,
)

from headstart.speculators import ngram_cache
from headstart.speculators.ngram_cache import NgramCacheSpeculator
from headstart.speculators.ngram_cache_counts import PIECE, CountedHistory, NgramCounts, pack
from headstart.structures.suffix_index import SEPARATOR
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


SMALL = VocabularyId(50, bytes(range(16)))


def count_by_hand(text: list[int]) -> dict[tuple[int, ...], Counter[int]]:
    counts: dict[tuple[int, ...], Counter[int]] = {}
    for position in range(len(text)):
        for n in range(1, min(4, position) + 1):
            counts.setdefault(tuple(text[position - n : position]), Counter())[text[position]] += 1
    return counts


@given(st.lists(st.lists(st.integers(0, 3), max_size=9), max_size=8))
def test_counting_in_pieces_equals_counting_the_whole(pieces: list[list[int]]) -> None:
    history = CountedHistory([])
    for piece in pieces:
        history.extend(piece)
    whole = [token for piece in pieces for token in piece]
    assert items_of(history.counts) == count_by_hand(whole)


def test_a_long_prompt_is_counted_in_pieces_while_the_text_grows() -> None:
    """All slots wait for it: 10,000 tokens at once took as long as some steps."""
    text = [i * i % 40 for i in range(10 * PIECE)]
    history, num_before = CountedHistory(text), 0
    while (num := sum(sum(one.values()) for one in items_of(history.counts).values())) > num_before:
        assert num - num_before <= 4 * PIECE
        num_before = num
        history.extend([])
    assert items_of(history.counts) == count_by_hand(text)


def test_the_end_of_a_long_prompt_and_the_answer_are_counted_first() -> None:
    """What is drafted now mostly continues them."""
    last = 8 * PIECE
    history = CountedHistory(range(last + 1))
    assert history.counts.after(pack([last - PIECE + 1])) == {last - PIECE + 2: 1}
    history.extend([7])
    assert history.counts.after(pack([last])) == {7: 1}


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=80),
    st.dictionaries(st.integers(0, 4), st.integers(1, 3)),
)
def test_the_clearest_token_is_the_one_with_the_largest_weighed_count(text, weights) -> None:
    counts = NgramCounts()
    counts.learn(text, 0)
    found = counts.clearest(pack(text[-1:]), 1, [(1, 1, 0)], weights)
    by_hand = count_by_hand(text).get(tuple(text[-1:]))
    assert (found is None) == (by_hand is None)
    if found and by_hand:

        def weighed(token: int) -> int:
            return by_hand[token] * (100 * weights.get(token, 0) or 1)

        assert weighed(found[0]) == max(map(weighed, by_hand))
        assert found[1] == pytest.approx(by_hand[found[0]] / (by_hand.total() + 1))


@given(st.lists(st.integers(0, 2**24 - 3), min_size=1, max_size=4))
def test_packing_is_reversible(ngram: list[int]) -> None:
    assert unpack(pack(ngram)) == tuple(ngram)


@given(text=st.lists(st.sampled_from([*range(10), SEPARATOR]), max_size=60))
def test_a_saved_file_loads_as_it_was(tmp_path_factory, text: list[int]) -> None:
    path = tmp_path_factory.mktemp("lookup") / "cache.bin"
    counts = NgramCounts()
    counts.learn(text, 0)
    counts.save(path, SMALL)
    assert items_of(NgramCounts.load(path, SMALL)) == items_of(counts)
    assert [file.name for file in path.parent.iterdir()] == ["cache.bin"]


def test_the_file_has_the_layout_of_llama_cpp(tmp_path: Path) -> None:
    counts = NgramCounts()
    counts.learn([5, 6, 7], start=2)
    counts.save(tmp_path / "cache", SMALL)
    whose = (-1, -1, -1, -1, 1, SMALL.mark, 1)
    one_token = (6, -1, -1, -1, 1, 7, 1)
    two_tokens = (5, 6, -1, -1, 1, 7, 1)
    assert (tmp_path / "cache").read_bytes() == struct.pack("=21i", *whose, *one_token, *two_tokens)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((1, -1, -1, -1, 1, 99, 1), "token 99 but the model's vocabulary has 50"),
        ((60, -1, -1, -1, 1, 9, 1), "token 60 but"),
        ((1, -1, -1, -1, 1, -5, 1), "token -5 but"),
        ((1, -1, -1, -1, 2, 9, 1), "claims 2 successors"),
        ((1, -1, -1, -1, 0), "claims 0 successors"),
        ((1, -1, -1, -1, -3, 9, 1), "claims -3 successors"),
        ((-1, -1, -1, -1, 1, 9, 1), "another vocabulary"),
        ((-1, 5, -1, -1, 1, 9, 1), "is not an n-gram"),
        ((1, -1, 2, -1, 1, 9, 1), "is not an n-gram"),
        ((1, -1, -1, -1, 1, 9, 0), "a count is 0"),
        ((1, -1, -1), "cut off"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_by_name(tmp_path, numbers, message) -> None:
    path = tmp_path / "mine.bin"
    path.write_bytes(struct.pack(f"={len(numbers)}i", *numbers))
    with pytest.raises(ModelError, match=message) as caught:
        NgramCounts.load(path, SMALL)
    assert "mine.bin" in str(caught.value)


def test_a_file_of_odd_size_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "odd").write_bytes(b"12345")
    with pytest.raises(ModelError, match="5 bytes"):
        NgramCounts.load(tmp_path / "odd", SMALL)
    with pytest.raises(ModelError, match=r"absent.*No such file"):
        NgramCounts.load(tmp_path / "absent", SMALL)


@given(text=st.lists(st.integers(0, 9), min_size=2, max_size=60), is_marked=st.booleans())
def test_only_what_is_known_to_be_of_this_vocabulary_is_marked(tmp_path_factory, text, is_marked):
    """A file of llama.cpp may be another model's; our mark would certify it for ever."""
    path = tmp_path_factory.mktemp("lookup") / "cache.bin"
    counts = NgramCounts()
    counts.learn(text, 0)
    counts.is_marked = is_marked
    counts.save(path, SMALL)
    for _ in range(2):
        loaded = NgramCounts.load(path, SMALL)
        assert loaded.is_marked is is_marked
        loaded.learn([1, 2, 3], 0)
        loaded.save(path, SMALL)


def test_an_empty_file_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert NgramCounts.load(tmp_path / "empty", SMALL).is_marked


@given(st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=12), st.integers(1, 30))
def test_those_that_are_kept_are_the_commonest_of_them_the_newest(texts, limit) -> None:
    counts, twin = NgramCounts(limit), dict[tuple[int, ...], Counter[int]]()
    for text in texts:
        counts.learn(text, 0)
        for ngram, added in count_by_hand(text).items():
            twin.setdefault(ngram, Counter()).update(added)
        if len(twin) > limit:
            rarest = sorted(twin, key=lambda ngram: twin[ngram].total())
            for ngram in rarest[: len(twin) - limit + limit // 8]:
                del twin[ngram]
        assert items_of(counts) == twin
