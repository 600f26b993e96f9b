"""The shared n-gram table agrees with a dictionary of what was confirmed how often."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headstart.speculators.ngram_mod_table import MAX_COUNT, NgramTable, updated
from headstart.structures.rolling import key_of, keys_of, leaving_factor, salt_of, slide

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
