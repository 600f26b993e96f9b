"""Speculators that break the contract, fail, or change what they are shown: it costs them their
drafts and nobody else anything, and the failure says what to mend.
"""

from __future__ import annotations

import logging
import pickle
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from tests.harness import (
    AUTO,
    SIZE,
    Model,
    Oracle,
    RandomController,
    check,
    fixed,
    make_requests,
    make_scheduler,
    play,
    run,
    run_checked,
)

from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.speculators import Speculator
from headstart.speculators.suffix import SuffixSpeculator
from headstart.testing import assert_lossless
from headstart.types import LAST_STATE, DecodedStates, Draft, DraftRequest
from headstart.types.sampling_params import SamplingParams
from headstart.worker.loop import make_report

SPECS = pytest.mark.parametrize("spec", [fixed(4), AUTO], ids=["fixed", "auto"])
MODES = pytest.mark.parametrize(
    ("spec", "control"),
    [(fixed(4), None), (AUTO, None), (AUTO, RandomController())],
    ids=["fixed", "auto", "random"],
)


class Broken(Speculator):
    """Drafts the same for all, or what a function makes of the requests; does something in calls
    of some names ("request": for each request of `propose`).
    """

    name = "broken"

    def __init__(self, answer: Any = None, **does: Callable[[Any], object]) -> None:
        draft = answer or Draft([1, 2, 3])
        self._answer = answer if callable(answer) else lambda requests: [draft] * len(requests)
        self._does = does

    def _call(self, name: str, given: object = None) -> Any:
        return self._does[name](given) if name in self._does else None

    def begin(self, seq_id: int, text: Sequence[int], namespace: str = "") -> None:
        self._call("begin", text)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = self._answer(requests)
        for request in list(requests):
            self._call("request", request)
        self._call("propose", requests)
        return drafts

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        self._call("accept", emitted)

    def end(self, seq_id: int) -> None:
        self._call("end", seq_id)

    def save_sequence(self, seq_id: int, namespace: str) -> Any:
        return self._call("save_sequence")

    def time_decodes(self, clock: object) -> Any:
        return self._call("time_decodes")

    def describe(self) -> Any:
        return self._call("describe") if "describe" in self._does else {}

    def close(self) -> None:
        self._call("close")


def raising(error: BaseException) -> Callable[[Any], None]:
    def fail(given: object) -> None:
        raise error

    return fail


@SPECS
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "propose returned None but must return a list of Draft"),
        ({1: Draft([1])}, "must return a list of Draft"),
        (Draft([1]), "must return a list of Draft"),
        ([], "propose returned 0 drafts for 1 requests; return one per request"),
        ([Draft(), Draft()], "propose returned 2 drafts for 1 requests"),
        ([None], "propose returned None where a Draft was expected; return Draft()"),
        ([[1, 2]], "propose returned [1, 2] where a Draft was expected"),
        ([Draft(token for token in [1])], "Draft.tokens is <generator object"),
        ([Draft({1, 2})], "Draft.tokens is {1, 2} but must be a list of ints"),
        ([Draft([1.5])], "ints as tokens"),
        ([Draft("ab")], "ints as tokens"),
        ([Draft(np.ones((2, 2), int))], "ints as tokens"),
        ([Draft([1], 0.5)], "Draft.confidence is 0.5 but must be a list of floats"),
        ([Draft([1], None)], "Draft.confidence is None"),
        ([Draft([1, 2], [None])], "NoneType"),
        ([Draft([1, 2, 3], [0.5, float("nan"), 0.5])], "leave confidence out"),
        ([Draft([1, 2], [np.float32("nan")])], "finite"),
        ([Draft([1, 2], [0.5, float("inf")])], "finite"),
        ([Draft([1, 2], [0.5, -0.1])], "0 or more"),
        ([Draft([7, 32])], "token 32, but the ids of the target are 0 to 31"),
        ([Draft([-1])], "token -1, but the ids of the target are 0 to 31"),
        ([Draft(reason=None)], "reason is None but must be a text"),
    ],
)
def test_a_wrong_answer_teaches_nothing_and_is_explained_once_with_the_remedy(
    answer: Any, says: str, spec, caplog
) -> None:
    engine, requests = Model(), make_requests(1)
    scheduler = make_scheduler(engine, [Broken(lambda requests: answer)], spec)
    answers = play(scheduler, requests)
    check(engine, requests, answers)
    (report,) = scheduler.outcomes.report()
    assert says in report.failure
    assert len(caplog.records) == 1
    assert says in caplog.text
    assert (report.stats.num_drafts_offered, report.stats.num_drafted) == (0, 0)
    assert "broken" not in scheduler.drafting.controller.describe()["acceptance"]
    stats = answers["r0"].stats
    reasons = stats.by_speculator["broken"].reasons
    assert stats.drafts.reasons == reasons == {"speculator failed": stats.num_steps - 1}


