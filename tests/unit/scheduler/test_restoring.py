"""Prompts that are copied and restored beside answers hold up no request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from random import Random
from unittest.mock import Mock

import pytest
from tests.harness import (
    Answer,
    Clock,
    Model,
    collect,
    endless,
    make_scheduler,
    step_until,
    submit_all,
)
from tests.planted import fail_at, noted
from tests.unit.scheduler.conversations import ask, conversation, long, stored_prompt, tiled

from headstart.scheduler import sequence
from headstart.scheduler.copy_prices import CopyPrices, Price
from headstart.scheduler.prompt_store import PromptStore, StoredBlock
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.sequence import Cells
from headstart.structures.prefix import packed
from headstart.types import Batch, Checkpoint, SavedState
from headstart.types.errors import EngineError
from headstart.types.report import Counters
from headstart.types.request import Request


def stored_again(scheduler: Scheduler, *numbers: int) -> list[Request]:
    """Prompts of 1,200 tokens that are in main memory, asked again; few blocks fit into a step."""
    requests = [larger(number) for number in numbers]
    for request in requests:
        ask(scheduler, request)
        evict(scheduler)
    return [
        replace(one, request_id=f"again {one.request_id}", prompt=[*one.prompt, 1])
        for one in requests
    ]


def evict(scheduler: Scheduler) -> None:
    """Move all of an idle prompt to main memory."""
    scheduler.cache.offloading.begin_step(inf)
    assert scheduler.cache.offloading.evict()


def larger(number: int, times: int = 4, **fields: object) -> Request:
    return replace(long(number), prompt=[*long(number).prompt] * times, **fields)


def play_beside_an_answer(scheduler: Scheduler, *requests: Request) -> dict[str, Answer]:
    """What these get while another request runs."""
    answers = dict[str, Answer]()
    submit_all(scheduler, requests)
    for _ in range(200):
        scheduler.step()
        collect(scheduler, answers)
    assert len(scheduler.running) >= 1
    assert all(answers[request.request_id].end for request in requests)
    return answers


@pytest.fixture
def restoring(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scheduler]:
    """Makes schedulers that restore whatever they can."""
    # the clock of these tests goes on with every look at it
    monkeypatch.setattr(CopyPrices, "saves_time", lambda self, gained, copying: gained > 31)

    def make(num_slots: int, tile: int = 1) -> Scheduler:
        engine = Model(context_size=4096, num_cells=20_000)
        engine.attention_tile = tile
        return make_scheduler(engine, parallel=num_slots)

    return make


def test_prompts_are_restored_beside_an_answer_each_into_its_own_slot(restoring) -> None:
    scheduler = restoring(3)
    again = stored_again(scheduler, 1, 2)
    ask(scheduler, *(larger(number, slot_id=number - 2) for number in (3, 4)))
    submit_all(scheduler, [endless([1, 2], 900, "answer")], 1)
    answers = play_beside_an_answer(scheduler, *again)
    assert [answers[one.request_id].stats.num_cached for one in again] == [1200, 1200]


def test_no_slot_is_emptied_while_a_prompt_is_restored_into_it(restoring: Callable[..., Scheduler]):
    scheduler = restoring(5, tile=64)
    again = stored_again(scheduler, 1)
    submit_all(scheduler, [endless([1, 2], 900, "answer")], 1)
    submit_all(scheduler, (larger(number, slot_id=number) for number in (2, 3, 4)))
    step_until(scheduler, lambda _: len(scheduler.running) + len(scheduler.waiting) == 1)
    submit_all(scheduler, [endless([3, 4], 900, "other")], 1)
    assert scheduler.cache.offloading._is_behind
    assert play_beside_an_answer(scheduler, *again)[again[0].request_id].stats.num_cached == 1200


def test_making_room_for_a_prompt_does_not_evict_it(restoring: Callable[..., Scheduler]) -> None:
    """The oldest one went to take the slot's old contents, though it was to be restored there."""
    scheduler = restoring(2)
    again, _ = stored_again(scheduler, 1, 2)
    ask(scheduler, larger(3, slot_id=0))
    submit_all(scheduler, [endless([1, 2], 900, "answer", slot_id=1)], 1)
    scheduler.cache.offloading.store.max_bytes = scheduler.cache.offloading.store.num_bytes
    answers = play_beside_an_answer(scheduler, again)
    assert answers[again.request_id].stats.num_cached == 1200


