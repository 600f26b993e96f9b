"""Whose constraint is compiled when, and which answers get a lexer of their own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any

import pytest
from tests.harness import Clock, sequence_of, submit_all
from tests.unit.scheduler.constrained import (
    CONSTRAINTS,
    TOKENS,
    bytes_engine,
    make_constrained,
    make_scheduler,
)

from headstart.sampling.grammar.compiled import Compiled
from headstart.sampling.grammar.compiler import GrammarCompiler
from headstart.scheduler.constraint_queue import (
    MAX_RENEWED,
    QUEUE_SECONDS,
    RENEW_SECONDS,
    SHARE_SECONDS,
    ConstraintQueue,
)
from headstart.scheduler.sequence import Sequence as Active
from headstart.testing import ByteVocab
from headstart.types.constraint import Constraint, ConstraintKind
from headstart.types.errors import (
    CapacityError,
    HeadstartError,
    LexerLimitError,
    QuotaError,
    RequestError,
)

SHARE = 20.0  # seconds of compiling that a tenant has


class HandCompiler(GrammarCompiler):
    """Compiles when the test says so."""

    def __init__(self) -> None:
        super().__init__(ByteVocab())
        self.begun: list[str] = []
        self.unfinished: dict[str, Future[Compiled]] = {}

    def compile(self, constraint: Constraint) -> Future[Compiled]:
        self.begun.append(constraint.text)
        future: Future[Compiled] = Future()
        self._cached[constraint] = self.unfinished[constraint.text] = future
        return future

    def finish(self, text: str) -> None:
        done = Compiled(Constraint(kind=ConstraintKind.REGEX, text="a"), TOKENS)
        self.unfinished.pop(text).set_result(done)


def queued(clock: Clock, texts: dict[str, Sequence[str]]) -> tuple[ConstraintQueue, HandCompiler]:
    """A queue with these constraints of each tenant."""
    queue = ConstraintQueue(ByteVocab(), SHARE, clock)
    queue.compiler = compiler = HandCompiler()
    for tenant, constraints in texts.items():
        for text in constraints:
            add(queue, clock, tenant, text)
    return queue, compiler


def add(queue: ConstraintQueue, clock: Clock, tenant: str, text: str) -> None:
    queue.add(active(clock, tenant, text))


def active(clock: Clock, tenant: str, text: str, read: bytes = b"") -> Active:
    """A request; with `read`, one whose answer has begun."""
    constraint = Constraint(kind=ConstraintKind.REGEX, text=text)
    (request,) = make_constrained(1, constraint, 0.8)
    sequence = sequence_of(replace(request, request_id=text, namespace=tenant))
    sequence.submitted = clock.now
    if read:
        sequence.admitted = clock.now
        sequence.legality = Compiled(constraint, TOKENS).begin()
        for token in read:
            sequence.legality.read(token)
    return sequence


def ready(queue: ConstraintQueue) -> dict[str, object]:
    return {active.request.request_id: error for active, error in queue.take_ready()}


def compile_all(queue: ConstraintQueue, compiler: HandCompiler) -> list[str]:
    """Compile all that may be, also for an answer again; returns for whom."""
    before = len(compiler.begun)
    queue.take_ready()
    while compiler.unfinished:
        compiler.finish(next(iter(compiler.unfinished)))
        queue.take_ready()
    return compiler.begun[before:]


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


def test_an_answer_that_has_begun_goes_on_whatever_its_tenant_s_share_is() -> None:
    """What it takes to compile is counted all the same."""
    clock = Clock()
    queue, compiler = queued(clock, {"a": ["a1"]})
    clock.now += 3 * SHARE
    compiler.finish("a1")
    assert ready(queue) == {"a1": None}
    add(queue, clock, "a", "a2")  # it is alone
    add(queue, clock, "b", "b1")
    queue.add(active(clock, "a", "x+", b"xx"))
    add(queue, clock, "a", "a3")
    assert isinstance(ready(queue)["a3"], QuotaError)
    compiler.finish("a2")
    assert ready(queue) == {"a2": None}
    assert compiler.begun == ["a1", "a2", "b1", "x+"]
    before = queue._whole["a"]
    clock.now += 1.0
    compiler.finish("x+")
    assert ready(queue) == {"x+": None}
    assert queue._whole["a"] > before


def test_an_answer_that_has_begun_is_compiled_before_those_that_have_not() -> None:
    queue, compiler = queued(clock := Clock(), {"a": ["a1", "a2"]})
    queue.add(active(clock, "a", "x+", b"xx"))
    compiler.finish("a1")
    assert ready(queue) == {"a1": None}
    assert compiler.begun == ["a1", "x+"]


def test_few_answers_have_a_lexer_of_their_own_and_others_wait_for_one() -> None:
    clock = Clock()
    queue, compiler = queued(clock, {})
    answers = {
        text: active(clock, text, text, text[:1].encode())
        for text in (f"{number}x*" for number in range(9))
    }
    first, *_ = texts = [*answers]

    def go_on() -> list[str]:
        return compile_all(queue, compiler)

    for answer in answers.values():
        assert queue.renew(answer, LexerLimitError("too many states"))
        queue.add(answer)
    assert [*compiler.begun, *go_on()] == texts[:MAX_RENEWED]
    add(queue, clock, texts[-1], "new")
    go_on()
    assert compiler.begun[-1] == "new"  # shares its lexer
    clock.now += 9 * QUEUE_SECONDS
    assert go_on() == []
    assert len(queue) == 9 - MAX_RENEWED
    queue.release(answers[first])
    assert go_on() == texts[MAX_RENEWED : MAX_RENEWED + 1]


@pytest.mark.parametrize(("tenant", "num_places"), [("", MAX_RENEWED), ("a", MAX_RENEWED - 1)])
def test_a_tenant_with_a_key_leaves_a_lexer_to_others(tenant: str, num_places: int) -> None:
    clock = Clock()
    queue, compiler = queued(clock, {})
    for number in range(9):
        queue.add(active(clock, tenant, f"{number}x*", str(number).encode()))
    assert len([*compiler.begun, *compile_all(queue, compiler)]) == num_places
    queue.add(active(clock, "b", "9x*", b"9"))
    compile_all(queue, compiler)
    assert ("9x*" in compiler.begun) == bool(tenant)


def test_an_answer_that_waits_long_for_its_lexer_fails_and_says_why() -> None:
    clock = Clock()
    queue, compiler = queued(clock, {})
    clock.now += 2 * RENEW_SECONDS
    for number in range(MAX_RENEWED + 1):
        answer = active(clock, "", f"{number}x*", str(number).encode())
        answer.submitted = 0.0  # it has run since
        queue.add(answer)
    compile_all(queue, compiler)
    clock.now += RENEW_SECONDS - 1.0
    assert ready(queue) == {}
    clock.now += 2.0
    (error,) = ready(queue).values()
    assert isinstance(error, CapacityError)
    assert "compiled for it alone within 300 s, because others have such lexers" in str(error)
    assert not queue


def test_an_answer_that_waited_for_other_constraints_blames_no_lexer() -> None:
    queue, _ = queued(clock := Clock(), {"a": ["a1"], "b": ["b1"]})
    queue.add(active(clock, "", "x*", b"x"))
    clock.now += RENEW_SECONDS + 1.0
    (error,) = ready(queue).values()
    assert "because others are compiled before it" in str(error)


def test_an_answer_that_begins_shares_the_lexer_of_those_that_do() -> None:
    clock = Clock()
    queue, compiler = queued(clock, {})
    for number in range(9):
        unread = active(clock, str(number), "x+")
        assert unread.request.constraint is not None
        unread.legality = Compiled(unread.request.constraint, TOKENS).begin()
        assert queue.renew(unread, LexerLimitError("too many states"))
        queue.add(unread)
    assert compiler.begun == ["x+"]
    compiler.finish("x+")
    assert len(ready(queue)) == 1  # all have this name
    assert not queue


def test_the_lexer_of_an_answer_that_is_cancelled_is_not_kept() -> None:
    queue, compiler = queued(clock := Clock(), {})
    queue.add(active(clock, "a", "x+", b"xx"))
    assert compiler.begun == ["x+"]
    queue.remove("x+")
    compiler.finish("x+")
    assert not compiler._cached


def test_only_what_ends_a_lexer_gives_an_answer_another() -> None:
    queue, _ = queued(clock := Clock(), {})
    answer = active(clock, "a", "x+", b"x")
    assert not queue.renew(answer, RequestError("no token is left"))
    assert queue.renew(answer, LexerLimitError("too many states"))


def test_a_used_up_lexer_is_forgotten_by_an_answer_that_ends_with_it() -> None:
    queue, compiler = queued(clock := Clock(), {"a": ["x+"]})
    ((constraint, future),) = compiler._cached.items()
    answer = active(clock, "a", "x+", b"x")
    assert answer.legality is not None
    answer.legality._num_unread = 1  # it was renewed just now
    assert not queue.renew(answer, LexerLimitError("too many states"))
    assert compiler.cached(constraint) is future  # another one
    answer.compiled = future
    assert not queue.renew(answer, LexerLimitError("too many states"))
    assert compiler.cached(constraint) is None


def test_an_answer_with_a_new_lexer_goes_on_before_those_that_wait() -> None:
    scheduler = make_scheduler(bytes_engine(), parallel=1)
    first, *others = make_constrained(3, CONSTRAINTS["regex"], 0.8)
    submit_all(scheduler, [first, *(replace(one, constraint=None) for one in others)])
    (sequence,) = scheduler.compiling
    wait(scheduler.compiling.futures.values(), 60)
    scheduler._take_ready()
    assert scheduler._tenants.order(scheduler.waiting, [])[0] is sequence


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


def test_nobody_waits_for_a_constraint_whose_request_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end each wait at once while a slot's file is written."""
    scheduler, awaited = make_scheduler(bytes_engine()), list[Any]()
    scheduler.compiling.compiler = compiler = HandCompiler()
    scheduler.slot_actions.file = Future()
    scheduler.submit(active(Clock(), "a", "a1").request)
    scheduler.cancel("a1")
    compiler.finish("a1")
    scheduler.step()
    noted = "headstart.scheduler.scheduler.wait"
    monkeypatch.setattr(noted, lambda futures, *_: awaited.extend(futures))
    scheduler.step()
    assert awaited == [scheduler.slot_actions.file]
