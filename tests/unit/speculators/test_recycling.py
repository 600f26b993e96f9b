"""Token recycling: likely successors agree with averaging whole distributions, and are chained."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.unit.speculators.text_support import propose, tokens_of

from headstart.speculators import recycling
from headstart.speculators.ngram_mod import MAX_COUNT, NgramTable, updated
from headstart.speculators.recycling import NextTokenTable, RecyclingSpeculator
from headstart.structures.rolling import key_of, keys_of, leaving_factor, salt_of, slide
from headstart.types import Decoded

VOCAB_SIZE = 12
MAX_ROWS = 15


class Twin:
    """A distribution over the whole vocabulary per token; zero where a successor is not kept."""

    def __init__(self, width: int, max_tokens: int) -> None:
        self.width = width
        self.max_tokens = max_tokens
        self.match_scores: dict[int, NDArray[np.float64]] = {}
        self.num_rows: dict[int, int] = {}

    def learn(self, token: int, logits: NDArray[np.float32]) -> None:
        new = self.most(np.exp(logits.astype(np.float64)))
        new /= new.sum()
        if token in self.match_scores:
            self.match_scores[token] = self.most(0.5 * new + 0.5 * self.match_scores[token])
        else:
            if len(self.match_scores) == self.max_tokens:
                del self.match_scores[next(iter(self.match_scores))]
            self.match_scores[token], self.num_rows[token] = new, 0
        self.num_rows[token] = min(MAX_ROWS, self.num_rows[token] + 1)

    def most(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The largest `width` of them, the others as zeros."""
        return np.where(values >= np.sort(values)[-self.width], values, 0.0)

    def likeliest(self, token: int) -> tuple[int, float] | None:
        if token not in self.match_scores:
            return None
        best, rows = int(self.match_scores[token].argmax()), self.num_rows[token]
        return best, self.match_scores[token][best] * rows / (rows + 1)


@given(
    st.lists(st.integers(0, 4), max_size=40),
    st.sampled_from([2, 3, 8]),
    st.sampled_from([3, 100]),
    st.integers(0, 999),
)
def test_the_likeliest_successor_is_that_of_the_averaged_distributions(
    tokens: list[int], width: int, max_tokens: int, seed: int
) -> None:
    random = Random(seed)
    next_tokens, twin = NextTokenTable(width), Twin(width, max_tokens)
    with patch.object(recycling, "_MAX_TOKENS", max_tokens):
        for token in tokens:
            logits = np.array([random.gauss(0, 2) for _ in range(VOCAB_SIZE)], np.float32)
            next_tokens.learn(token, logits)
            twin.learn(token, logits)
            assert len(next_tokens) == len(twin.match_scores)
            for known in range(5):
                found, expected = next_tokens.likeliest(known), twin.likeliest(known)
                assert (found is None) == (expected is None)
                if found is not None and expected is not None:
                    assert found[0] == expected[0]
                    assert found[1] == pytest.approx(expected[1])


def test_of_equally_likely_successors_the_newest_is_kept() -> None:
    """The newest row counts half: with room for one successor it weighs as much as all rows before
    it.
    """
    next_tokens = NextTokenTable(1)
    for best in (1, 5):
        next_tokens.learn(0, np.eye(VOCAB_SIZE, dtype=np.float32)[best])
    found = next_tokens.likeliest(0)
    assert found is not None
    assert found[0] == 5


def test_it_chains_what_the_model_expected_of_this_namespace() -> None:
    speculator = RecyclingSpeculator(RecyclingSpeculator.Options(min_share=0.0))
    speculator.begin(0, [1], "alice")
    assert propose(speculator, [1]).reason == "no likely successor"
    rows = 9.0 * np.eye(4, dtype=np.float32)[[2, 3, 1]]  # what follows 1, 2 and 3
    numbers = np.arange(3, dtype=np.int32)
    speculator.observe(Decoded(0 * numbers, numbers, numbers + 1, rows))
    for namespace, expected in (("bob", []), ("alice", [2, 3, 1, 2, 3])):
        speculator.end(0)
        speculator.begin(0, [1], namespace)
        assert tokens_of(speculator, [1], 5) == expected


N = 3


def learn_one_by_one(table: NgramTable, text: list[int], salt: int) -> None:
    for end in range(N, len(text)):
        table.learn_next(key_of(text[end - N : end]), text[end], salt)


def test_learning_a_text_at_once_equals_learning_it_token_by_token_also_when_slots_collide() -> (
    None
):
    rng = np.random.default_rng(1)
    at_once, one_by_one = NgramTable(N, 10), NgramTable(N, 10)
    for size in (2, 3, 4, 100, 3000, 3000, 3000):
        text, salt = rng.integers(0, 8, size).tolist(), salt_of("tenant" * (size % 2))
        at_once.learn(text, salt)
        learn_one_by_one(one_by_one, text, salt)
    assert np.array_equal(at_once._entries, one_by_one._entries)


def test_a_full_table_gives_almost_no_false_hits() -> None:
    rng = np.random.default_rng(2)
    table = NgramTable(N, 10)
    table.learn(rng.integers(0, 100_000, 20_000).tolist(), 0)
    assert np.count_nonzero(table._entries) > 1000
    unknown = rng.integers(100_000, 200_000, (20_000, N)).tolist()
    assert sum(bool(table.follow(key_of(window), window, 0, 1)[0]) for window in unknown) <= 1


def test_an_entry_that_is_used_survives_strangers() -> None:
    entry = 0
    for _ in range(MAX_COUNT):
        entry = updated(entry, token=7, fingerprint=1)
    for _ in range(5):
        entry = updated(entry, token=9, fingerprint=2)  # wants the same place
        entry = updated(entry, token=7, fingerprint=1)
    assert entry >> 32 == 7


def test_a_stale_entry_gives_way() -> None:
    entry = 0
    for _ in range(100):
        entry = updated(entry, token=7, fingerprint=1)
    for _ in range(5):
        entry = updated(entry, token=8, fingerprint=1)
    assert entry >> 32 == 8


@given(st.lists(st.integers(-1, 2**31 - 1), min_size=N + 1, max_size=30))
def test_the_rolling_hash_equals_the_hash_of_each_window(text: list[int]) -> None:
    keys = [key_of(text[start : start + N]) for start in range(len(text) - N + 1)]
    assert keys_of(np.array(text, np.int32), N).tolist() == keys
    for start in range(len(text) - N):
        assert (
            slide(keys[start], text[start], text[start + N], leaving_factor(N)) == keys[start + 1]
        )