def test_a_prompt_whose_request_leaves_before_all_of_it_is_restored_is_not_given_up(restoring):
    """It counted as continued by cells, so it was the next to be evicted, and never written."""
    scheduler = restoring(3)
    (again,) = stored_again(scheduler, 1)
    submit_all(scheduler, [endless([1, 2], 900, "answer")], 1)
    submit_all(scheduler, [again], 2)
    assert scheduler.running[-1].stored is not None
    scheduler.cancel(again.request_id)
    assert len(list(scheduler.cache.offloading.store.only_here())) == 1


def fail_once(scheduler: Scheduler) -> None:
    fail_at(scheduler.engine, {0})
    scheduler.step()


def leave_too_long(scheduler: Scheduler) -> None:
    store = scheduler.cache.offloading.store
    store.max_bytes = store.num_bytes
    (running,) = scheduler.running
    scheduler.cancel(running.request.request_id)
    ask(scheduler, conversation(5))


@pytest.mark.parametrize("lose", [fail_once, leave_too_long])
def test_a_prompt_is_no_longer_given_up_once_the_cells_that_continued_it_are_lost(restoring, lose):
    """It was still the next to be evicted, and never written to the disk."""
    scheduler = restoring(1)
    (again,) = stored_again(scheduler, 1)
    submit_all(scheduler, [replace(again, max_tokens=400)])
    step_until(scheduler, lambda _: scheduler.running and scheduler.running[0].num_emitted > 100)
    assert not list(scheduler.cache.offloading.store.only_here())
    lose(scheduler)
    assert len(list(scheduler.cache.offloading.store.only_here())) == 1


def test_a_slot_that_cannot_be_restored_leaves_the_step_its_limit_of_copies(restoring) -> None:
    scheduler = restoring(2)
    offloading, (cells, _) = scheduler.cache.offloading, scheduler.cells
    whole = replace(stored_prompt([1] * 64), blocks=(WHOLE,))
    assert not scheduler.slot_actions._bring_back(whole, cells)
    assert offloading._seconds < inf


def test_a_prompt_beyond_its_tenant_s_share_of_main_memory_holds_up_no_request(restoring) -> None:
    scheduler = restoring(2)
    store = scheduler.cache.offloading.store
    for name in "abc":
        ask(scheduler, larger(1, namespace=name, request_id=name))
        evict(scheduler)
    store.max_bytes = store.num_bytes + 2000
    ask(scheduler, larger(2, 8, namespace="d"))
    submit_all(scheduler, [endless([1, 2], 900, "answer")], 1)
    play_beside_an_answer(scheduler, conversation(5, namespace="e"))
    assert store.holds("c", packed(larger(1).prompt))


def test_a_prompt_that_cannot_be_copied_is_tried_once_and_not_in_every_step(restoring) -> None:
    scheduler = restoring(2)
    ask(scheduler, conversation(1))
    scheduler.engine.save_block = save = Mock(side_effect=EngineError("no state"))
    submit_all(scheduler, [endless([1, 2], 900, "answer")], 50)
    assert save.call_count == 1


def test_what_takes_longer_to_copy_than_to_decode_again_is_not_copied_for_others() -> None:
    """Single cells of a graphics card: copying them took half of the time of eight users."""
    engine, clock = Model(context_size=4096, num_cells=20_000), Clock()
    scheduler = make_scheduler(engine, parallel=2, clock=clock)
    save, copied = engine.save_block, list[tuple[int, int]]()

    def save_slowly(seq_id: int, start: int, end: int) -> bytearray:
        clock.now += 0.02 if end > 300 else 0.001  # an answer's cells lie between others'
        copied.append((start, end))
        return save(seq_id, start, end)

    engine.save_block = save_slowly
    ends = list[int]()

    def ask_and_evict(number: int, num_others: int) -> None:
        submit_all(scheduler, [replace(long(number), max_tokens=100, slot_id=1)], 1)
        step_until(scheduler, lambda _: len(scheduler.running) == num_others)
        copied.clear()
        evict(scheduler)
        ends.append(copied[-1][1])

    ask_and_evict(1, 0)
    submit_all(scheduler, [endless([1, 2], 3000, "answer", slot_id=0)], 1)
    for number in (2, 3, 4):
        ask_and_evict(number, 1)
    assert ends == [399, 320, 256, 256]  # a few blocks of answers were measured


