"""N-gram counts agree with counting by hand, and their file is llama.cpp's."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.speculators.text_support import items_of, unpack

from headstart.speculators.ngram_cache_counts import PIECE, CountedHistory, NgramCounts, pack
from headstart.structures.vocabulary_id import VocabularyId
from headstart.types.errors import ModelError

VOCABULARY = VocabularyId(50, bytes(range(16)))


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
def test_the_clearest_token_is_the_one_with_the_largest_weighed_count(
    text: list[int], weights: dict[int, int]
) -> None:
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


@given(text=st.lists(st.integers(0, 9), max_size=60))
def test_a_saved_file_loads_as_it_was(tmp_path_factory, text: list[int]) -> None:
    path = tmp_path_factory.mktemp("lookup") / "cache.bin"
    counts = NgramCounts()
    counts.learn(text, 0)
    counts.save(path, VOCABULARY)
    assert items_of(NgramCounts.load(path, VOCABULARY)) == items_of(counts)
    assert [file.name for file in path.parent.iterdir()] == ["cache.bin"]


def test_the_file_has_the_layout_of_llama_cpp(tmp_path: Path) -> None:
    counts = NgramCounts()
    counts.learn([5, 6, 7], start=2)
    counts.save(tmp_path / "cache", VOCABULARY)
    whose = (-1, -1, -1, -1, 1, VOCABULARY.mark, 1)
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
        NgramCounts.load(path, VOCABULARY)
    assert "mine.bin" in str(caught.value)


def test_a_file_of_odd_size_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "odd").write_bytes(b"12345")
    with pytest.raises(ModelError, match="5 bytes"):
        NgramCounts.load(tmp_path / "odd", VOCABULARY)
    with pytest.raises(ModelError, match=r"absent.*No such file"):
        NgramCounts.load(tmp_path / "absent", VOCABULARY)


@given(text=st.lists(st.integers(0, 9), min_size=2, max_size=60), is_marked=st.booleans())
def test_only_what_is_known_to_be_of_this_vocabulary_is_marked(
    tmp_path_factory: pytest.TempPathFactory, text: list[int], is_marked: bool
) -> None:
    """A file of llama.cpp may be another model's; our mark would certify it for ever."""
    path = tmp_path_factory.mktemp("lookup") / "cache.bin"
    counts = NgramCounts()
    counts.learn(text, 0)
    counts.is_marked = is_marked
    counts.save(path, VOCABULARY)
    for _ in range(2):
        loaded = NgramCounts.load(path, VOCABULARY)
        assert loaded.is_marked is is_marked
        loaded.learn([1, 2, 3], 0)
        loaded.save(path, VOCABULARY)


def test_an_empty_file_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert NgramCounts.load(tmp_path / "empty", VOCABULARY).is_marked


@given(st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=12), st.integers(1, 30))
def test_those_that_are_kept_are_the_commonest_of_them_the_newest(
    texts: list[list[int]], limit: int
) -> None:
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
