"""The three levels of ngram-cache, its counts, and its files, which are llama.cpp's."""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.speculators.text_support import accept, items_of, propose, tokens_of, unpack

from headstart.speculators.ngram_cache import NgramCacheSpeculator
from headstart.speculators.ngram_cache_counts import PIECE, CountedHistory, NgramCounts, pack
from headstart.testing import ByteVocab
from headstart.types.errors import ModelError


def cached(**options: Path | int) -> NgramCacheSpeculator:
    words = {name: str(one) if isinstance(one, Path) else one for name, one in options.items()}
    return NgramCacheSpeculator(NgramCacheSpeculator.Options(**words), ByteVocab())


def write(path: Path, *texts: list[int]) -> None:
    """A file as llama.cpp makes it of these texts."""
    counts = NgramCounts()
    for text in texts:
        counts.learn(text, 0)
    numbers = array("i")
    for ngram, successors in items_of(counts).items():
        numbers.extend([*ngram, *[-1] * (4 - len(ngram)), len(successors)])
        for pair in successors.items():
            numbers.extend(pair)
    path.write_bytes(numbers.tobytes())


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
    write(tmp_path / "static", [1, 2, 8, 1, 2, 8])
    speculator = cached(lookup_cache_static=tmp_path / "static")
    assert tokens_of(speculator, [1, 2], 1) == [8]
    assert tokens_of(speculator, [0, 1, 2, 7, 5, 1, 2, 8, 6, 1, 2], 1, seq_id=1) == [8]


def test_a_dynamic_file_loses_its_rarest_ngrams_beyond_the_bound_and_a_static_one_none(tmp_path):
    write(tmp_path / "file", [*range(50), 1, 2])
    dynamic = cached(lookup_cache_dynamic=tmp_path / "file", max_ngrams=60).describe()
    assert 50 <= dynamic["dynamic_ngrams"] <= 60
    static = cached(lookup_cache_static=tmp_path / "file", max_ngrams=60).describe()
    assert static["static_ngrams"] > 150


def test_the_dynamic_level_begins_with_the_file_and_learns_without_writing(tmp_path) -> None:
    path = tmp_path / "file"
    write(path, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    before, speculator = path.read_bytes(), cached(lookup_cache_dynamic=path)
    assert tokens_of(speculator, [1, 2, 3, 4]) == [5]
    for _ in range(2):
        generate(speculator, [6, 7, 8, 9])
    assert tokens_of(speculator, [6, 7, 8], seq_id=1) == [9]
    speculator.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("field", ["lookup_cache_static", "lookup_cache_dynamic"])
def test_files_of_a_larger_vocabulary_are_refused_by_name(tmp_path, field) -> None:
    write(tmp_path / "file.bin", [1, 300, 3])
    with pytest.raises(ModelError, match=r"file\.bin holds token 300 but .* has 258"):
        cached(**{field: tmp_path / "file.bin"})


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


@given(text=st.lists(st.integers(0, 9), min_size=2, max_size=60))
def test_a_file_is_read_as_it_was_counted(tmp_path_factory, text: list[int]) -> None:
    path, counts = tmp_path_factory.mktemp("lookup") / "cache.bin", NgramCounts()
    write(path, text)
    counts.learn(text, 0)
    assert items_of(NgramCounts.load(path, 10)) == items_of(counts)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((1, -1, -1, -1, 1, 99, 1), "token 99 but the model's vocabulary has 50"),
        ((60, -1, -1, -1, 1, 9, 1), "token 60 but"),
        ((1, -1, -1, -1, 1, -5, 1), "token -5 but"),
        ((1, -1, -1, -1, 2, 9, 1), "claims 2 successors"),
        ((1, -1, -1, -1, 0), "claims 0 successors"),
        ((1, -1, -1, -1, -3, 9, 1), "claims -3 successors"),
        ((-1, -1, -1, -1, 1, 9, 1), "is not an n-gram"),
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
        NgramCounts.load(path, 50)
    assert "mine.bin" in str(caught.value)


@pytest.mark.parametrize("size", [0, 5])
def test_a_file_of_odd_size_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "odd").write_bytes(bytes(size))
    with pytest.raises(ModelError, match=f"{size} bytes"):
        NgramCounts.load(tmp_path / "odd", 50)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent.*No such file"):
        NgramCounts.load(tmp_path / "absent", 50)


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