@SPECS
@pytest.mark.parametrize(
    "draft",
    [
        Draft(np.array([1, 2, 3]), np.array([0.9, 0.8, 0.7], np.float32)),
        Draft([1, np.int32(2), 3], [0.9, 1, np.float64(0.7)]),
        Draft((1, 2, 3), (1.0, 1.0, 1.0)),
        Draft(array("i", [1, 2, 3])),
        Draft(range(1, 4), [1e308] * 3),
        Draft([1, 2, 3], [0.5] * 5, "other"),  # too many scores, under a false name
        Draft([1, 2] * 250, [1.0] * 500),  # far too long
        (Draft([1, 2, 3]) for _ in iter(int, 1)),
    ],
    ids=["numpy", "mixed", "tuple", "array", "huge", "many scores", "long", "generator"],
)
def test_a_draft_of_other_numbers_is_as_good_as_one_of_plain_ones(draft: Any, spec) -> None:
    def lazy(requests: Sequence[DraftRequest]) -> Any:
        return (next(draft) for _ in requests)

    make = Broken if isinstance(draft, Draft) else lambda _: Broken(lazy)
    requests = make_requests(4)
    scheduler = make_scheduler(Model(), [make(draft)], spec)
    answers = run_checked(scheduler, requests)
    assert scheduler.outcomes.total.by_speculator["broken"].num_drafts_offered > 0
    assert all(type(token) is int for answer in answers.values() for token in answer.tokens)
    cut = GuardedSpeculator(make(draft), SIZE).propose([DraftRequest(0, [1], 2)])[0]
    assert (cut.tokens, len(cut.confidence), cut.speculator) == ([1, 2], 2, "broken")
    assert {type(value) for value in (*cut.tokens, *cut.confidence)} == {int, float}


def test_an_empty_array_is_no_draft() -> None:
    requests = make_requests(4)
    scheduler = make_scheduler(Model(), [Broken(Draft(np.array([])))])
    run_checked(scheduler, requests)


def test_reasons_that_are_never_the_same_are_not_all_kept() -> None:
    speculator = Broken(
        lambda requests: [Draft(reason=f"no match in {len(r.tokens)} tokens") for r in requests]
    )
    request = replace(make_requests(1)[0], max_tokens=200, sampling=SamplingParams(ignore_eos=True))
    scheduler = make_scheduler(Model(), [speculator])
    reasons = run(scheduler, [request])["r0"].stats.drafts.reasons
    assert len(reasons) < 80
    assert reasons["other"] > 100