@pytest.mark.parametrize("num_before", [0, 100])
def test_no_prompt_is_lost_because_the_machine_paused_while_a_block_was_copied(num_before) -> None:
    """The rest of that prompt, and the next dozens, were not copied."""
    prices = CopyPrices(Counters(prefill_rows=64, prefill_seconds=0.008))
    for _ in range(num_before):
        prices.blocks[False].observe(0.002)
    prices.blocks[False].observe(0.2)
    assert prices.pays(64, is_answer=False)


@pytest.mark.parametrize("num_before", [0, 20])
def test_prompts_are_restored_after_the_machine_paused_while_one_was(num_before: int) -> None:
    """None was any more, and so nothing was measured again."""
    clock = Clock()
    engine = Model(context_size=1024)
    scheduler = make_scheduler(engine, parallel=1, clock=lambda: clock.now)
    launch, restore, pauses = engine.launch, engine.restore_block, iter([0.0] * num_before + [9.0])

    def launch_slowly(batch: Batch) -> None:
        clock.now += 0.001 * batch.num_rows
        launch(batch)

    def restore_with_a_pause(seq_id: int, data: bytes) -> bool:
        clock.now += 1e-6 + next(pauses, 0.0)
        return restore(seq_id, data)

    engine.launch, engine.restore_block = launch_slowly, restore_with_a_pause
    read = ask(scheduler, *(long(number % 3) for number in range(12)))
    assert next(pauses, None) is None
    assert read[3:] == [1] * 9


@pytest.mark.parametrize("reading", [(), (Price(2e-9),)], ids=["restored", "read and restored"])
def test_a_price_that_is_too_high_for_a_restore_is_tested(reading: tuple[Price, ...]) -> None:
    prices = CopyPrices(Counters(prefill_rows=64, prefill_seconds=0.006))
    pays = [prices.restoring_pays(640, 640 * 2**17, *reading) for _ in range(150)]
    assert not pays[0]
    assert pays[-1]


def test_prompts_from_the_cache_make_no_token_dear() -> None:
    """Each decodes one token, in a step that hardly takes less time than one with dozens."""
    clock, engine = Clock(), Model()
    scheduler = make_scheduler(engine, parallel=1, clock=lambda: clock.now)
    launch = engine.launch

    def launch_slowly(batch: Batch) -> None:
        clock.now += 0.01 + 0.0001 * batch.num_rows
        launch(batch)

    engine.launch = launch_slowly
    assert ask(scheduler, *[long(1)] * 50) == [300] + [1] * 49
    prices = scheduler.cache.offloading._prices
    assert prices.saves_time(64, 0.005)
    assert not prices.saves_time(64, 0.02)


def test_a_prompt_copied_in_many_steps_is_converted_once(restoring, monkeypatch) -> None:
    """Each conversion of 128,000 tokens takes milliseconds, and others wait for the step."""
    scheduler = restoring(2)
    ask(scheduler, larger(1))
    converted = noted(monkeypatch, sequence, "packed")
    submit_all(scheduler, [endless([1, 2], 900, "answer")], 50)
    assert scheduler.counters.prompts_saved == 1
    texts = [text for (text,) in converted if len(text) > 1200]
    assert len(texts) == 1


