"""Which replica gets a request: properties of the cost, and of a fleet that lives by it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headstart.gateway.balancer.policy import (
    EQUAL_SECONDS,
    EQUAL_SHARE,
    Candidate,
    Load,
    Prices,
    expected_seconds,
    ranking,
)

NUM_PROMPT = 2000


def candidate(name: str = "a", **fields) -> Candidate:
    return Candidate(name=name, num_prompt=NUM_PROMPT, num_answer=100, **fields)


def loads():
    return st.builds(
        Load,
        num_slots=st.integers(1, 8),
        num_running=st.integers(0, 8),
        num_waiting=st.integers(0, 50),
        prompt_tokens_ahead=st.floats(0, 1e4),
    )


def candidates():
    return st.builds(
        candidate,
        name=st.sampled_from("abcdefgh"),
        load=loads(),
        num_known=st.floats(0, 5000),
        corpus_share=st.floats(0, 1),
    )


def fleets():
    return st.lists(candidates(), min_size=1, max_size=6, unique_by=lambda one: one.name)


def names(ranked: list[Candidate]) -> list[str]:
    return [one.name for one in ranked]


def tolerance(cost: float) -> float:
    return max(EQUAL_SECONDS, EQUAL_SHARE * abs(cost)) + 1e-9


@given(fleets())
def test_the_first_is_hardly_dearer_than_the_cheapest_and_nobody_is_left_out(fleet):
    ranked = ranking(fleet)
    costs = [expected_seconds(one) for one in ranked]
    assert costs[0] <= min(costs) + tolerance(min(costs))
    assert sorted(names(ranked)) == sorted(names(fleet))
    others = [cost for cost in costs if cost > min(costs) + tolerance(min(costs))]
    assert others == sorted(others)


@given(fleets(), st.data())
def test_more_in_the_queue_never_makes_a_replica_the_first(fleet, data):
    i = data.draw(st.integers(0, len(fleet) - 1))
    load = fleet[i].load
    busier = list(fleet)
    busier[i] = replace(fleet[i], load=replace(load, num_waiting=load.num_waiting + 5))
    if names(ranking(fleet))[0] != fleet[i].name:
        assert names(ranking(busier))[0] != fleet[i].name


@given(fleets(), st.data())
def test_knowing_more_never_costs_a_replica_the_first_place(fleet, data):
    i = data.draw(st.integers(0, len(fleet) - 1))
    wiser = list(fleet)
    wiser[i] = replace(fleet[i], num_known=fleet[i].num_known + 500, corpus_share=1.0)
    if names(ranking(fleet))[0] == fleet[i].name:
        assert expected_seconds(wiser[i]) <= expected_seconds(fleet[i])
        ranked = ranking(wiser)
        assert expected_seconds(ranked[0]) <= expected_seconds(wiser[i]) + tolerance(
            expected_seconds(wiser[i])
        )


def test_what_is_known_beyond_the_prompt_saves_nothing():
    all_of_it, more = (candidate(num_known=known) for known in (NUM_PROMPT, 9000))
    assert expected_seconds(all_of_it) == expected_seconds(more) == 0


def test_affinity_yields_where_waiting_costs_more_than_reading_anew():
    knows = candidate("knows", num_known=2000, load=Load(num_slots=4, num_running=4))
    free = candidate("free", load=Load(num_slots=4))
    dear, cheap = (Prices(prompt_token=price, request=1.0) for price in (1e-3, 1e-4))
    assert names(ranking([replace(one, prices=dear) for one in (knows, free)]))[0] == "knows"
    assert names(ranking([replace(one, prices=cheap) for one in (knows, free)]))[0] == "free"


def test_a_hot_replica_changes_nothing_for_those_who_ask_another():
    """A fleet-wide switch would take the prefix on b away from its users as well."""
    hot = candidate("hot", load=Load(num_slots=4, num_running=4, num_waiting=100))
    knows, other = candidate("b", num_known=1900), candidate("c")
    assert names(ranking([hot, knows, other]))[0] == "b"


def test_a_corpus_decides_between_replicas_that_are_alike():
    plain, learned = candidate("plain"), candidate("learned", corpus_share=0.8)
    for conversation in "abcdef":
        assert names(ranking([plain, learned], conversation))[0] == "learned"


def test_a_conversation_stays_unless_another_replica_is_clearly_cheaper():
    here = candidate("here")
    slightly = candidate("there", num_known=150)
    clearly = candidate("there", num_known=1000)
    assert names(ranking([here, slightly], last="here"))[0] == "here"
    assert names(ranking([here, slightly], last="there"))[0] == "there"
    assert names(ranking([here, clearly], last="here"))[0] == "there"


def test_every_router_breaks_ties_alike_and_conversations_spread():
    fleet = [candidate(name) for name in "abcd"]
    first = [names(ranking(fleet, str(i)))[0] for i in range(400)]
    assert first == [names(ranking(fleet[::-1], str(i)))[0] for i in range(400)]
    assert min(Counter(first).values()) > 60


def test_reading_costs_more_where_others_generate():

    def reading(num_running: int) -> float:
        whole = candidate(load=Load(num_slots=4, num_running=num_running))
        return expected_seconds(whole) - expected_seconds(replace(whole, num_known=NUM_PROMPT))

    assert reading(3) > reading(0) > 0


def test_a_slow_replica_gets_less():
    """Costs are seconds of that replica, so machines of several kinds can stand side by side."""
    slow = candidate("slow", prices=Prices(prompt_token=1e-2))
    fast = candidate("fast", load=Load(num_slots=4, num_running=3))
    assert names(ranking([slow, fast]))[0] == "fast"
