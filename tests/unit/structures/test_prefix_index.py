"""The index of prefixes against a plain list of all that was added."""

from __future__ import annotations

from random import Random

import pytest

from headstart.structures.prefix import common_prefix_length as common
from headstart.structures.prefix_index import PrefixIndex, packed


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_what_a_list_of_all_finds(seed: int) -> None:
    random = Random(seed)
    index: PrefixIndex[int] = PrefixIndex()
    known: dict[int, list[int]] = {}
    keys = {}
    for number in range(300):
        tokens = [random.randrange(3) for _ in range(random.randrange(1, 12))]
        if random.random() < 0.6:
            known[number], keys[number] = tokens, packed(tokens)
            index.add(keys[number], number)
        elif known:
            gone = random.choice(list(known))
            del known[gone]
            index.remove(keys.pop(gone), gone)
        assert index.is_empty == (not known)
        query = [random.randrange(3) for _ in range(random.randrange(12))]
        item, length = index.find(packed(query))
        assert length == max((common(one, query) for one in known.values()), default=0)
        assert (item is None) == (length == 0)
        assert item is None or common(known[item], query) == length
        begun = [n for n, one in known.items() if common(one, query) == len(one)]
        assert sorted(index.beginnings(packed(query))) == sorted(begun)
