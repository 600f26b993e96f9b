"""Which replica gets a request: properties of the cost, and of a fleet that lives by it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.gateway.balancer import conversation
from headstart.gateway.balancer.conversation import Prefixes, block_hashes
from headstart.gateway.balancer.policy import (
    EQUAL_SECONDS,
    EQUAL_SHARE,
    Load,
    Prices,
    expected_seconds,
    ranking,
)

NUM_PROMPT = 2000


IDLE, USUAL = Load(), Prices()


def cost(load: Load = IDLE, *, num_known: float = 0, prices: Prices = USUAL) -> float:
    return expected_seconds(load, prices, max(0, NUM_PROMPT - num_known), 100)


def loads():
    return st.builds(
        Load,
        num_slots=st.integers(1, 8),
        num_running=st.integers(0, 8),
        num_waiting=st.integers(0, 50),
        prompt_tokens_ahead=st.floats(0, 1e4),
    )


def fleets():
    return st.dictionaries(
        st.sampled_from("abcdefgh"),
        st.tuples(loads(), st.floats(0, NUM_PROMPT)),
        min_size=1,
        max_size=6,
    )


def costs_of(fleet) -> dict[str, float]:
    return {name: cost(load, num_known=known) for name, (load, known) in fleet.items()}


def tolerance(seconds: float) -> float:
    return max(EQUAL_SECONDS, EQUAL_SHARE * seconds) + 1e-9


@given(fleets())
def test_the_first_is_hardly_dearer_than_the_cheapest_and_nobody_is_left_out(fleet):
    by_name = costs_of(fleet)
    ranked = ranking(by_name)
    costs = [by_name[name] for name in ranked]
    assert costs[0] <= min(costs) + tolerance(min(costs))
    assert sorted(ranked) == sorted(fleet)
    others = [one for one in costs if one > min(costs) + tolerance(min(costs))]
    assert others == sorted(others)


@given(fleets(), st.data())
def test_more_in_the_queue_never_makes_a_replica_the_first(fleet, data):
    name = data.draw(st.sampled_from(sorted(fleet)))
    load, known = fleet[name]
    busier = fleet | {name: (replace(load, num_waiting=load.num_waiting + 5), known)}
    if ranking(costs_of(fleet))[0] != name:
        assert ranking(costs_of(busier))[0] != name


@given(fleets(), st.data())
def test_knowing_more_never_costs_a_replica_the_first_place(fleet, data):
    name = data.draw(st.sampled_from(sorted(fleet)))
    load, known = fleet[name]
    before, after = costs_of(fleet), costs_of(fleet | {name: (load, known + 500)})
    if ranking(before)[0] == name:
        assert after[name] <= before[name]
        assert after[ranking(after)[0]] <= after[name] + tolerance(after[name])


def test_affinity_yields_where_waiting_costs_more_than_reading_anew():
    for price, first in ((1e-3, "knows"), (1e-4, "free")):
        prices = Prices(prompt_token=price, request=1.0)
        full = Load(num_slots=4, num_running=4)
        knows = cost(full, num_known=NUM_PROMPT, prices=prices)
        assert ranking({"knows": knows, "free": cost(prices=prices)})[0] == first


def test_a_hot_replica_changes_nothing_for_those_who_ask_another():
    """A fleet-wide switch would take the prefix on b away from its users as well."""
    hot = cost(Load(num_slots=4, num_running=4, num_waiting=100))
    assert ranking({"hot": hot, "b": cost(num_known=1900), "c": cost()})[0] == "b"


def test_a_conversation_stays_unless_another_replica_is_clearly_cheaper():
    slightly = {"here": cost(), "there": cost(num_known=150)}
    clearly = {"here": cost(), "there": cost(num_known=1000)}
    assert ranking(slightly, last="here")[0] == "here"
    assert ranking(slightly, last="there")[0] == "there"
    assert ranking(clearly, last="here")[0] == "there"


def test_every_router_breaks_ties_alike_and_conversations_spread():
    first = [ranking(dict.fromkeys("abcd", 1.0), str(i))[0] for i in range(400)]
    assert first == [ranking(dict.fromkeys("dcba", 1.0), str(i))[0] for i in range(400)]
    assert min(Counter(first).values()) > 60


def test_reading_costs_more_where_others_generate():

    def reading(num_running: int) -> float:
        load = Load(num_slots=4, num_running=num_running)
        return cost(load) - cost(load, num_known=NUM_PROMPT)

    assert reading(3) > reading(0) > 0


def test_a_slow_replica_gets_less():
    """Costs are seconds of that replica, so machines of several kinds can stand side by side."""
    busy = cost(Load(num_slots=4, num_running=3))
    assert ranking({"slow": cost(prices=Prices(prompt_token=1e-2)), "fast": busy})[0] == "fast"


BLOCK = 2
TEXTS = st.lists(st.binary(max_size=12).map(lambda b: bytes(one % 3 for one in b)), max_size=30)


@pytest.fixture(autouse=True, scope="module")
def _small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversation, "BLOCK_BYTES", BLOCK)
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
