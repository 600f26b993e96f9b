"""Constrained requests: the same text whoever drafts, at any temperature, alone or with others."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from llguidance import LLParserLimits
from tests.harness import (
    AUTO,
    SMALL_OPTIONS,
    Clock,
    RandomController,
    fixed,
    run,
    sequence_of,
    submit_all,
)
from tests.states import make_any
from tests.unit.scheduler.constrained import (
    CONSTRAINTS,
    TOKENS,
    VOCAB,
    bytes_engine,
    check,
    make_constrained,
    make_scheduler,
)

from headstart.config import SchedulerConfig
from headstart.control.controller import Controller
from headstart.sampling.grammar import compiled
from headstart.sampling.grammar.compiled import Compiled
from headstart.sampling.grammar.compiler import GrammarCompiler
from headstart.scheduler.constraint_queue import QUEUE_SECONDS, SHARE_SECONDS, ConstraintQueue
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.scheduler import Scheduler
from headstart.speculators import SPECULATORS, Speculator
from headstart.testing import ByteVocab
from headstart.types import CacheKind
from headstart.types.constraint import Constraint, ConstraintKind
from headstart.types.errors import (
    CapacityError,
    HeadstartError,
    NotSupportedError,
    QuotaError,
)
from headstart.types.request import TokenEvent

every_kind = pytest.mark.parametrize("kind", list(CONSTRAINTS))


def speculators(*names: str) -> list[Speculator]:
    return [make_any(name, bytes_engine, VOCAB, SMALL_OPTIONS) for name in names]


@every_kind
@pytest.mark.parametrize("name", sorted(SPECULATORS))
def test_the_text_is_the_same_with_every_speculator(kind: str, name: str) -> None:
    """One request of each temperature, one after the other and together."""
    requests = [
        make_constrained(3, CONSTRAINTS[kind], temperature)[index]
        for index, temperature in enumerate((0.0, 0.8, 1.5))
    ]
    for parallel, spec in ((1, fixed(6)), (4, AUTO)):
        engine = bytes_engine()
        scheduler = make_scheduler(engine, speculators(name), spec, parallel=parallel)
        check(engine, requests, run(scheduler, requests))


@every_kind
@pytest.mark.parametrize("seed", range(3))
def test_how_far_control_lets_drafts_go_does_not_show(kind: str, seed: int) -> None:
    engine, requests = bytes_engine(), make_constrained(6, CONSTRAINTS[kind], 0.8)
    drafters = speculators("suffix", "ngram-simple", "draft-model")
    scheduler = make_scheduler(engine, drafters, AUTO, RandomController(seed))
    check(engine, requests, run(scheduler, requests))


def test_requests_with_and_without_a_constraint_share_a_batch() -> None:
    engine, kinds = bytes_engine(), [None, *CONSTRAINTS.values()]
    requests = [
        replace(one, constraint=kinds[i]) for i, one in enumerate(make_constrained(6, None, 0.8))
    ]
    check(engine, requests, run(make_scheduler(engine, speculators("suffix")), requests))


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


def test_choices_of_one_prompt_follow_their_constraints_apart() -> None:
    engine = bytes_engine()
    first = make_constrained(1, CONSTRAINTS["json_schema"], 1.5)[0]
    requests = [
        replace(first, request_id=f"r{n}", sampling=replace(first.sampling, seed=n))
        for n in range(4)
    ]
    answers = run(make_scheduler(engine, speculators("suffix")), requests)
    check(engine, requests, answers)
    assert len({answer.text for answer in answers.values()}) > 1


def test_a_constraint_that_cannot_be_compiled_refuses_its_request_alone() -> None:
    engine = bytes_engine()
    good, bad = make_constrained(2, CONSTRAINTS["regex"], 0.8)
    bad = replace(bad, constraint=Constraint(kind=ConstraintKind.REGEX, text="a(b"))
    answers = run(make_scheduler(engine), [bad, good])
    assert answers["r1"].error is not None
    assert answers["r1"].error.error == "RequestError"
    assert "unclosed group" in answers["r1"].error.message
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


SHARE = 20.0  # seconds of compiling that a tenant has


class HandCompiler(GrammarCompiler):
    """Compiles when the test says so."""

    def __init__(self) -> None:
        super().__init__(ByteVocab())
        self.begun: list[str] = []

    def compile(self, constraint: Constraint) -> Future[Compiled]:
        self.begun.append(constraint.text)
        future: Future[Compiled] = Future()
        self._cached[constraint] = future
        return future

    def finish(self, text: str) -> None:
        (future,) = (one for key, one in self._cached.items() if key.text == text)
        future.set_result(Compiled(Constraint(kind=ConstraintKind.REGEX, text="a"), TOKENS))


def queued(clock: Clock, texts: dict[str, Sequence[str]]) -> tuple[ConstraintQueue, HandCompiler]:
    """A queue with these constraints of each tenant."""
    compiler = HandCompiler()
    queue = ConstraintQueue(compiler, SHARE, clock)
    for tenant, constraints in texts.items():
        for text in constraints:
            add(queue, clock, tenant, text)
    return queue, compiler


def add(queue: ConstraintQueue, clock: Clock, tenant: str, text: str) -> None:
    (request,) = make_constrained(1, Constraint(kind=ConstraintKind.REGEX, text=text), 0.8)
    sequence = sequence_of(replace(request, request_id=text, namespace=tenant))
    sequence.submitted = clock.now
    queue.add(sequence)


def ready(queue: ConstraintQueue) -> dict[str, object]:
    return {active.request.request_id: error for active, error in queue.take_ready()}


def test_constraints_are_compiled_of_two_tenants_at_once_and_of_each_in_turn() -> None:
    """Slow constraints of one tenant hold up no other's."""
    queue, compiler = queued(Clock(), {"a": ["a1", "a2", "a3"], "b": ["b1"], "c": ["c1", "c2"]})
    assert compiler.begun == ["a1", "b1"]
    for text, next_one in (("b1", "c1"), ("c1", "c2"), ("a1", "a2"), ("c2", None), ("a2", "a3")):
        compiler.finish(text)
        assert ready(queue) == {text: None}
        assert next_one is None or compiler.begun[-1] == next_one
    compiler.finish("a3")
    assert ready(queue) == {"a3": None}
    assert not queue


