"""Whose request is next: weights, priorities, and what a tenant with many gives up."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future
from itertools import count
from typing import Any

import pytest
from tests.harness import EOS, Model, check, endless, make_scheduler, play, step_until, steps

from headstart.scheduler.scheduler import Scheduler
from headstart.structures.tenants import namespace_of_key
from headstart.types.errors import CapacityError, QuotaError
from headstart.types.request import Request


def submit(
    scheduler: Scheduler, name: str, namespace: str = "", max_tokens: int = 4, priority: int = 0
) -> Request:
    namespace = namespace or namespace_of_key(name[0].encode())
    prompt = [byte % EOS for byte in name.encode()]
    request = endless(prompt, max_tokens, name, namespace=namespace, priority=priority)
    scheduler.submit(request)
    return request


def make(parallel: int = 4, **limits: Any) -> Scheduler:
    return make_scheduler(Model(context_size=256), parallel=parallel, **limits)


def running(scheduler: Scheduler) -> list[str]:
    return [one.request.request_id for one in scheduler.running]


def order_of_admission(scheduler: Scheduler) -> list[str]:
    """Run everything; the ids as they were admitted."""
    admitted: list[str] = []
    for _ in steps(scheduler):
        admitted += [name for name in running(scheduler) if name not in admitted]
    return admitted


def test_a_tenant_that_asks_once_does_not_wait_for_one_that_asks_a_lot() -> None:
    scheduler = make(1)
    for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        submit(scheduler, name)
    assert order_of_admission(scheduler) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_a_tenant_that_comes_again_and_again_waits_for_one_request_of_a_flood_at_most() -> None:
    scheduler, admitted = make(1), list[str]()
    for number in range(40):
        submit(scheduler, f"a{number}")
    for number in range(10):
        num_before = len(admitted)
        submit(scheduler, f"b{number}")
        while f"b{number}" not in admitted:
            scheduler.step()
            admitted += [name for name in running(scheduler) if name not in admitted]
        assert len(admitted) - num_before <= 2
        while f"b{number}" in running(scheduler):
            scheduler.step()


@pytest.mark.parametrize("parallel", [1, 3, 4])
def test_turns_are_shared(parallel: int) -> None:
    scheduler = make(parallel)
    for number in range(20):
        for tenant in "ab":
            submit(scheduler, f"{tenant}{number}")
    counts = Counter[str]()
    for name in order_of_admission(scheduler):
        counts[name[0]] += 1
        if max(counts.values()) < 20:
            assert abs(counts["a"] - counts["b"]) <= parallel + 1
    assert counts.total() == 40


@pytest.mark.parametrize("parallel", [1, 2])
def test_tenants_that_come_without_end_shut_nobody_out(parallel: int) -> None:
    scheduler = make(parallel)
    for number in range(4):
        submit(scheduler, f"a{number}")
    admitted = list[str]()
    for number in range(60):
        for one in range(parallel):
            name = f"b{number}-{one}"
            submit(scheduler, name, namespace=name, max_tokens=1)
        scheduler.step()
        admitted += [name for name in running(scheduler) if name not in admitted]
    assert {f"a{number}" for number in range(4)} <= set(admitted)


def test_a_tenant_that_takes_back_what_a_thread_works_for_has_had_its_turn(monkeypatch) -> None:
    model = Model(context_size=256)
    scheduler = make_scheduler(model, parallel=1)
    submit(scheduler, "b0")
    assert order_of_admission(scheduler) == ["b0"]
    is_slow, lookups = False, list[Future[None]]()

    def begin(_: object) -> Future[None] | None:
        lookups.append(Future())
        return lookups[-1] if is_slow else None

    monkeypatch.setattr(model, "begin_filters", begin)
    for number in range(3):
        is_slow = True
        submit(scheduler, f"a{number}")
        scheduler.step()
        if not number:
            submit(scheduler, "b1")
        scheduler.cancel(f"a{number}")
    submit(scheduler, "a3")
    is_slow = False
    for lookup in lookups:
        if not lookup.cancelled():
            lookup.set_result(None)
    assert order_of_admission(scheduler) == ["b1", "a3"]


def test_priority_orders_the_requests_of_a_tenant_and_no_others() -> None:
    scheduler = make(1)
    for name, priority in (("a1", 5), ("a2", 5), ("b1", 9), ("a3", -1), ("b2", 8), ("a4", 5)):
        submit(scheduler, name, priority=priority)
    assert order_of_admission(scheduler) == ["a3", "b2", "a1", "b1", "a2", "a4"]


def test_of_a_tenant_with_too_many_slots_the_least_urgent_request_gives_up_its_own() -> None:
    scheduler = make()
    for number, priority in enumerate((0, 3, 1, 0)):
        submit(scheduler, f"a{number}", max_tokens=40, priority=priority)
    scheduler.step()
    submit(scheduler, "b0")
    scheduler.step()
    assert sorted(running(scheduler)) == ["a0", "a2", "a3", "b0"]


def endless_flood(scheduler: Scheduler) -> None:
    """One tenant has all four slots for ever."""
    for number in range(4):
        scheduler.submit(endless([number], name=f"a{number}", namespace="a"))
    scheduler.step()


def test_of_tenants_that_come_between_two_steps_each_gets_its_share() -> None:
    """The first one alone was given a slot; those beside it waited for the others to end."""
    scheduler = make_scheduler(Model(2), context_shift=True)
    endless_flood(scheduler)
    for tenant in "bcd":
        scheduler.submit(endless([9], name=tenant, namespace=tenant))
    step_until(scheduler, lambda _: len(running(scheduler)) == 4)
    assert sorted(running(scheduler)) == ["a0", "b", "c", "d"]


def test_a_tenant_that_asks_twice_at_once_takes_no_more_than_its_share() -> None:
    scheduler = make_scheduler(Model(2), context_shift=True)
    endless_flood(scheduler)
    for number in range(4):
        scheduler.submit(endless([9], name=f"b{number}", namespace="b"))
    assert scheduler.counters.preemptions == 2
    scheduler.step()
    assert sorted(running(scheduler)) == ["a0", "a1", "b0", "b1"]


def test_a_slot_is_given_up_by_another_request_than_the_one_that_has_the_turn() -> None:
    """That one took its slot back, and the new tenant waited for the others to end."""
    scheduler = make_scheduler(Model(2), context_shift=True)
    endless_flood(scheduler)
    order, last = scheduler._cell_order, scheduler.running[-1]
    order.first, order._until = last.number, 1000  # as if it had waited for cells
    scheduler.submit(endless([9], name="b", namespace="b"))
    scheduler.step()
    assert sorted(running(scheduler)) == ["a0", "a1", "a3", "b"]


def test_a_slot_that_is_kept_for_a_request_is_not_free_for_another(monkeypatch) -> None:
    model, lookup = Model(2), Future[object]()
    scheduler = make_scheduler(model, parallel=4, context_shift=True)
    for number in range(3):
        scheduler.submit(endless([number], name=f"a{number}", namespace="a"))
    scheduler.step()
    monkeypatch.setattr(model, "begin_filters", lambda params: lookup)
    scheduler.submit(endless([9], name="b", namespace="b"))
    scheduler.step()  # it waits for its lookup
    scheduler.submit(endless([9], name="c", namespace="c"))
    lookup.set_result(None)
    monkeypatch.setattr(model, "begin_filters", lambda params: None)
    scheduler.step()
    assert sorted(running(scheduler)) == ["a0", "a1", "b", "c"]


def test_other_adapters_are_no_other_tenant() -> None:
    scheduler = make(1)
    for number in range(3):
        submit(scheduler, f"a{number}", f"a lora {number}")
    submit(scheduler, "b")
    assert order_of_admission(scheduler) == ["a0", "b", "a1", "a2"]


def test_a_preempted_request_is_the_first_of_its_tenant() -> None:
    scheduler = make(1)
    for name in ("a1", "a2", "b1"):
        submit(scheduler, name)
    scheduler.step()
    scheduler._interrupt(scheduler.running[0], "the context is full", lacks_cells=True)
    assert order_of_admission(scheduler) == ["a1", "b1", "a2"]


def test_requests_that_fill_the_context_hold_up_no_other_tenant() -> None:
    engine = Model(context_size=64, num_cells=64)
    scheduler = make_scheduler(engine)
    requests = [submit(scheduler, f"a{number}", max_tokens=60) for number in range(6)]
    while not scheduler.counters.preemptions:
        scheduler.step()
    requests += [submit(scheduler, "b0", max_tokens=10)]
    num_steps = count()
    answers = step_until(scheduler, lambda _: next(num_steps) == 14)
    assert answers["b0"].finish is not None
    check(engine, requests, play(scheduler, (), answers))


def test_answers_without_end_that_fill_the_context_keep_out_no_other_tenant() -> None:
    """One of them waits until there is room; another tenant's request need not."""
    scheduler = make_scheduler(Model(2, num_cells=1000), parallel=5, context_shift=True)
    for number in range(4):
        scheduler.submit(endless([number] * 130, name=f"a{number}", namespace="a"))
    step_until(scheduler, lambda _: len(scheduler.waiting) == 2 and len(scheduler.running) == 2)
    scheduler.submit(late := endless([5] * 390, 20, "late", namespace="b"))
    num_steps = count()
    answers = step_until(scheduler, lambda _: next(num_steps) == 50)
    check(scheduler.engine, [late], answers)


