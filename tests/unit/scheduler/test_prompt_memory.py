"""Conversations that lose their slot, and come back from main memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
from tests.harness import (
    AUTO,
    Answer,
    Clock,
    Model,
    check,
    endless,
    make_scheduler,
    make_speculators,
    play,
    step_until,
    submit_all,
)
from tests.planted import noted
from tests.unit.scheduler.conversations import (
    ask,
    conversation,
    long,
    stored_prompt,
    tiled,
    with_system_prompt,
)

from headstart.scheduler.copy_prices import CopyPrices
from headstart.scheduler.prompt_store import PromptStore, StoredPrompt
from headstart.speculators.draft_model import DraftModelSpeculator
from headstart.structures.prefix import common_prefix_length, packed
from headstart.types import CacheKind
from headstart.types.errors import EngineError
from headstart.types.request import Request


@pytest.mark.parametrize("cache_kind", [CacheKind.CUT, CacheKind.ROLLBACK])
def test_a_conversation_that_lost_its_slot_is_not_read_again(cache_kind: CacheKind) -> None:
    scheduler = make_scheduler(Model(cache_kind=cache_kind), parallel=2)
    first = [conversation(i) for i in range(6)]
    later = [conversation(i, 1) for i in range(6)]
    assert ask(scheduler, *first) == [100] * 6
    assert max(ask(scheduler, *later)) <= (20 if cache_kind is CacheKind.CUT else 120)
    if cache_kind is CacheKind.CUT:
        assert scheduler.counters.prompts_restored >= 4
        assert scheduler.counters.prompt_tokens_restored >= 400


def test_a_prompt_that_takes_long_to_look_up_is_copied_and_restored_beside_answers(monkeypatch):
    """A long one: each step looks it up again, which alone takes longer than its copies may."""
    clock, find = Clock(), PromptStore.find
    scheduler = make_scheduler(Model(context_size=1024), parallel=2, clock=clock)

    def find_slowly(*given: Any) -> tuple[StoredPrompt | None, int]:
        clock.now += 1.0
        return find(*given)

    monkeypatch.setattr(PromptStore, "find", find_slowly)
    first, *others = (long(i) for i in (1, 2, 3))
    ask(scheduler, first)
    submit_all(scheduler, [endless([1, 2], 900, "answer")], 5)
    for request in (*others, long(1, 1)):
        scheduler.submit(request)
        answers = step_until(scheduler, has_ended(request))
        assert len(scheduler.running) == 1  # the answer still runs
    assert answers[request.request_id].stats.num_cached >= 300


@pytest.mark.parametrize("wish", [{"namespace": "b"}, {"namespace": "a", "cache_prompt": False}])
def test_another_namespace_and_who_must_not_use_the_cache_get_nothing_from_it(wish) -> None:
    scheduler = make_scheduler(Model(), parallel=1)
    own = [conversation(*of, namespace="a") for of in ((1,), (2,), (1, 1), (3,))]
    assert ask(scheduler, *own) == [100, 100, 20, 100]
    assert ask(scheduler, replace(conversation(1, 1, **wish), request_id="other")) == [120]


@pytest.mark.parametrize("cache_kind", [k for k in CacheKind if k is not CacheKind.CUT])
def test_a_prompt_that_cannot_be_cut_to_what_is_wanted_stays_in_main_memory(cache_kind) -> None:
    scheduler = make_scheduler(Model(cache_kind=cache_kind), parallel=1)
    branch = [*conversation(1).prompt[:80], *range(20)]  # behind no checkpoint
    asked = [conversation(1), conversation(2), replace(conversation(3), prompt=branch)]
    assert ask(scheduler, *asked) == [100, 100, 100]
    assert scheduler.counters.prompts_restored == 0
    assert scheduler.cache.offloading.store.find("", packed(conversation(1).prompt))[1] == 100


@pytest.mark.parametrize("cache_kind", [CacheKind.CUT, CacheKind.WINDOW])
def test_a_prompt_comes_back_also_where_its_last_token_alone_is_read_again(cache_kind) -> None:
    scheduler = make_scheduler(Model(cache_kind=cache_kind), parallel=1)
    first, other = (replace(conversation(number), max_tokens=1) for number in (1, 2))
    assert ask(scheduler, first, other, replace(first, request_id="again")) == [100, 100, 1]


def test_idle_prompts_that_make_room_in_a_full_cache_come_back() -> None:
    scheduler = make_scheduler(Model(context_size=512, num_cells=260), parallel=4)
    ask(scheduler, *(conversation(i) for i in range(4)))
    assert scheduler.counters.prompts_saved >= 2
    assert max(ask(scheduler, *(conversation(i, 1) for i in range(4)))) <= 20


def test_a_prompt_that_another_slot_holds_is_not_kept_twice() -> None:
    scheduler = make_scheduler(Model(), parallel=2)
    ask(scheduler, conversation(1), conversation(1, 1), conversation(2), conversation(3))
    assert len(scheduler.cache.offloading.store) <= 2
    kept = sum(slot.length for slot in scheduler.cells)
    assert kept == 2 * 107


@pytest.mark.parametrize("cache_kind", CacheKind)
def test_it_comes_back_also_where_the_draft_models_cells_are_taken(cache_kind: CacheKind) -> None:
    engine = Model(context_size=1024, num_cells=700)
    draft = Model(skew=0.2, context_size=1024, num_cells=700, cache_kind=cache_kind)
    speculator = DraftModelSpeculator(draft)
    scheduler = make_scheduler(engine, [speculator], parallel=2)
    for turn in range(1, 5):
        before = speculator.num_decoded
        ask(scheduler, *(replace(long(i, turn), max_tokens=40) for i in (1, 2, 3, 4)))
    assert speculator.num_decoded - before < 4 * 300


@pytest.mark.parametrize("names", [["suffix"], ["draft-model"], ["suffix", "draft-model"]])
def test_texts_from_memory_are_the_same_with_every_speculator(names: list[str]) -> None:
    engine = Model(2)
    speculators = make_speculators(names)
    scheduler = make_scheduler(engine, speculators, AUTO, parallel=2)
    for turn in range(3):
        ask(scheduler, *(conversation(i, turn) for i in (1, 2, 3, 4)))
    assert scheduler.counters.prompts_restored > 0


def test_idle_prompts_leave_the_cache_when_a_request_comes_and_come_back_with_theirs() -> None:
    scheduler = tiled()
    assert ask(scheduler, long(1), long(2)) == [300, 300]
    assert [slot.length for slot in scheduler.cells if slot.length] == [307]
    assert len(scheduler.cache.offloading.store) == 1
    later = [replace(long(i, 1), max_tokens=20) for i in (1, 2)]
    assert ask(scheduler, *later) == [20, 20]
    assert scheduler.counters.prompts_restored == 2


@pytest.mark.parametrize("off", [{"cache_ram": 0}, {"cache_idle_slots": False}])
def test_where_they_cannot_or_must_not_go_to_main_memory_they_stay(off: dict[str, object]) -> None:
    scheduler = tiled(**off)
    ask(scheduler, long(1), long(2))
    assert [slot.length for slot in scheduler.cells if slot.length] == [307, 307]
    assert ask(scheduler, long(1, 1), long(2, 1)) == [20, 20]
    assert scheduler.counters.prompts_saved == 0


def test_for_answers_of_a_few_tokens_idle_prompts_are_not_moved() -> None:
    scheduler = tiled()
    ask(scheduler, long(1), long(2))
    saved = scheduler.counters.prompts_saved
    for number in (3, 4):
        prompt = [number] * 20
        brief = replace(long(number), request_id=f"brief{number}", prompt=prompt, max_tokens=2)
        ask(scheduler, brief)
    assert scheduler.counters.prompts_saved == saved
    ask(scheduler, replace(brief, request_id="longer", max_tokens=40))
    assert scheduler.counters.prompts_saved == saved + 1


def test_a_few_idle_cells_and_shared_ones_stay_in_the_cache() -> None:
    scheduler = tiled()
    one = long(1)
    other = replace(one, request_id="other", prompt=[*one.prompt[:240], *long(2).prompt[:50]])
    assert ask(scheduler, one, other, conversation(3)) == [300, 50, 100]
    assert sum(bool(slot.length) for slot in scheduler.cells) == 3
    assert scheduler.counters.prompts_saved == 0


def test_many_short_idle_prompts_leave_the_cache_together() -> None:
    scheduler = tiled()
    assert ask(scheduler, *(conversation(i) for i in (1, 2, 3, 4))) == [100] * 4
    assert len(scheduler.cache.offloading.store) == 3
    assert [slot.length for slot in scheduler.cells if slot.length] == [107]
    assert ask(scheduler, *(conversation(i, 1) for i in (1, 2, 3, 4))) == [20] * 4


@pytest.mark.parametrize("users", [2, 6], ids=["empty slots are left", "more than slots"])
def test_conversations_behind_one_system_prompt_do_not_overwrite_one_another(users: int) -> None:
    scheduler = make_scheduler(Model(context_size=1024), parallel=4)
    ask(scheduler, *(with_system_prompt(i) for i in range(users)))
    for turn in (1, 2, 3):
        assert ask(scheduler, *(with_system_prompt(i, turn) for i in range(users))) == [60] * users


@pytest.mark.parametrize("cache_kind", CacheKind)
def test_who_only_shares_the_beginning_of_a_stored_prompt_does_not_use_it_up(cache_kind) -> None:
    scheduler = make_scheduler(Model(context_size=1024, cache_kind=cache_kind), parallel=1)
    ask(scheduler, with_system_prompt(1, 2), conversation(5), with_system_prompt(2))
    (read,) = ask(scheduler, with_system_prompt(1, 3))
    assert read <= 64
    if cache_kind is CacheKind.ROLLBACK:  # the beginning alone could not be had
        assert scheduler.counters.prompts_restored == 1


@pytest.mark.parametrize("num_bytes", [4000, 5000, 8000, 20_000])
def test_a_full_store_may_drop_for_a_slot_what_is_brought_back_into_it(num_bytes: int) -> None:
    scheduler = make_scheduler(Model(context_size=1024), parallel=1)
    scheduler.cache.offloading.store.max_bytes = num_bytes
    for turn in range(3):
        ask(scheduler, *(long(i, turn) for i in (1, 2)))
    assert scheduler.cache.offloading.store.num_bytes <= num_bytes


@pytest.mark.parametrize("num_bytes", [2000, 4500, 9000])
def test_a_store_too_small_for_the_idle_prompts_loses_none_that_the_slots_would_hold(
    num_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = tiled()
    saved = noted(monkeypatch, scheduler.engine, "save_block")
    scheduler.cache.offloading.store.max_bytes = num_bytes
    ask(scheduler, *(long(i) for i in (1, 2, 3)))
    for turn in (1, 2, 3):
        assert ask(scheduler, *(long(i, turn) for i in (1, 2, 3))) == [20] * 3
    if num_bytes == 2000:  # none fits, which one copy tells
        assert [start for _, start, _ in saved].count(0) == 1


def test_what_cannot_be_brought_back_for_want_of_cells_leaves_shared_cells_to_use() -> None:
    engine = Model(context_size=1024)
    scheduler = make_scheduler(engine, parallel=3)
    busy = replace(with_system_prompt(2, 5), max_tokens=60)
    early, late = with_system_prompt(1, 3), with_system_prompt(1, 4)
    submit_all(scheduler, [busy, early])
    answers = step_until(scheduler, has_ended(early))
    assert scheduler.cache.offloading.evict()
    engine.num_cells = 900
    scheduler.submit(late)
    check(engine, [busy, late], play(scheduler, answers=answers))
    assert answers[late.request_id].stats.num_cached == 200


def has_ended(request: Request) -> Callable[[dict[str, Answer]], object]:
    return lambda told: request.request_id in told and told[request.request_id].end


class CrowdedModel(Model):
    """Has no room for what comes back."""

    def restore_block(self, seq_id: int, data: bytes | bytearray | memoryview) -> bool:
        self.lacks_cells = True
        return False


def test_what_comes_back_shares_the_cells_of_what_the_slots_hold(monkeypatch) -> None:
    engine = Model(context_size=1024)
    restored = noted(monkeypatch, engine, "restore_block")
    scheduler = make_scheduler(engine, parallel=2)
    ask(scheduler, *(with_system_prompt(i) for i in range(4)))
    assert ask(scheduler, *(with_system_prompt(i, 1) for i in range(4))) == [60] * 4
    assert scheduler.counters.prompts_restored > 0
    assert min(int.from_bytes(data[:4], "little") for _, data in restored) == 192


def test_no_idle_prompt_makes_room_for_the_rest_of_one_that_is_mostly_in_the_cache() -> None:
    scheduler = make_scheduler(CrowdedModel(context_size=1024), parallel=3)
    ask(scheduler, *(with_system_prompt(i) for i in range(4)))
    kept = [slot.tokens for slot in scheduler.cells]
    assert ask(scheduler, with_system_prompt(0, 1)) == [120]
    assert sum(slot.tokens in kept for slot in scheduler.cells) == 2


@pytest.mark.parametrize("error", [EngineError("no state"), MemoryError()])
def test_a_prompt_that_cannot_be_copied_costs_nobody_an_answer(error: Exception) -> None:
    scheduler = make_scheduler(Model(), parallel=1)
    scheduler.engine.save_block = Mock(side_effect=error)
    assert ask(scheduler, conversation(1), conversation(2), conversation(1, 1)) == [100, 100, 120]


def test_a_tenant_finds_the_longest_prefix_of_its_own_prompts_only() -> None:
    store = PromptStore(10**9)
    store.put(stored_prompt([1, 2, 3], "a"))
    store.put(stored_prompt([1, 9], "b"))
    for name, length in (("a", 3), ("b", 1), ("c", 0)):
        found, shared = store.find(name, packed([1, 2, 3]))
        assert shared == length
        assert (found.namespace if found else "c") == name


@pytest.mark.parametrize("seed", range(20))
def test_what_is_found_and_replaced_is_what_a_list_of_all_says(seed: int) -> None:
    random, store, known = Random(seed), PromptStore(10**9), list[tuple[str, list[int]]]()
    for _ in range(300):
        tokens = [random.randrange(3) for _ in range(random.randrange(1, 12))]
        name = random.choice("ab")
        if random.random() < 0.6:
            known = [one for one in known if one != (name, tokens[: len(one[1])])]
            known.append((name, tokens))
            store.put(stored_prompt(tokens, name))
        elif known:
            of, tokens = known.pop(random.randrange(len(known)))
            gone, _ = store.find(of, packed(tokens))
            assert gone is not None
            store.take(gone)
        query = [random.randrange(3) for _ in range(random.randrange(12))]
        lengths = [common_prefix_length(one, query) for of, one in known if of == name]
        found, length = store.find(name, packed(query))
        assert length == max(lengths, default=0)
        assert (found is None) == (length == 0)
        assert found is None or common_prefix_length(found.tokens.tolist(), query) == length
    assert sorted((one.namespace, one.tokens.tolist()) for one in store) == sorted(known)


def test_a_prompt_replaces_those_that_it_continues() -> None:
    store = PromptStore(10**9)
    for tokens in ([1, 2], [1, 2, 3], [1, 2, 4]):
        store.put(stored_prompt(tokens))
    assert len(store) == 2
    assert store.holds("", packed([1, 2]))
    assert store.num_bytes == sum(stored_prompt(t).num_bytes for t in ([1, 2, 3], [1, 2, 4]))


def test_conversations_behind_one_system_prompt_keep_it_once() -> None:
    scheduler = make_scheduler(Model(context_size=1024), parallel=1)
    ask(scheduler, *(with_system_prompt(i) for i in range(20)))
    store = scheduler.cache.offloading.store
    blocks = [block for stored in store for block in stored.blocks]
    assert len(store) == 19
    assert len({block for block in blocks if block.end <= 192}) == 3
    unique = sum(len(block.data) for block in set(blocks))
    assert store.num_bytes == unique + sum(stored.own_bytes for stored in store)
    assert ask(scheduler, *(with_system_prompt(i, 1) for i in range(5))) == [60] * 5
    for stored in list(store):
        store.take(stored)
    assert store.num_bytes == 0


def test_the_one_used_longest_ago_is_dropped_first() -> None:
    store = PromptStore(3 * stored_prompt([1, 2]).num_bytes)
    for first in range(5):
        store.put(stored_prompt([first, 9]))
    assert [store.find("", packed([first]))[1] for first in range(5)] == [0, 0, 1, 1, 1]
    store.put(stored_prompt([7, 7], num_bytes=10**6))  # alone too large
    assert len(store) == 3
    found, _ = store.find("", packed([3]))
    assert found is not None
    store.take(found)
    assert (len(store), store.num_bytes) == (2, 2 * stored_prompt([1, 2]).num_bytes)


def test_copies_beside_others_take_a_few_blocks_of_each_step_and_lose_nothing(monkeypatch) -> None:
    # the clock of these tests goes on with every look at it
    monkeypatch.setattr(CopyPrices, "saves_time", lambda self, gained, copying: gained > 31)
    engine = Model(context_size=4096, num_cells=6000)
    scheduler = make_scheduler(engine, parallel=2)
    copied = [noted(monkeypatch, engine, name) for name in ("save_block", "restore_block")]
    first, second = (replace(long(i), prompt=[*long(i).prompt] * 4) for i in (1, 2))
    ask(scheduler, first)
    again = replace(first, request_id="again", prompt=[*first.prompt, 1, 2, 3])
    submit_all(scheduler, [replace(conversation(5), max_tokens=2000)], 1)
    answers = dict[str, Answer]()

    def is_over(later: Request) -> object:
        assert sum(map(len, copied)) <= 6
        for calls in copied:
            calls.clear()
        return has_ended(later)(answers)

    for later in (second, again):
        scheduler.submit(later)
        step_until(scheduler, lambda _, later=later: is_over(later), answers)
    assert len(scheduler.running) == 1
    assert answers["again"].stats.num_cached == len(first.prompt)
    check(engine, [second, again], answers)


def test_a_tenant_drops_its_own_prompts_and_not_another_s() -> None:
    store = PromptStore(4 * stored_prompt([1, 2]).num_bytes)
    store.put(stored_prompt([1, 9], "a"))
    for first in range(9):  # other adapters are no other tenant
        store.put(stored_prompt([first, 9], f"b lora {first % 3}"))
    assert store.holds("a", packed([1, 9]))
    assert len(store) == 4


def test_a_prompt_that_was_copied_ahead_is_not_compared_again_at_every_step(monkeypatch) -> None:
    scheduler = make_scheduler(Model(), parallel=2)
    ask(scheduler, conversation(1))
    looks = noted(monkeypatch, PromptStore, "holds")
    ask(scheduler, replace(conversation(2), max_tokens=40))
    assert len(looks) <= 3
