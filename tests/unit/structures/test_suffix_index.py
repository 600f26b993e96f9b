"""The suffix index agrees with a search through the whole text."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.structures.histories import Histories
from headstart.structures.suffix_index import SEPARATOR, Place, SuffixIndex, common_prefix

SIZES = (2, 4)
MAX_MATCH = 6
ALL = 10**9

tokens = st.lists(st.integers(0, 2), max_size=12)
# A run is repeated so that whole-prompt appends go the numpy way.
runs = st.builds(lambda run, times: run * times, tokens, st.sampled_from([1, 1, 1, 40]))
operations = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), runs),
        st.tuples(st.just("truncate"), st.integers(0, 60)),
        st.tuples(st.just("follow"), st.tuples(st.integers(0, 30), runs)),
    ),
    max_size=12,
)


def brute_places(text: list[int]) -> list[Place]:
    """What `places` must find: O(n^2) and obvious."""
    for n in sorted(SIZES, reverse=True):
        found = []
        for position in range(len(text) - 1, n - 1, -1):
            if text[position - n : position] == text[-n:]:
                length = n
                while length < min(MAX_MATCH, position) and text[position - length - 1] == text[len(text) - length - 1]:
                    length += 1
                found.append(Place(length, position))
        if found:
            return found
    return []


@given(operations)
def test_places_agree_with_a_full_search_after_any_history(steps: list[tuple[str, object]]) -> None:
    index = SuffixIndex(SIZES, MAX_MATCH)
    text: list[int] = []
    for name, value in steps:
        if name == "extend":
            text = text + value
            index.extend(value)
        elif name == "truncate":
            text = text[: max(0, len(text) - value)]
            index.truncate(len(text))
        else:
            drop, run = value
            text = text[: max(0, len(text) - drop)] + run
            index.follow(text, is_new=True)
        assert index.tokens.tolist() == text
        assert index.places(ALL) == brute_places(text)
        assert index.keys == index_of(text).keys


def index_of(text: list[int]) -> SuffixIndex:
    """The same text, token by token."""
    index = SuffixIndex(SIZES, MAX_MATCH)
    for token in text:
        index.extend([token])
    return index


@given(st.lists(st.integers(0, 3), max_size=400))
def test_appending_at_once_equals_appending_one_by_one(text: list[int]) -> None:
    at_once = SuffixIndex(SIZES, MAX_MATCH)
    at_once.extend(text)
    one_by_one = index_of(text)
    assert at_once.places(ALL) == one_by_one.places(ALL)
    assert at_once.keys == one_by_one.keys


def test_truncating_undoes_extending_across_a_table_growth() -> None:
    index = SuffixIndex(SIZES, MAX_MATCH)
    text = [i * i % 7 for i in range(3000)]
    index.extend(text)
    for length in (2999, 2000, 1200, 300, 5, 0):
        index.truncate(length)
        assert index.places(ALL) == brute_places(text[:length])


class Frozen(SuffixIndex):
    def truncate(self, length: int) -> None:
        pytest.fail("the history only grew")


def test_a_history_that_grew_is_followed_without_comparing_all_of_it() -> None:
    index = Frozen(SIZES, MAX_MATCH)
    index.extend([1, 2, 3, 4])
    index.follow([1, 2, 3, 4, 5])
    assert index.tokens.tolist() == [1, 2, 3, 4, 5]


def test_a_shorter_history_is_followed() -> None:
    index = SuffixIndex(SIZES, MAX_MATCH)
    index.extend([1, 2, 3, 1, 2, 9, 9])
    index.follow([1, 2, 3, 1, 2])
    assert index.places(ALL) == [Place(2, 2)]


def test_separators_are_neither_copied_nor_crossed() -> None:
    index = SuffixIndex(SIZES, MAX_MATCH)
    index.extend([5, 6, SEPARATOR, 7, 8, 9, SEPARATOR])
    tail = array("i", [5, 6])
    keys = index_of([5, 6]).keys
    assert index.find(tail, keys, ALL) == []
    assert index.copy(4, 10) == [8, 9]


def test_a_copy_that_reaches_the_end_goes_round_the_loop() -> None:
    index = SuffixIndex(SIZES, MAX_MATCH)
    index.extend([1, 2, 3, 1, 2, 3])
    assert index.copy(3, 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_places_below_the_floor_are_forgotten() -> None:
    index = SuffixIndex(SIZES, MAX_MATCH)
    index.extend([1, 2, 3, 1, 2, 4, 1, 2])
    assert [place.position for place in index.places(ALL)] == [5, 2]
    index.floor = 3
    assert index.places(ALL) == [Place(2, 5)]


@given(tokens, tokens)
def test_common_prefix_counts_equal_tokens(one: list[int], other: list[int]) -> None:
    expected = 0
    while expected < min(len(one), len(other)) and one[expected] == other[expected]:
        expected += 1
    assert common_prefix(array("i", one), other) == expected


def test_a_sequence_id_used_again_starts_anew() -> None:
    histories = Histories(SIZES)
    histories.begin(3, [1, 2, 1, 2])
    histories.end(3)
    assert histories.at(3, [7, 8]).tokens.tolist() == [7, 8]
