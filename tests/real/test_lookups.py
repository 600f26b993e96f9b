"""What DRY looks for is looked up in a thread, and no other request pays for it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from threading import Event, current_thread
from typing import Any

import pytest
from tests.harness import play, step_until, submit_all
from tests.models import tiny_llama
from tests.planted import threads_of
from tests.real.answers import Setting, open_setting
from tests.real.support import byte_requests, without_draft

from headstart.engine import filters, library
from headstart.scheduler import scheduler as scheduler_module
from headstart.scheduler.scheduler import Scheduler
from headstart.types.request import Request


class Lookups:
    """What was looked up, which takes as long as a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.breakers: list[str] = []  # the first of each
        self.has_begun, self.is_free = Event(), Event()
        self._init = library.api.llama_sampler_init_dry
        monkeypatch.setattr(library.api, "llama_sampler_init_dry", self._look_up)

    def _look_up(self, *given: Any) -> Any:
        self.breakers.append(given[-2][0].decode())
        self.has_begun.set()
        assert self.is_free.wait(100)
        return self._init(*given)


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lookups]:
    yield (made := Lookups(monkeypatch))
    made.is_free.set()
    filters._THREAD.submit(int).result()  # the next test does not see the last lookup of this one


def scheduler_of(folder: Path, num_slots: int) -> Scheduler:
    setting = Setting("off", 0, num_slots, exact=False)
    return open_setting(setting, without_draft(tiny_llama(folder / "tiny.gguf")))


def asking(name: str, tenant: str = "") -> Request:
    """A request with a breaker of its own, which is its name."""
    request = byte_requests(1)[0]
    sampling = replace(request.sampling, dry_multiplier=1.0, dry_sequence_breakers=(name, "b"))
    return replace(request, request_id=name, sampling=sampling, namespace=tenant)


def test_while_the_breakers_of_one_request_are_looked_up_the_others_go_on(tmp_path, lookups):
    scheduler, plain = scheduler_of(tmp_path, 2), byte_requests(1)[0]
    scheduler.submit(asking("dry"))
    scheduler.submit(replace(plain, sampling=replace(plain.sampling, ignore_eos=True)))
    name = plain.request_id
    results = step_until(scheduler, lambda told: name in told and told[name].end)
    assert lookups.has_begun.wait(100)  # the thread has a low priority
    assert lookups.breakers == ["dry"]
    assert "dry" not in results
    lookups.is_free.set()
    assert play(scheduler, ())["dry"].finish


def test_the_breakers_of_several_requests_are_looked_up_once(tmp_path, lookups: Lookups) -> None:
    scheduler = scheduler_of(tmp_path, 4)
    lookups.is_free.set()
    results = play(scheduler, [replace(asking("x"), request_id=name) for name in "abcd"])
    assert all(results[name].finish for name in "abcd")
    assert lookups.breakers == ["x"]


@pytest.mark.parametrize("num_slots", [1, 2])
def test_a_step_with_nothing_else_to_do_waits_for_what_is_looked_up(
    num_slots: int, tmp_path: Path, lookups: Lookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(awaited: list[Any], *_: object) -> object:
        if awaited:
            lookups.is_free.set()
        return futures.wait(awaited, 20)

    monkeypatch.setattr(scheduler_module, "wait", wait)
    scheduler = scheduler_of(tmp_path, num_slots)
    submit_all(scheduler, map(asking, "xy"), 3)
    assert scheduler.running


def test_nobody_waits_for_the_breakers_of_requests_that_are_gone(tmp_path, lookups: Lookups):
    scheduler = scheduler_of(tmp_path, 2)
    for i in range(20):
        scheduler.submit(asking(f"gone {i}"))
        scheduler.step()
        scheduler.cancel(f"gone {i}")
    lookups.is_free.set()
    play(scheduler, [asking("next")])
    *before, last = lookups.breakers
    assert last == "next"
    assert len(before) <= 1  # what the thread had begun


def test_the_breakers_of_one_tenant_wait_for_one_lookup_of_another_that_has_many(tmp_path, lookups):
    scheduler = scheduler_of(tmp_path, 4)
    submit_all(scheduler, (asking(f"many {i}", "many") for i in range(6)), 1)
    scheduler.submit(asking("one", "other"))
    lookups.is_free.set()
    play(scheduler, ())
    assert lookups.breakers[:2] == ["many 0", "one"]
    assert len(lookups.breakers) == 7


def test_what_dry_looks_for_is_copied_and_freed_beside_the_loop(tmp_path, monkeypatch) -> None:
    copied, freed = (
        threads_of(monkeypatch, library.api, f"llama_sampler_{name}") for name in ("clone", "free")
    )
    scheduler = scheduler_of(tmp_path, 2)
    for i in range(12):  # more than are kept
        request = asking(f"breaker {i % 10}")
        sampling = replace(request.sampling, xtc_probability=0.5, temperature=1.0)
        scheduler.submit(replace(request, request_id=str(i), sampling=sampling))
    while scheduler.has_work:
        scheduler.step()
    assert len(copied) == 12
    assert freed
    assert current_thread().name not in {*copied, *freed}