@MODES
@pytest.mark.parametrize(
    ("call", "do", "says"),
    [
        ("request", lambda request: request.tokens.append(5), "list(tokens)"),
        ("request", lambda request: request.tokens.sort(), "list(tokens)"),
        ("request", lambda request: request.tokens.pop(), "list(tokens)"),
        ("request", lambda request: request.tokens.__setitem__(-1, 5), "list(tokens)"),
        ("request", lambda request: request.tokens.__iadd__([1]), "list(tokens)"),
        ("begin", lambda prompt: prompt.append(5), "list(tokens)"),
        ("accept", lambda emitted: emitted.append(5), "accept: "),
        ("request", raising(SystemExit(3)), "propose: "),
        ("accept", raising(SystemExit(3)), "accept: "),
        ("end", raising(SystemExit(3)), "end: "),
        *((n, raising(ZeroDivisionError(n)), n) for n in ("begin", "propose", "accept", "end")),
    ],
)
def test_one_that_fails_or_changes_tokens_is_off_for_those_requests_and_changes_no_text(
    call: str, do: Callable[[Any], object], says: str, spec, control, caplog
) -> None:
    engine, requests = Model(2), make_requests(6)
    broken = Broken(**{call: do})
    chain = [broken, SuffixSpeculator()]
    scheduler = make_scheduler(engine, chain, spec, control, parallel=2)
    check(engine, requests, play(scheduler, requests))
    speculator = scheduler.drafting.speculators["broken"]
    assert speculator.failure.startswith({"request": "propose"}.get(call, call) + ": ")
    assert says in speculator.failure
    assert len(caplog.records) == 1
    num_calls = scheduler.outcomes.total.by_speculator["broken"].num_calls
    broken._does.clear()
    later = make_requests(2, seed=1)
    check(engine, later, play(scheduler, later))
    stats = scheduler.outcomes.total.by_speculator["broken"]
    assert stats.num_calls > num_calls, "new requests are drafted for again"


@MODES
@pytest.mark.parametrize(
    ("call", "do"),
    [
        ("request", lambda request: setattr(request, "max_tokens", 10**6)),
        ("request", lambda request: setattr(request, "seq_id", 77)),
        ("propose", lambda requests: requests.clear()),
        ("propose", lambda requests: requests.reverse()),
    ],
    ids=["limit", "sequence", "clear", "reverse"],
)
def test_a_request_that_is_changed_changes_no_text(call: str, do, spec, control) -> None:
    requests = make_requests(6)
    chain = [Broken(**{call: do}), SuffixSpeculator()]
    scheduler = make_scheduler(Model(2), chain, spec, control)
    run_checked(scheduler, requests)


