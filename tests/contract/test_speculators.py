"""What every registered speculator promises. A new one gets these tests by being registered."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import pytest
from tests.harness import (
    AUTO,
    SMALL_OPTIONS,
    Model,
    RandomController,
    fixed,
    make_requests,
    make_scheduler,
    run_checked,
)
from tests.states import make_any

from headstart.speculators import SPECULATORS, Speculator
from headstart.testing import CONTRACT, LetterVocab

every = pytest.mark.parametrize("name", sorted(SPECULATORS))
every_pair = pytest.mark.parametrize(
    ("name", "other"), list(itertools.combinations(sorted(SPECULATORS), 2))
)


def make(name: str, *, small: bool = False) -> Speculator:
    """Like the server; `small` matches short texts."""
    options = SMALL_OPTIONS if small else {}
    return make_any(name, lambda: Model(2, skew=0.3), LetterVocab(), options)


@every
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
def test_it_keeps_the_contract(name: str, promise, small: bool) -> None:
    promise(lambda: make(name, small=small))


@every
def test_it_is_registered_under_its_name(name: str) -> None:
    assert SPECULATORS[name].name == name


@every
@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
def test_output_is_identical_with_and_without_it(name: str, temperature: float) -> None:
    requests = make_requests(8, temperature)
    for spec, controller in (
        *((fixed(length), None) for length in (1, 4, 16)),
        (AUTO, None),
        (AUTO, RandomController()),
    ):
        scheduler = make_scheduler(Model(2), [make(name, small=True)], spec, controller)
        run_checked(scheduler, requests)


@every_pair
def test_output_is_identical_in_a_chain_with_any_other(name: str, other: str) -> None:
    requests = [replace(r, max_tokens=16) for r in make_requests(6)]
    orders = ((name, other, fixed(4), None), (other, name, AUTO, RandomController()))
    for first, second, spec, controller in orders:
        chain = [make(first, small=True), make(second, small=True)]
        scheduler = make_scheduler(Model(2), chain, spec, controller)
        run_checked(scheduler, requests)


@pytest.mark.parametrize("name", sorted(n for n, kind in SPECULATORS.items() if kind.is_model))
def test_a_model_that_is_timed_between_requests_drafts_on(name: str) -> None:
    requests, engine = make_requests(6), Model(2)
    scheduler = make_scheduler(engine, [make(name, small=True)], fixed(4))
    run_checked(scheduler, requests[:3])
    guarded = scheduler.drafting.speculators[name]
    assert guarded.time_decodes(time.perf_counter) is not None
    num_before = scheduler.outcomes.total.by_speculator[name].num_drafts
    run_checked(scheduler, requests[3:])
    assert not guarded.failure
    assert scheduler.outcomes.total.by_speculator[name].num_drafts > num_before
