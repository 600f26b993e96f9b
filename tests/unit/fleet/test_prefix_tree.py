"""The prefix tree against a list of texts."""

from __future__ import annotations

import random
from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from headstart.gateway.balancer.prefix_tree import NODE_BYTES, PrefixTree

TEXTS = st.lists(st.binary(max_size=12).map(lambda b: bytes(one % 3 for one in b)), max_size=30)


def longest(texts: list[bytes], text: bytes) -> int:
    def shared(one: bytes) -> int:
        return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, text, strict=False))))

    return max(map(shared, texts), default=0)


@given(TEXTS, TEXTS)
def test_a_match_is_the_longest_common_beginning_with_any_text(added, asked):
    tree = PrefixTree(2**20)
    for text in added:
        tree.add(text)
    assert [tree.match(text) for text in asked] == [longest(added, text) for text in asked]


@given(TEXTS)
def test_memory_stays_within_the_capacity_and_the_newest_text_is_kept(added):
    capacity = 4 * (NODE_BYTES + 12)
    tree = PrefixTree(capacity)
    for i, text in enumerate(added):
        tree.add(text)
        assert tree.num_bytes <= capacity
        assert tree.match(text) == len(text)
        assert tree.match(text) <= longest(added[: i + 1], text)


def test_the_text_that_was_used_longest_ago_is_forgotten_first():
    tree = PrefixTree(3 * (NODE_BYTES + 100))
    old, used, new = (bytes([letter]) * 100 for letter in b"abc")
    for text in (old, used, new, old, b"d" * 100):
        tree.add(text)
    assert (tree.match(old), tree.match(used), tree.match(new)) == (100, 0, 100)


def test_a_beginning_stays_while_a_text_that_has_it_is_used():
    tree = PrefixTree(4 * (NODE_BYTES + 100))
    system = b"s" * 100
    for i in range(50):
        tree.add(system + bytes([65 + i]) * 50)
    assert tree.match(system + b"?") == 100


def test_what_is_counted_is_what_is_held():
    tree, rng = PrefixTree(20_000), random.Random(3)
    for _ in range(500):
        tree.add(bytes(rng.choices(b"ab", k=rng.randrange(1, 80))))
        nodes = [tree._root]
        for node in nodes:
            nodes.extend(node.children.values())
        assert tree.num_bytes == sum(node.num_bytes for node in nodes[1:])
        assert len(tree._leaves) <= 65 + tree.num_bytes // NODE_BYTES


def test_nothing_is_known_after_a_restart():
    tree = PrefixTree(2**16)
    tree.add(b"a text")
    tree.clear()
    assert (tree.match(b"a text"), tree.num_bytes) == (0, 0)