class NamelessError(Exception):
    """Has no message that can be read."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ({"propose": raising(OSError("no \udc80"))}, "propose: OSError: no ?"),
        ({"propose": raising(NamelessError())}, "propose: NamelessError"),
        ({"answer": lambda requests: [Draft(reason="no \udc80")] * len(requests)}, ""),
        ({"describe": lambda _: {"a": "\udc80"}}, ""),
        ({"describe": raising(OSError("no \udc80"))}, ""),
    ],
)
def test_whatever_a_speculator_says_can_be_reported(does, says, monkeypatch) -> None:
    # xdist cannot pass on a log with these names
    monkeypatch.setattr(logging.Logger, "exception", lambda *arguments: None)
    scheduler = make_scheduler(Model(), [Broken(**does)])
    play(scheduler, make_requests(1))
    report = make_report(scheduler).speculators[0]
    assert report.failure == says
    orjson.dumps([report.failure, report.details, dict(report.stats.reasons)])


@pytest.mark.parametrize("state", [5, "abc", [1, 2], np.zeros(4), memoryview(b"abc"), SystemExit()])
def test_a_saved_state_that_is_no_bytes_costs_no_request_and_is_not_kept(state: object) -> None:
    does = raising(state) if isinstance(state, SystemExit) else lambda _: state
    engine, requests = Model(2), make_requests(12)
    chain = [Broken(save_sequence=does)]
    scheduler = make_scheduler(engine, chain, parallel=2, cache_ram=10)
    check(engine, requests, play(scheduler, requests))
    assert scheduler.counters.prompts_saved
    assert "save_sequence" in scheduler.drafting.speculators["broken"].failure


@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit(3)])
def test_one_that_cannot_time_itself_is_measured_later(error: BaseException) -> None:
    speculator = GuardedSpeculator(Broken(time_decodes=raising(error)), SIZE)
    assert speculator.time_decodes(lambda: 0.0) is None


@pytest.mark.parametrize(
    "says",
    [KeyError("x"), SystemExit(3), {"a": object()}, {"a": 2**70}, [1], None, {"a": lambda: 1}],
)
def test_a_description_that_fails_costs_itself_only_and_is_logged_once(says, caplog) -> None:
    describe = raising(says) if isinstance(says, BaseException) else lambda _: says
    requests = make_requests(2)
    scheduler = make_scheduler(Model(), [Broken(describe=describe)])
    with caplog.at_level(logging.ERROR):
        run_checked(scheduler, requests)
        reports = [make_report(scheduler) for _ in range(3)]
    assert len(caplog.records) == 1
    assert "error" in reports[0].speculators[0].details
    assert "error" in scheduler.drafting.describe()["speculators"]["broken"]
    assert not reports[0].speculators[0].failure  # it drafts as before
    pickle.dumps(reports[0])


def test_a_description_is_told_in_plain_values() -> None:
    told = {1: np.int64(2), "b": (np.float32(0.5), float("nan"))}
    speculator = GuardedSpeculator(Broken(describe=lambda _: told), SIZE)
    assert speculator.describe() == {"1": 2, "b": [0.5, None]}


def test_all_are_closed_though_one_cannot_be(caplog) -> None:
    closed: list[object] = []
    first, last = Broken(close=raising(OSError("the disk is full"))), Broken(close=closed.append)
    last.name = "last"
    scheduler = make_scheduler(Model(), [first, last])
    with caplog.at_level(logging.ERROR):
        scheduler.drafting.close()
    assert closed
    assert [record.exc_info[0] for record in caplog.records] == [OSError]
    assert "its data may not be written" in caplog.text


class Unsure(Broken):
    """A model that answers its questions with anything."""

    is_model = True

    def num_catch_up(self, seq_id: int, history: Sequence[int]) -> Any:
        return self._call("num_catch_up") if "num_catch_up" in self._does else 0


@pytest.mark.parametrize(
    "says", [ZeroDivisionError(), "many", None, float("nan"), -5, np.int64(3), 2.0]
)
@pytest.mark.parametrize("control", [None, RandomController()], ids=["auto", "random"])
def test_a_model_that_cannot_say_what_a_draft_takes_costs_no_request(says: object, control) -> None:
    engine, requests = Model(), make_requests(5)
    does = {"num_catch_up": raising(says) if isinstance(says, Exception) else lambda _: says}
    chain = [Oracle(engine, requests, wrong=0.0), Unsure(Draft([1, 2]), **does)]
    scheduler = make_scheduler(engine, chain, AUTO, control)
    check(engine, requests, play(scheduler, requests))
    report = scheduler.drafting.speculators["broken"]
    if isinstance(says, int | float | np.int64) and says == says:
        assert not report.failure
    else:
        assert report.failure.startswith("num_catch_up: ")
        assert not scheduler.outcomes.total.by_speculator["broken"].num_calls


def test_rows_of_sequences_that_it_failed_on_are_not_shown_until_they_end() -> None:
    failed, seen = set[int](), list[list[int]]()

    class Observing(Broken):
        needs_states = True
        state_layers = frozenset({LAST_STATE})

        def end(self, seq_id: int) -> None:
            failed.discard(seq_id)

        def observe_states(self, decoded: DecodedStates) -> None:
            states = decoded.states[LAST_STATE]
            rows = (decoded.seq_ids, decoded.positions, decoded.tokens, states)
            assert len(set(map(len, rows))) == 1
            assert failed.isdisjoint(decoded.seq_ids.tolist())
            seen.append(sorted(set(decoded.seq_ids.tolist())))

        def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
            if seq_id in (0, 2):
                failed.add(seq_id)
                raise ValueError("not this one")

    engine, requests = Model(), make_requests(8)
    scheduler = make_scheduler(engine, [Observing()])
    check(engine, requests, play(scheduler, requests))
    assert scheduler.drafting.speculators["broken"].failure == "accept: ValueError: not this one"
    assert [1, 3] in seen
    assert [0, 1, 2, 3] in seen


def test_authors_are_told_of_every_failure() -> None:
    """`assert_lossless` raises what a server would only log."""
    with pytest.raises(KeyError):
        assert_lossless(lambda: Broken(describe=raising(KeyError("x"))))
    with pytest.raises(OSError, match="disk"):
        assert_lossless(lambda: Broken(close=raising(OSError("the disk is full"))))
    with pytest.raises(AssertionError, match="failed in propose: ValueError"):
        assert_lossless(lambda: Broken(Draft([99])))
    assert assert_lossless(lambda: Broken(Draft([1]))) > (0, 0)