def test_a_tenant_without_a_slot_gets_one_of_a_tenant_with_many_at_once() -> None:
    engine = Model(context_size=256)
    scheduler = make_scheduler(engine)
    requests = [submit(scheduler, f"a{number}", max_tokens=40) for number in range(6)]
    for _ in range(5):
        scheduler.step()
    requests += [submit(scheduler, "b0")]
    scheduler.step()
    assert running(scheduler) == ["a0", "a1", "a2", "b0"]
    requests += [submit(scheduler, name) for name in ("b1", "b2")]
    scheduler.step()
    assert running(scheduler) == ["a0", "a1", "b0", "b1"]  # not three of one and one of the other
    check(engine, requests, play(scheduler))
    assert scheduler.counters.preemptions == 2


def test_no_request_is_put_back_for_a_tenant_that_has_as_many() -> None:
    scheduler = make(2)
    for name in ("a1", "b1", "c1"):
        submit(scheduler, name)
    assert order_of_admission(scheduler) == ["a1", "b1", "c1"]
    assert not scheduler.counters.preemptions


def test_a_full_queue_takes_a_request_of_a_tenant_that_has_fewer_there() -> None:
    engine = Model(context_size=256)
    scheduler = make_scheduler(engine, parallel=1, max_queue=4)
    kept = [submit(scheduler, f"a{number}") for number in range(5)][:-1]
    with pytest.raises(CapacityError, match="--max-queue is 4"):
        submit(scheduler, "a6")
    kept += [submit(scheduler, "b1")]
    answers = play(scheduler)
    check(engine, kept, answers)
    error = answers["a4"].error
    assert error is not None
    assert isinstance(error.error, QuotaError)
    assert "5 of 5 waiting requests are yours" in str(error.error)
    assert error.error.retry_after == 5


def test_tenants_that_fill_the_queue_together_keep_what_they_have() -> None:
    scheduler = make(1, max_queue=3)
    for name in ("a1", "a2", "b1", "b2"):
        submit(scheduler, name)
    with pytest.raises(CapacityError):
        submit(scheduler, "b3")
    submit(scheduler, "c1")  # of a, whose two are as many as b's
    with pytest.raises(CapacityError):
        submit(scheduler, "c2")
