"""Who has the cells of a full context: each request has its turn, whatever the others do."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest
from tests.harness import (
    EOS,
    Answer,
    Model,
    answer,
    check,
    collect,
    endless,
    make_scheduler,
    play,
    sequence_of,
    step_until,
)
from tests.planted import noted

from headstart.scheduler import cell_order
from headstart.scheduler.cell_order import CellOrder
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.sequence import Cells, Sequence
from headstart.structures.tenants import namespace_of_key
from headstart.types.request import Request


def small_requests(tenant: str, seed: int) -> Iterator[Request]:
    chance = random.Random(seed)
    for number in count():
        prompt = [(number * index + 3) % EOS for index in range(60)]
        name = f"small{number}"
        yield endless(prompt, chance.randrange(20, 60), name, namespace=tenant)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tenant", ["a", "b"])
def test_small_requests_without_end_do_not_keep_out_a_big_one(tenant: str, seed: int) -> None:
    """Those of another tenant made it wait for ever, because its own holds most cells."""
    scheduler = make_scheduler(Model(num_cells=512))
    big = endless([7 * index % EOS for index in range(300)], 150, "big", namespace="a")
    scheduler.submit(big)
    scheduler.step()
    scheduler.step()
    coming, num_steps = small_requests(tenant, seed), count()

    def is_over(told: dict[str, Answer]) -> bool:
        if sum(not one.is_resumed for one in (*scheduler.running, *scheduler.waiting)) < 4:
            scheduler.submit(next(coming))
        assert next(num_steps) < 1000
        return bool("big" in told and told["big"].end)

    check(scheduler.engine, [big], step_until(scheduler, is_over))
    assert scheduler.counters.preemptions < 10
    # those that wait for room cost nothing yet
    assert sum(hasattr(one, "sampler") for one in scheduler.waiting) < 10


def test_texts_without_end_that_fill_the_context_have_turns(monkeypatch) -> None:
    """One of them had all cells for ever."""
    monkeypatch.setattr(cell_order, "TURN", 64)
    scheduler = make_scheduler(Model(2, context_size=128, num_cells=128), context_shift=True)
    for number in range(4):
        scheduler.submit(endless([number] * 40, name=f"{number}"))
    num_steps = count()
    answers = step_until(scheduler, lambda _: next(num_steps) == 2000)
    shares = [len(answers[f"{number}"].tokens) / 2000 for number in range(4)]
    assert min(shares) > 0.15
    # every turn reads a text again, and interrupts one
    assert scheduler.counters.preemptions < 2 * 2000 / 64


def test_the_turn_of_a_tenant_lasts_though_each_of_its_requests_is_short(monkeypatch) -> None:
    monkeypatch.setattr(cell_order, "TURN", 128)
    scheduler = make_scheduler(Model(2, num_cells=512), context_shift=True)
    scheduler.submit(endless([7 * index % EOS for index in range(300)], namespace="b"))
    scheduler.step()
    coming, ended = small_requests("a", 0), 0
    for _ in range(2000):
        while sum(one.tenant == "a" for one in (*scheduler.running, *scheduler.waiting)) < 4:
            scheduler.submit(next(coming))
        ended += len(scheduler.step().ended)
    assert ended > 100


def steps_until_a_request_starts(max_tokens: int | None, num_before: int = 100) -> int:
    """While another tenant has long prompts with answers of one token, one after the other."""
    scheduler = make_scheduler(Model(num_cells=512), prefill_chunk=8)
    coming = count()

    def go_on() -> None:
        while sum(one.tenant == "a" for one in (*scheduler.running, *scheduler.waiting)) < 4:
            prompt = [(next(coming) * index + 3) % EOS for index in range(470)]
            scheduler.submit(endless(prompt, 1, f"long{next(coming)}", namespace="a"))
        scheduler.step()

    for _ in range(num_before):
        go_on()
    scheduler.submit(endless([1, 2, 3], max_tokens, "short", namespace="b"))
    for number in range(2000):
        if any(one.tenant == "b" for one in scheduler.running):
            return number
        go_on()
    raise AssertionError("it never starts")


def test_a_short_request_with_few_tokens_to_come_starts_beside_long_prompts() -> None:
    """It waited for 26 s, though there was room for all it may become."""
    assert steps_until_a_request_starts(16) < 2 * 470 // 8


def test_a_turn_ends_after_as_many_tokens_are_read_as_there_are_cells() -> None:
    """Each step reads a piece of a prompt: TURN of them took as long as eight whole prompts."""
    waits = [steps_until_a_request_starts(None, num) for num in range(60, 360, 50)]
    assert max(waits) < 3 * 470 // 8


def test_a_request_that_has_the_turn_has_a_slot_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_order, "TURN", 64)
    scheduler = make_scheduler(Model(2, num_cells=512), parallel=2, context_shift=True)
    for number in range(3):
        scheduler.submit(endless([number], name=f"{number}"))
    scheduler.step()
    (last,) = scheduler.waiting
    last.held_since = 0.0  # as if others had filled the context, and it was preempted
    num_steps = count()
    step_until(scheduler, lambda _: last in scheduler.running or next(num_steps) > 70)
    assert last in scheduler.running


@pytest.mark.parametrize("seed", range(20))
def test_a_few_comparisons_tell_which_of_many_requests_may_start(seed, monkeypatch) -> None:
    """With 500 waiting requests of as many tenants each step took 28 ms."""
    chance, numbers, heavy = random.Random(seed), count(), namespace_of_key(b"a")
    order = CellOrder(chance.randrange(200, 4000))

    def make(cells: Cells | None = None) -> Sequence:
        tenant = chance.choice([heavy, *map(str, range(chance.choice((3, 300))))])
        limit = chance.choice((None, 2, 50))
        asked = endless([1] * chance.randrange(10, 400), limit, namespace=tenant)
        return sequence_of(asked, cells=cells, number=next(numbers))

    running, waiting = [make(Cells(at)) for at in range(8)], [make() for _ in range(300)]
    order.first = chance.choice([None, running[3].number, waiting[3].number])
    waiting[5].held_since = 0.0
    expected = [one for one in waiting if order._fits(one, running)]
    fits = noted(monkeypatch, CellOrder, "_fits")
    found = list(order.may_start(waiting, running, 0.0))
    assert {one.number for one in found} == {one.number for one in expected}
    assert len(fits) <= len(found) + 60


class Watch:
    """Counts the turns of tenants that pass while a request waits for its own."""

    def __init__(self, scheduler: Scheduler, num_tenants: int) -> None:
        self._scheduler, self._num_tenants = scheduler, num_tenants
        self._turn: object = None
        self._num_turns = 0
        self._latest: dict[int, int] = {}  # by number of a request, the last turn before its own

    def look(self) -> None:
        scheduler, order = self._scheduler, self._scheduler._cell_order
        if (turn := (order.first, order._until)) != self._turn:
            self._turn = turn
            self._num_turns += order.first is not None and not order._num_steps
        everyone = [*scheduler.running, *scheduler.waiting]
        line = [one for one in everyone if one.held_since is not None]
        num_own, known, self._latest = Counter(one.tenant for one in line), self._latest, {}
        for one in line:
            latest = self._num_turns + self._num_tenants * num_own[one.tenant]
            self._latest[one.number] = known.get(one.number, latest)
            assert self._num_turns <= self._latest[one.number]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shifts", [False, True])
def test_whatever_comes_each_request_has_its_turn_and_ends(shifts, seed, monkeypatch) -> None:
    monkeypatch.setattr(cell_order, "TURN", 8)
    chance, context = random.Random(seed), 64
    engine = Model(2 if shifts else None, context_size=context, num_cells=96)
    scheduler = make_scheduler(
        engine,
        parallel=chance.randint(2, 5),
        context_shift=shifts,
        prefill_chunk=8,
    )
    watch, requests, answers = Watch(scheduler, 3), list[Request](), dict[str, Answer]()
    for _ in range(400):
        while len(scheduler.waiting) < 6 and chance.random() < 0.7:
            prompt = [chance.randrange(EOS) for _ in range(chance.choice((4, 12, 40, 60)))]
            limit = None if shifts and chance.random() < 0.1 else chance.choice((2, 10, 50))
            name, tenant = f"{len(requests)}", chance.choice("abc")
            requests.append(endless(prompt, limit, name, namespace=tenant))
            scheduler.submit(requests[-1])
        scheduler.step()
        collect(scheduler, answers)
        watch.look()
    for request in requests:
        if request.max_tokens is None:
            scheduler.cancel(request.request_id)
    play(scheduler, (), answers)
    # about one for each eighth of all cells by which texts grew
    num_tokens = sum(len(told.tokens) for told in answers.values())
    assert 0 < scheduler.counters.preemptions <= 1.25 * num_tokens / (96 // 8)
    for request in requests:
        told = answers[request.request_id]
        assert told.end is not None
        if not shifts:
            assert told.tokens == answer(engine, request).tokens
