"""Prefixes in blocks against a list of texts."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.gateway.balancer import prefixes
from headstart.gateway.balancer.prefixes import MAX_BYTES, Prefixes, block_hashes

BLOCK = 2
TEXTS = st.lists(st.binary(max_size=12).map(lambda b: bytes(one % 3 for one in b)), max_size=30)


@pytest.fixture(autouse=True, scope="module")
def _small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "BLOCK_BYTES", BLOCK)
        yield


def longest(texts: list[bytes], text: bytes) -> int:
    """The longest common beginning with any of the texts, in whole blocks."""

    def shared(one: bytes) -> int:
        same = takewhile(lambda pair: pair[0] == pair[1], zip(one, text, strict=False))
        return len(list(same)) // BLOCK * BLOCK

    return max(map(shared, texts), default=0)


@given(TEXTS, TEXTS)
def test_a_match_is_the_longest_common_beginning_with_any_text(added, asked):
    known = Prefixes(2**20)
    for text in added:
        known.add(block_hashes(text))
    found = [known.match(block_hashes(text)) for text in asked]
    assert found == [longest(added, text) for text in asked]


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_a_text_that_continues_another_has_its_hashes(first, second):
    whole = block_hashes(first + second)
    assert block_hashes(first + second, block_hashes(first)) == whole
    assert len(whole) == len(first + second) // BLOCK


@given(TEXTS)
def test_memory_stays_within_the_capacity_and_the_newest_text_is_kept(added):
    known = Prefixes(12)
    for text in added:
        known.add(block_hashes(text))
        assert known.num_bytes <= known.capacity_bytes
        assert known.match(block_hashes(text)) == len(text) // BLOCK * BLOCK


def test_the_text_that_was_used_longest_ago_is_forgotten_first():
    known = Prefixes(3 * 100)
    old, used, new = (block_hashes(bytes([letter]) * 100) for letter in b"abc")
    for blocks in (old, used, new, old, block_hashes(b"d" * 100)):
        known.add(blocks)
    assert [known.match(one) for one in (old, used, new)] == [100, 0, 100]


def test_a_beginning_stays_while_a_text_that_has_it_is_used():
    known = Prefixes(300)
    system = b"s" * 100
    for i in range(50):
        known.add(block_hashes(system + bytes([65 + i]) * 50))
    assert known.match(block_hashes(system + b"?")) == 100


def test_the_beginning_of_a_text_beyond_the_capacity_is_kept():
    known = Prefixes(50)
    blocks = block_hashes(bytes(range(100)))
    known.add(blocks)
    assert known.match(blocks) == 50
    known.clear()
    assert (known.match(blocks), known.num_bytes) == (0, 0)


def test_a_replica_that_forgets_is_trusted_with_less_and_regains_it():
    known = Prefixes()
    known.add(block_hashes(bytes(100)))
    for _ in range(10):
        known.judge(num_expected=1000, num_cached=0)
    assert known.capacity_bytes < MAX_BYTES / 10
    for _ in range(100):
        known.judge(num_expected=1000, num_cached=990)
    assert known.capacity_bytes == MAX_BYTES
