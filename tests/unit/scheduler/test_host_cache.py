"""Stored prompts against a plain list of all that were put."""

from __future__ import annotations

from random import Random

from headstart.scheduler.host_cache import HostCache, StoredPrompt


def prompt(tokens: list[int], namespace: str = "", num_bytes: int = 10) -> StoredPrompt:
    return StoredPrompt(namespace, tokens, {"target": bytes(num_bytes)})


def common(one: list[int], other: list[int]) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


def test_the_longest_common_prefix_of_the_namespace_is_found() -> None:
    random = Random(0)
    store, known = HostCache(10**9), []
    for _ in range(200):
        namespace = random.choice("ab")
        tokens = [random.randrange(2) for _ in range(random.randrange(1, 12))]
        if random.random() < 0.5:
            store.put(prompt(tokens, namespace))
            known.append((namespace, tokens))
        found, length = store.find(namespace, tokens)
        shared = (common(one, tokens) for space, one in known if space == namespace)
        longest = max(shared, default=0)
        assert length == longest
        assert (found is None) == (longest == 0)
        if found is not None:
            assert found.namespace == namespace
            assert list(found.tokens[:length]) == tokens[:length]


def test_a_prompt_replaces_those_that_it_continues() -> None:
    store = HostCache(10**9)
    for tokens in ([1, 2], [1, 2, 3], [1, 2, 4]):
        store.put(prompt(tokens))
    assert len(store) == 2
    assert store.holds("", [1, 2])
    assert store.num_bytes == sum(prompt(t).num_bytes for t in ([1, 2, 3], [1, 2, 4]))


def test_the_one_used_longest_ago_is_dropped_first() -> None:
    store = HostCache(3 * prompt([1, 2]).num_bytes)
    for first in range(5):
        store.put(prompt([first, 9]))
    assert [store.find("", [first])[1] for first in range(5)] == [0, 0, 1, 1, 1]
    store.put(prompt([7, 7], num_bytes=10**6))  # alone too large
    assert len(store) == 3
    found, _ = store.find("", [3])
    assert found is not None
    store.take(found)
    assert (len(store), store.num_bytes) == (2, 2 * prompt([1, 2]).num_bytes)


def test_a_tenant_drops_its_own_prompts_and_not_another_s() -> None:
    store = HostCache(4 * prompt([1, 2]).num_bytes)
    store.put(prompt([1, 9], "a"))
    for first in range(9):  # other adapters are no other tenant
        store.put(prompt([first, 9], f"b lora {first % 3}"))
    assert store.holds("a", [1, 9])
    assert len(store) == 4