def test_nothing_is_looked_up_again_while_a_slot_s_contents_are_copied_for_a_request(
    restoring: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents have long beginnings in common, and each comparison goes through all of them."""
    scheduler = restoring(2)
    (again,) = stored_again(scheduler, 1)
    ask(scheduler, larger(2, slot_id=1))
    submit_all(scheduler, [endless([1, 2], 900, "answer", slot_id=0)], 1)
    copied = noted(monkeypatch, scheduler.engine, "save_block")
    shared = noted(monkeypatch, Cells, "num_common")
    play_beside_an_answer(scheduler, again)
    assert len(copied) >= 19
    assert len(shared) <= 16


def test_a_prompt_restored_in_many_steps_is_looked_up_and_converted_once(restoring, monkeypatch):
    """With 128,000 tokens each of that takes milliseconds, and others wait for the step."""
    scheduler = restoring(2)
    again = stored_again(scheduler, 1)
    submit_all(scheduler, [endless([1, 2], 900, "answer")], 1)
    copied = noted(monkeypatch, scheduler.engine, "restore_block")
    found = noted(monkeypatch, PromptStore, "find")
    shared = noted(monkeypatch, Cells, "num_common")
    converted = noted(monkeypatch, sequence, "packed")
    play_beside_an_answer(scheduler, *again)
    assert len(copied) == 19
    assert len(found) <= 4
    assert len(shared) <= 16
    assert len(converted) <= 4


def test_what_is_said_to_fit_beside_the_shares_of_other_tenants_stays(monkeypatch) -> None:
    chance, fits, num_refused = Random(1), PromptStore.fits, 0
    monkeypatch.setattr(PromptStore, "fits", lambda *_: True)
    for _ in range(200):
        store, blocks = PromptStore(10_000), list[StoredBlock]()
        for number in range(12):
            size, tenant = chance.randrange(1, 9_000), chance.choice("abc")
            made = stored_prompt([number, 1], tenant, size)
            if tenant == "a":  # its texts have blocks in common
                made = replace(made, blocks=(*blocks[-1:], *made.blocks))
                blocks.append(made.blocks[-1])
            may_stay = fits(store, tenant, made.num_bytes)
            store.put(made)
            assert store.holds(tenant, made.tokens) or not may_stay
            num_refused += not may_stay
    assert 200 < num_refused < 2000


WHOLE = StoredBlock(0, 64, SavedState(b"state"))


def test_the_state_of_a_whole_text_takes_the_place_of_no_block() -> None:
    store = PromptStore(10**9)
    whole = replace(stored_prompt([1] * 64), blocks=(WHOLE,))
    blocks = StoredBlock(0, 64, b"first"), StoredBlock(64, 70, b"rest")
    store.put(whole)
    store.put(replace(stored_prompt([1] * 70), blocks=blocks))
    found, _ = store.find("", packed([1] * 70))
    assert found is not None
    assert found.blocks == blocks


def test_a_checkpoint_of_several_prompts_counts_once() -> None:
    store, common = PromptStore(10**9), Checkpoint(1, bytes(900))
    made = [
        replace(stored_prompt([1, n]), blocks=(StoredBlock(0, 2, SavedState(bytes(n), (common,))),))
        for n in (20, 30)
    ]
    for prompt in made:
        store.put(prompt)
    assert [one.num_bytes - one.own_bytes for one in made] == [920, 930]
    assert store.num_bytes == 950 + sum(one.own_bytes for one in made)
    for prompt in made:
        store.take(prompt)
    assert store.num_bytes == 0


def test_a_prompt_that_two_requests_loaded_together_is_stored_once() -> None:
    store, loaded = PromptStore(1000), stored_prompt([1, 2])
    for _ in range(2):
        assert store.put(loaded)
    assert (len(store), store.num_bytes) == (1, loaded.num_bytes)
    store.take(loaded)
    assert (len(store), store.num_bytes) == (0, 0)
    assert store.find("", packed([1, 2])) == (None, 0)


def test_a_prompt_too_large_for_memory_is_copied_once_whatever_the_size_of_others(monkeypatch):
    """Beside shorter ones, each request had all of it copied while all answers waited."""
    scheduler = tiled()
    scheduler.engine.has_blocks = False  # as with --exact
    scheduler.cache.offloading.store.max_bytes = 3000
    ask(scheduler, replace(conversation(1), prompt=[1] * 900, slot_id=0))
    copied = noted(monkeypatch, scheduler.engine, "save_sequence")
    for number in range(2, 12):
        small = replace(conversation(number), slot_id=1 + number % 3, max_tokens=60)
        ask(scheduler, replace(small, prompt=small.prompt[:50]))
    assert len(copied) > 5
    assert copied.count((0,)) == 1
