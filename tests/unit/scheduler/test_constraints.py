"""Constrained requests: the same text whoever drafts, at any temperature, alone or with others."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import replace
from functools import cache
from typing import Any
from weakref import ReferenceType, ref

import pytest
from llguidance import LLParserLimits
from tests import harness
from tests.harness import AUTO, SMALL_OPTIONS, Answer, RandomController, fixed, run, submit_all
from tests.states import make_any
from tests.unit.scheduler.constrained import (
    COMPILER,
    CONSTRAINTS,
    VOCAB,
    bytes_engine,
    check,
    expected,
    make_constrained,
    make_scheduler,
)

from headstart.config import SpeculationConfig
from headstart.sampling.grammar import compiled, state
from headstart.sampling.grammar.state import GrammarState
from headstart.scheduler import constraint_queue
from headstart.scheduler.step import StepRecord
from headstart.speculators import SPECULATORS, Speculator
from headstart.types import CacheKind
from headstart.types.constraint import Constraint, ConstraintKind
from headstart.types.errors import CapacityError, RequestError
from headstart.types.request import TokenEvent

EVERY = {
    f"{kind} {temperature}": replace(
        make_constrained(3, constraint, temperature)[index], request_id=f"{kind} {temperature}"
    )
    for kind, constraint in [*CONSTRAINTS.items(), ("none", None)]
    for index, temperature in enumerate((0.0, 0.8, 1.5))
}


@cache
def right(name: str) -> Answer:
    return expected(bytes_engine(), EVERY[name])


def check_every(drafters: Sequence[Speculator], spec: SpeculationConfig, **parts: Any) -> None:
    """Requests of every kind and temperature, in one batch, have their texts."""
    # else the pretended clock goes on while they are compiled
    wait(map(COMPILER.compile, CONSTRAINTS.values()), 60)
    requests, engine = [*EVERY.values()], bytes_engine()
    answers = run(make_scheduler(engine, drafters, spec, **parts), requests)
    harness.check(engine, requests, answers, lambda _, request: right(request.request_id))


def speculators(*names: str) -> list[Speculator]:
    return [make_any(name, bytes_engine, VOCAB, SMALL_OPTIONS) for name in names]


@pytest.mark.parametrize(("parallel", "spec"), [(1, fixed(6)), (4, AUTO)], ids=["alone", "beside"])
@pytest.mark.parametrize("name", sorted(SPECULATORS))
def test_the_text_is_the_same_with_every_speculator(name, parallel, spec) -> None:
    check_every(speculators(name), spec, parallel=parallel)


@pytest.mark.parametrize("seed", range(3))
def test_how_far_control_lets_drafts_go_does_not_show(seed: int) -> None:
    drafters = speculators("suffix", "ngram-simple", "draft-model")
    check_every(drafters, AUTO, controller=RandomController(seed))


def test_a_text_that_is_complete_ends_at_once() -> None:
    """No step is spent on a token that could only end the turn."""
    engine = bytes_engine()
    yes = Constraint(kind=ConstraintKind.REGEX, text="yes|no")
    (request,) = make_constrained(1, yes, 0.8)
    answer = run(make_scheduler(engine), [request])["r0"]
    assert answer.text in (b"yes", b"no")
    assert answer.reason == "eos"


@pytest.mark.parametrize("cache_kind", list(CacheKind))
def test_a_preempted_request_goes_on_where_its_constraint_stood(cache_kind: CacheKind) -> None:
    lines = Constraint(kind=ConstraintKind.REGEX, text="([a-f]{2},){40}")
    requests = make_constrained(4, lines, 0.8, max_tokens=80)
    engine = bytes_engine(num_cells=300, cache_kind=cache_kind)
    scheduler = make_scheduler(engine, speculators("suffix"))
    answers = run(scheduler, requests)
    assert scheduler.counters.preemptions > 0
    check(bytes_engine(), requests, answers)


def test_a_stop_string_ends_a_constrained_text() -> None:
    engine = bytes_engine()
    request = make_constrained(1, CONSTRAINTS["json_schema"], 0.8)[0]
    request = replace(request, stop=(b'"tags"',))
    scheduler = make_scheduler(engine, speculators("suffix"))
    answer = run(scheduler, [request])["r0"]
    assert answer.reason == "word"
    assert answer.text in (b'{"name": "%s", ' % name for name in (b"Ann", b"Bob", b"Anton"))


def test_log_probabilities_of_a_constrained_text() -> None:
    """Before the filters they are the model's own; after them those of the legal tokens."""
    engine = bytes_engine()
    request = make_constrained(1, CONSTRAINTS["json_schema"], 0.8)[0]
    raw = replace(request, num_logprobs=3)
    post = replace(raw, request_id="post", post_sampling_probs=True)
    scheduler = make_scheduler(engine, speculators("suffix"))
    answers = run(scheduler, [raw, post])
    text = answers["post"].tokens
    assert answers["r0"].tokens == text
    assert [entry.token for entry in answers["r0"].logprobs] == text
    assert all(entry.logprob < 0.0 for entry in answers["r0"].logprobs)
    assert answers["post"].logprobs[0].logprob == 0.0  # `{` was the only legal token
    assert answers["post"].logprobs[0].alternatives() == [(ord("{"), 0.0)]
    assert all(entry.logprob > float("-inf") for entry in answers["post"].logprobs)