def test_requests_with_one_constraint_wait_for_one_compilation() -> None:
    queue, compiler = queued(Clock(), {"a": ["x", "y"], "b": ["x"]})
    compiler.finish("x")
    assert len(queue.take_ready()) == 2
    assert compiler.begun == ["x", "y"]


def test_long_constraints_of_many_requests_are_compared_once() -> None:
    """Each comparison reads a megabyte; once in each step, hundreds took longer than the step."""
    compared = list[str]()

    class Text(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(self)
            return str.__eq__(self, other)

    queue, _ = queued(Clock(), {"a": [Text("x") for _ in range(50)]})
    for _ in range(20):
        assert ready(queue) == {}
    assert len(compared) < 150


def test_waiting_for_other_constraints_is_no_fault_of_the_constraint() -> None:
    queue, compiler = queued(clock := Clock(), {"a": ["slow", "next"]})
    clock.now += QUEUE_SECONDS + 1.0
    assert isinstance(ready(queue)["next"], CapacityError)
    assert len(queue) == 1
    compiler.finish("slow")
    assert ready(queue) == {"slow": None}
    assert compiler.begun == ["slow"]


def test_a_tenant_has_its_share_of_compiling_while_others_have_constraints_too() -> None:
    """Issue 28: what takes long may be asked for in turn, but not without end."""
    clock = Clock()
    queue, compiler = queued(clock, {})
    for text in ("a1", "a2", "a3"):  # it is alone
        add(queue, clock, "a", text)
        clock.now += SHARE
        compiler.finish(text)
        assert ready(queue) == {text: None}
    add(queue, clock, "b", "b1")
    add(queue, clock, "a", "a4")
    refusal = ready(queue)["a4"]
    assert isinstance(refusal, QuotaError)
    assert refusal.quota == "constraints"
    assert refusal.retry_after <= SHARE_SECONDS
    assert "took more than 20 s" in str(refusal)
    add(queue, clock, "a", "a1")  # is compiled
    assert ready(queue) == {"a1": None}
    clock.now += refusal.retry_after
    compiler.finish("b1")
    add(queue, clock, "a", "a5")
    compiler.finish("a5")
    assert ready(queue) == {"b1": None, "a5": None}


def test_a_tenant_whose_neighbour_has_its_whole_share_again_is_alone() -> None:
    clock = Clock()
    queue, compiler = queued(clock, {"b": ["b1"]})
    clock.now += 1.0
    compiler.finish("b1")  # it has its whole share again in 30 s
    assert ready(queue) == {"b1": None}
    add(queue, clock, "a", "a1")
    clock.now += 60.0
    compiler.finish("a1")
    assert ready(queue) == {"a1": None}
    add(queue, clock, "a", "a2")
    assert ready(queue) == {}
    assert compiler.begun == ["b1", "a1", "a2"]


def test_requests_that_wait_do_not_each_look_at_the_shares_of_all_tenants() -> None:
    looks = list[None]()

    class Shares(dict[str, float]):
        def items(self) -> Any:
            looks.append(None)
            return super().items()

    queue, _ = queued(Clock(), {"a": [f"a{number}" for number in range(200)], "b": ["b1"]})
    queue._whole = Shares({"c": 100.0})
    assert ready(queue) == {}
    assert len(looks) < 10


def test_what_is_compiled_while_the_shares_are_looked_at_counts_too() -> None:
    clock = Clock()
    queue, compiler = queued(clock, {"a": ["a1"], "b": ["b1"]})
    compiled = list[str]()

    class Shares(dict[str, float]):
        def items(self) -> Any:  # a thread compiles a1 just then
            found = [*super().items()]
            if not compiled:
                compiled.append("a1")
                compiler.finish("a1")
            return found

    clock.now += SHARE
    queue._whole = Shares()
    compiler.finish("b1")
    add(queue, clock, "b", "b2")
    ready(queue)
    assert queue._whole.keys() == {"a", "b"}


def test_only_a_refusal_is_kept() -> None:
    queue, compiler = queued(Clock(), {"a": ["x"]})
    ((constraint, future),) = compiler._cached.items()
    future.set_exception(OSError("no more processes"))
    assert isinstance(ready(queue)["x"], HeadstartError)
    assert compiler.cached(constraint) is None


def test_requests_whose_constraints_compile_count_as_waiting() -> None:
    scheduler = make_scheduler(bytes_engine())
    scheduler.config = replace(scheduler.config, max_queue=1)
    requests = make_constrained(6, CONSTRAINTS["regex"], 0.8)
    submit_all(scheduler, requests[:5])
    with pytest.raises(CapacityError):
        scheduler.submit(requests[5])


def test_a_grammar_too_complex_for_its_text_ends_that_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = LLParserLimits(max_items_in_row=30, verbose_errors=False)
    monkeypatch.setattr(compiled, "LIMITS", limits)
    engine = bytes_engine()
    hostile = Constraint(kind=ConstraintKind.LARK, text='start: s\ns: s s | "a" | "b" | "c" | "e"')
    bad, good = make_constrained(2, hostile, 0.8)
    bad = replace(bad, sampling=replace(bad.sampling, ignore_eos=True))
    good = replace(good, constraint=CONSTRAINTS["gbnf"])
    answers = run(make_scheduler(engine, speculators("suffix")), [bad, good])
    assert answers["r0"].error is not None
    assert "max is 30" in answers["r0"].error.message
    check(engine, [good], answers)


@pytest.mark.parametrize("cache_kind", list(CacheKind))
@pytest.mark.parametrize("name", ["", "suffix"])
def test_answers_that_use_up_a_lexer_together_go_on_in_one_of_their_own(
    monkeypatch: pytest.MonkeyPatch, name: str, cache_kind: CacheKind
) -> None:
    """Its limit counts the states that all answers of a constraint need, and their drafts."""
    limits = LLParserLimits(max_lexer_states=150, verbose_errors=False)
    monkeypatch.setattr(compiled, "LIMITS", limits)
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


def test_without_a_grammar_engine_a_constraint_is_refused() -> None:
    engine = bytes_engine()
    drafting = Drafting([], AUTO, Controller())
    scheduler = Scheduler(engine, ByteVocab(), drafting, SchedulerConfig())
    with pytest.raises(NotSupportedError, match="no grammar engine"):
        scheduler.submit(make_constrained(1, CONSTRAINTS["regex"], 0.8)[0])
