"""The suffix index agrees with a search through the whole text."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headstart.structures import suffix_index
from headstart.structures.corpus import SuffixCorpus
from headstart.structures.prefix import common_prefix_length
from headstart.structures.suffix_index import SEPARATOR, Place, SuffixIndex

SIZES = (2, 4)
MAX_MATCH = 6
ALL = 10**9

# Ids whose bytes are those of others, shifted. A run is repeated so that many tokens come at once.
tokens = st.lists(st.sampled_from([0, 1, 256]), max_size=12)
bulks = st.sampled_from([1, 6, 512])  # tokens that are put in chains together
runs = st.builds(lambda run, times: run * times, tokens, st.sampled_from([1, 1, 1, 40]))
pieces = st.lists(runs, max_size=12)


def brute_places(
    text: list[int],
    tail: list[int] | None = None,
    sizes: Sequence[int] = SIZES,
    max_match: int = MAX_MATCH,
) -> list[Place]:
    """What `places` must find, or `find` for the end of another text: O(n^2) and obvious."""
    tail = text if tail is None else tail
    for n in sorted(sizes, reverse=True):
        found = []
        for position in range(len(text) - 1, n - 1, -1):
            if (
                len(tail) >= n
                and text[position - n : position] == tail[-n:]
                and text[position] != SEPARATOR
            ):
                length, most = n, min(max_match, position, len(tail))
                while length < most and text[position - length - 1] == tail[-length - 1]:
                    length += 1
                found.append((length, position))
        if found:
            return found
    return []


@patch.object(suffix_index, "_MOST_STRANGERS", ALL)  # a lookup may miss places in a full slot
@patch.object(suffix_index, "SLICE", ALL)
@given(pieces, bulks)
def test_places_agree_with_a_full_search_after_every_piece(pieces: list[list[int]], bulk: int):
    with patch.object(suffix_index, "_BULK", bulk):
        text = pieces[0] if pieces else []
        index = SuffixIndex(SIZES, MAX_MATCH, text=text)
        for piece in pieces[1:]:
            text = text + piece
            index.extend(piece)
            assert len(index) - index.num_linked < bulk  # few are searched one by one
            assert index.tokens.tolist() == text
            assert index.find(index.tokens, ALL) == brute_places(text)
            assert index.find(index.tokens, 2) == brute_places(text)[:2]


@given(pieces, runs, bulks, st.integers(0, 40))
def test_another_text_is_found_wherever_it_stands(texts, other, bulk, floor) -> None:
    """Tails that are not the index's own, texts divided by separators, a floor that rose."""
    index, query = SuffixIndex(SIZES, MAX_MATCH), SuffixIndex(SIZES, MAX_MATCH)
    query.extend(other)
    with patch.object(suffix_index, "_BULK", bulk):
        for text in texts:
            index.extend([*text, SEPARATOR])
    index.floor = min(floor, len(index))
    held = index.tokens.tolist()[index.floor :]
    expected = [(length, position + index.floor) for length, position in brute_places(held, other)]
    assert index.find(query.tokens, ALL) == expected


def test_a_step_clears_a_piece_of_large_tables_and_nothing_is_looked_up_in_them_before(monkeypatch):
    """Issue 28: the engine's loop waits while memory is used for the first time."""
    go_on, cleared = suffix_index._Chains.go_on, [0]

    def counted(chains: suffix_index._Chains, num_slots: int) -> int:
        cleared[-1] += (number := go_on(chains, num_slots))
        return number

    monkeypatch.setattr(suffix_index._Chains, "go_on", counted)
    monkeypatch.setattr(suffix_index, "_CLEARED", 4000)
    monkeypatch.setattr(np, "empty", lambda size, dtype: np.full(size, 7, dtype))
    text = np.random.default_rng(0).integers(0, 250, 9000).tolist()
    corpus = SuffixCorpus(100_000)
    corpus.add(text)
    index = SuffixIndex((2, 4, 8), text=text)
    while corpus.unfinished or index.num_linked < len(index):
        cleared.append(0)
        corpus.go_on()
        assert cleared[-1] <= 4000
        index.extend(text[:1])
        assert cleared[-1] <= 8000
        for one in (index, *corpus.indexes("")):
            found = one.find(array("i", text[1000:1008]), 50)
            assert 1008 in [position for _, position in found]
    assert sum(cleared) > 6 * 16_384


def test_a_lookup_passes_over_few_places_where_only_bytes_agree() -> None:
    """The engine's loop waits for it, however many tokens are in no chain yet."""
    index = SuffixIndex((2,), MAX_MATCH, text=[1, 1, 7, *[256] * 50])
    tail = array("i", [1, 1])
    assert index.find(tail, 3) == []
    with patch.object(suffix_index, "_MOST_STRANGERS", ALL):
        assert index.find(tail, 3) == [(2, 2)]


def test_separators_are_neither_copied_nor_crossed() -> None:
    index = SuffixIndex(SIZES, MAX_MATCH)
    index.extend([5, 6, SEPARATOR, 7, 8, 9, SEPARATOR])
    assert index.find(array("i", [5, 6]), ALL) == []
    assert index.copy(4, 10) == [8, 9]


def test_a_copy_that_reaches_the_end_goes_round_the_loop() -> None:
    index = SuffixIndex(SIZES, MAX_MATCH)
    index.extend([1, 2, 3, 1, 2, 3])
    assert index.copy(3, 8) == [1, 2, 3, 1, 2, 3, 1, 2]


@given(tokens, tokens, st.integers(0, 5000))
def test_common_prefix_counts_equal_tokens(one: list[int], other: list[int], start: int) -> None:
    expected, start = 0, start % 3 * start  # often 0
    while expected < min(len(one), len(other)) and one[expected] == other[expected]:
        expected += 1
    one, other, expected = [7] * start + one, [7] * start + other, start + expected
    assert common_prefix_length(one, other) == expected
    assert common_prefix_length(one, other, start) == expected
    assert common_prefix_length(array("i", one), array("i", other)) == expected