def test_a_constraint_that_cannot_be_compiled_refuses_its_request_alone() -> None:
    engine = bytes_engine()
    good, bad = make_constrained(2, CONSTRAINTS["regex"], 0.8)
    bad = replace(bad, constraint=Constraint(kind=ConstraintKind.REGEX, text="a(b"))
    answers = run(make_scheduler(engine), [bad, good])
    assert answers["r1"].error is not None
    assert isinstance(answers["r1"].error.error, RequestError)
    assert "unclosed group" in str(answers["r1"].error.error)
    check(engine, [good], answers)


def test_a_request_can_be_cancelled_while_its_constraint_is_compiled() -> None:
    scheduler = make_scheduler(bytes_engine())
    (request,) = make_constrained(1, CONSTRAINTS["regex"], 0.8)
    scheduler.submit(request)
    assert scheduler.has_work
    scheduler.cancel("r0")
    scheduler.step()
    assert not scheduler.has_work
    assert not any(isinstance(event, TokenEvent) for event in scheduler.take_events())


def test_requests_whose_constraints_compile_count_as_waiting() -> None:
    scheduler = make_scheduler(bytes_engine())
    scheduler.config = replace(scheduler.config, max_queue=1)
    requests = make_constrained(6, CONSTRAINTS["regex"], 0.8)
    submit_all(scheduler, requests[:5])
    with pytest.raises(CapacityError):
        scheduler.submit(requests[5])


def test_a_grammar_too_complex_for_its_text_ends_that_request_alone(monkeypatch) -> None:
    limits = LLParserLimits(max_items_in_row=30, verbose_errors=False)
    monkeypatch.setattr(compiled, "LIMITS", limits)
    engine = bytes_engine()
    hostile = Constraint(kind=ConstraintKind.LARK, text='start: s\ns: s s | "a" | "b" | "c" | "e"')
    bad, good = make_constrained(2, hostile, 0.8)
    bad = replace(bad, sampling=replace(bad.sampling, ignore_eos=True))
    good = replace(good, constraint=CONSTRAINTS["gbnf"])
    answers = run(make_scheduler(engine, speculators("suffix")), [bad, good])
    assert answers["r0"].error is not None
    assert "max is 30" in str(answers["r0"].error.error)
    check(engine, [good], answers)


@pytest.mark.parametrize("cache_kind", list(CacheKind))
@pytest.mark.parametrize("name", ["", "suffix"])
def test_answers_that_use_up_a_lexer_together_go_on_in_one_of_their_own(
    monkeypatch: pytest.MonkeyPatch, name: str, cache_kind: CacheKind
) -> None:
    """Its limit counts the states that all answers of a constraint need, and their drafts."""
    limits = LLParserLimits(max_lexer_states=150, verbose_errors=False)
    monkeypatch.setattr(compiled, "LIMITS", limits)
    monkeypatch.setattr(state, "MIN_RENEWED", 1)
    engine = bytes_engine(cache_kind=cache_kind)
    hard = Constraint(kind=ConstraintKind.REGEX, text="[ab]*a[ab]{20}xyz[ab]*a[ab]{20}xyz")
    requests = make_constrained(4, hard, 0.8, max_tokens=100)
    scheduler = make_scheduler(engine, speculators(name) if name else [])
    answers = run(scheduler, requests)
    num_renewed = scheduler.counters.preemptions
    assert num_renewed > 0
    assert not scheduler.drafting.failure
    check(engine, requests, answers)
    check(engine, requests[:1], run(scheduler, requests[:1]))  # in another, which is new
    assert scheduler.counters.preemptions == num_renewed or name


def test_an_answer_that_ends_gives_its_lexer_to_one_that_waits(monkeypatch) -> None:
    """Its place too, whatever still refers to the answer."""
    limits = LLParserLimits(max_lexer_states=150, verbose_errors=False)
    monkeypatch.setattr(compiled, "LIMITS", limits)
    monkeypatch.setattr(state, "MIN_RENEWED", 1)
    monkeypatch.setattr(constraint_queue, "MAX_RENEWED", 1)
    engine = bytes_engine()
    hard = Constraint(kind=ConstraintKind.REGEX, text="[ab]*a[ab]{20}xyz[ab]*a[ab]{20}xyz")
    requests = make_constrained(4, hard, 0.8, max_tokens=100)
    scheduler = make_scheduler(engine)
    found = dict[int, ReferenceType[GrammarState]]()

    def look(record: StepRecord) -> None:
        states = [result.sequence.legality for result in record.results]
        found.update((id(one), ref(one)) for one in states if one is not None)

    scheduler.readers.append(look)
    check(engine, requests, run(scheduler, requests))
    assert scheduler.counters.preemptions > 1
    gc.collect()
    assert [one() for one in found.values()] == [None] * len(requests)
