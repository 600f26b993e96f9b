"""Waiting requests are admitted by tenants in turn: one that asks a lot delays itself."""

from __future__ import annotations

from tests.harness import EOS, Answer, Model, collect, make_scheduler

from headstart.sampling import SamplingParams
from headstart.scheduler.scheduler import _PREEMPTED, Scheduler
from headstart.types.request import Request


def submit(scheduler: Scheduler, name: str, namespace: str = "") -> None:
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    prompt = [byte % EOS for byte in name.encode()]
    scheduler.submit(
        Request(
            request_id=name,
            prompt=prompt,
            sampling=sampling,
            max_tokens=4,
            namespace=namespace or name[0],
        )
    )


def order_of_admission(scheduler: Scheduler) -> list[str]:
    """Run everything; the ids as they were admitted."""
    answers: dict[str, Answer] = {}
    admitted: list[str] = []
    while scheduler.has_work:
        scheduler.step()
        collect(scheduler, answers)
        names = [one.request.request_id for one in scheduler.running]
        admitted += [name for name in names if name not in admitted]
    return admitted


def test_a_tenant_that_asks_once_does_not_wait_for_one_that_asks_a_lot() -> None:
    scheduler = make_scheduler(Model(context_size=256), parallel=1)
    for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        submit(scheduler, name)
    assert order_of_admission(scheduler) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_who_was_served_longest_ago_is_next() -> None:
    scheduler = make_scheduler(Model(context_size=256), parallel=1)
    for name in ("b1", "a1"):
        submit(scheduler, name)
    assert order_of_admission(scheduler) == ["b1", "a1"]
    for name in ("a2", "a3", "b2"):
        submit(scheduler, name)
    assert order_of_admission(scheduler) == ["b2", "a2", "a3"]


def test_one_tenant_is_served_in_its_own_order() -> None:
    scheduler = make_scheduler(Model(context_size=256), parallel=2)
    names = [f"a{number}" for number in range(7)]
    for name in names:
        submit(scheduler, name)
    assert order_of_admission(scheduler) == names


def test_other_adapters_are_no_other_tenant() -> None:
    scheduler = make_scheduler(Model(context_size=256), parallel=1)
    for number in range(3):
        submit(scheduler, f"a{number}", f"a lora {number}")
    submit(scheduler, "b")
    assert order_of_admission(scheduler) == ["a0", "b", "a1", "a2"]


def test_preempted_requests_go_first() -> None:
    scheduler = make_scheduler(Model(context_size=256), parallel=1)
    for name in ("a1", "a2", "b1"):
        submit(scheduler, name)
    scheduler.step()
    scheduler.leave(scheduler.running[0], _PREEMPTED)
    assert order_of_admission(scheduler) == ["a1", "b1", "a2"]
