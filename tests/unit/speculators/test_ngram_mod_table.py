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


@given(st.lists(st.integers(0, 3), max_size=200), st.lists(st.integers(0, 3), max_size=200))
def test_learning_a_text_at_once_equals_learning_it_token_by_token(
    first: list[int], second: list[int]
) -> None:
    at_once, one_by_one = NgramTable(N, 10), NgramTable(N, 10)
    for text, salt in ((first, 0), (second, salt_of("tenant"))):
        at_once.learn(text, salt)
        learn_one_by_one(one_by_one, text, salt)
    assert np.array_equal(at_once._entries, one_by_one._entries)


def test_learning_at_once_equals_one_by_one_when_slots_collide() -> None:
    rng = np.random.default_rng(1)
    at_once, one_by_one = NgramTable(N, 10), NgramTable(N, 10)
    for _ in range(6):
        text = rng.integers(0, 8, 3000).tolist()
        at_once.learn(text, 0)
        learn_one_by_one(one_by_one, text, 0)
    assert np.array_equal(at_once._entries, one_by_one._entries)


@given(st.lists(st.integers(0, 2), max_size=150))
def test_the_walk_follows_what_was_confirmed_most_recently_and_often(text: list[int]) -> None:
    table = NgramTable(N, 20)  # roomy: no two of the few n-grams share a slot
    table.learn(text, 0)
    twin: dict[tuple[int, ...], tuple[int, int]] = {}
    for end in range(N, len(text)):
        ngram, token = tuple(text[end - N : end]), text[end]
        known, count = twin.get(ngram, (token, 0))
        if known == token:
            twin[ngram] = (token, min(count + 1, MAX_COUNT))
        else:
            twin[ngram] = (known, count // 2) if count > 1 else (token, 1)
    for ngram, (token, count) in twin.items():
        tokens, counts = table.follow(key_of(ngram), list(ngram), 0, 1)
        assert (tokens, counts) == ([token], [count])


def test_a_full_table_gives_almost_no_false_hits() -> None:
    rng = np.random.default_rng(2)
    table = NgramTable(N, 10)
    table.learn(rng.integers(0, 100_000, 20_000).tolist(), 0)
    assert np.count_nonzero(table._entries) > 1000
    unknown = rng.integers(100_000, 200_000, (20_000, N)).tolist()
    assert sum(bool(table.follow(key_of(window), window, 0, 1)[0]) for window in unknown) <= 1


def test_namespaces_do_not_see_each_other() -> None:
    table = NgramTable(N, 12)
    table.learn([1, 2, 3, 4], salt_of("one"))
    window = [1, 2, 3]
    assert table.follow(key_of(window), window, salt_of("one"), 1)[0] == [4]
    assert table.follow(key_of(window), window, salt_of("other"), 1)[0] == []
    assert table.follow(key_of(window), window, salt_of(""), 1)[0] == []


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
