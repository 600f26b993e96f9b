"""Speculators that break the contract: it costs them their drafts, and nobody else anything."""

from __future__ import annotations

import logging
import pickle
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
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
)

from headstart.sampling import SamplingParams
from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.speculators import Speculator
from headstart.testing import assert_lossless
from headstart.types import Capability, Decoded, Draft, DraftRequest, Logits
from headstart.worker.loop import make_report


class Careless(Speculator):
    """Returns drafts that break the contract."""

    name = "careless"

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft] * len(requests)


@pytest.mark.parametrize(
    "draft",
    [
        Draft([1, 2, 3], [], "careless"),  # no scores
        Draft([1, 2, 3], [0.5, 0.5, 0.5, 0.5, 0.5], "other"),  # too many, under a false name
        Draft([1] * 500, [1.0] * 500, "careless"),  # far too long
        Draft([99], [1.0], "careless"),  # no such token
        Draft([-1], [1.0], "careless"),
        Draft([1, 2], [float("nan"), 7.0], "careless"),
        Draft([1, 2], [-3.0, float("inf")], "careless"),
        Draft([1.5], [1.0]),
        Draft("ab", [1.0, 1.0]),
        Draft(np.array([[1, 2], [3, 4]]), [1.0, 1.0]),
        Draft(np.array([])),
        Draft((), reason=["no", "text"]),
    ],
    ids=["no scores", "many scores", "long", "beyond the vocabulary", "negative", "nan",
         "out of range", "no integer", "no tokens", "two dimensions",
         "empty array", "reason"],
)  # fmt: skip
@pytest.mark.parametrize("spec", [fixed(4), AUTO], ids=["fixed", "auto"])
def test_a_draft_that_breaks_the_contract_costs_no_request(draft: Draft, spec) -> None:
    requests = make_requests(5)
    engine = Model()
    scheduler = make_scheduler(engine, [Careless(draft)], spec)
    answers = play(scheduler, requests)
    check(engine, requests, answers)


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        ([float("nan")], "finite"),
        ([0.5, float("nan"), 0.5], "finite"),
        ([0.5, float("inf")], "finite"),
        ([0.5, -0.1], "0 or more"),
        ([np.float32("nan")], "finite"),
        ([None], "NoneType"),
    ],
)
def test_a_score_that_is_no_number_is_a_failure_and_teaches_control_nothing(
    scores: list, says: str
) -> None:
    requests = make_requests(3)
    engine = Model()
    scheduler = make_scheduler(engine, [Careless(Draft([1, 2, 3], scores))], AUTO)
    check(engine, requests, play(scheduler, requests))
    report = scheduler.drafting.speculators["careless"].report()
    assert says in report.failure
    assert (report.stats.num_offered, report.stats.num_drafted) == (0, 0)
    assert "careless" not in scheduler.drafting.controller.describe()["acceptance"]


@pytest.mark.parametrize(
    "draft",
    [
        Draft(np.array([1, 2, 3]), np.array([0.9, 0.8, 0.7], np.float32)),
        Draft([1, np.int32(2), 3], [0.9, 1, np.float64(0.7)]),
        Draft((1, 2, 3), (1.0, 1.0, 1.0)),
        Draft(array("i", [1, 2, 3])),
        Draft(range(1, 4), [1e308] * 3),
    ],
    ids=["numpy", "mixed", "tuple", "array", "huge"],
)
@pytest.mark.parametrize("spec", [fixed(2), AUTO], ids=["fixed", "auto"])
def test_a_draft_of_other_numbers_is_as_good_as_one_of_plain_ones(draft: Draft, spec) -> None:
    requests = make_requests(4)
    engine = Model()
    scheduler = make_scheduler(engine, [Careless(draft)], spec)
    answers = run(scheduler, requests)
    check(engine, requests, answers)
    assert scheduler.drafting.speculators["careless"].report().stats.num_offered > 0
    assert all(type(token) is int for answer in answers.values() for token in answer.tokens)
    cut = GuardedSpeculator(Careless(draft), SIZE).propose([DraftRequest(0, [1], 2)])[0]
    assert (cut.tokens, len(cut.confidence), cut.speculator) == ([1, 2], 2, "careless")
    assert {type(value) for value in (*cut.tokens, *cut.confidence)} == {int, float}


def test_reasons_that_are_never_the_same_are_not_all_kept() -> None:
    speculator = Careless(Draft())
    speculator.propose = lambda requests: [
        Draft(reason=f"no match in {len(r.tokens)} tokens") for r in requests
    ]
    request = replace(make_requests(1)[0], max_tokens=200, sampling=SamplingParams(ignore_eos=True))
    scheduler = make_scheduler(Model(), [speculator])
    reasons = run(scheduler, [request])["r0"].finish.stats.drafts.reasons
    assert len(reasons) < 80
    assert reasons["other"] > 100


@pytest.mark.parametrize("num_drafts", [0, 2])
def test_a_wrong_number_of_drafts_switches_the_speculator_off(
    num_drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    speculator = Careless(Draft([1], [1.0]))
    monkeypatch.setattr(speculator, "propose", lambda requests: [Draft([1], [1.0])] * num_drafts)
    requests = make_requests(1)
    engine = Model()
    scheduler = make_scheduler(engine, [speculator])
    answers = play(scheduler, requests)
    check(engine, requests, answers)
    stats = answers["r0"].finish.stats
    assert (
        stats.drafts.reasons
        == stats.by_speculator["careless"].reasons
        == {"speculator failed": stats.num_steps - 1}
    )


class Describing(Speculator):
    """Describes itself with anything, and cannot be closed."""

    name = "describing"

    def __init__(self, says: object) -> None:
        self._says = says

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft([1])] * len(requests)

    def describe(self) -> Any:
        if isinstance(self._says, Exception):
            raise self._says
        return self._says

    def close(self) -> None:
        raise OSError("the disk is full")


@pytest.mark.parametrize(
    "says", [KeyError("x"), {"a": object()}, {"a": 2**70}, [1], None, {"a": lambda: 1}]
)
def test_a_description_that_fails_costs_itself_only_and_is_logged_once(
    says: object, caplog
) -> None:
    engine, requests = Model(), make_requests(2)
    scheduler = make_scheduler(engine, [Describing(says)])
    with caplog.at_level(logging.ERROR):
        check(engine, requests, run(scheduler, requests))
        reports = [make_report(scheduler) for _ in range(3)]
    assert len(caplog.records) == 1
    assert "error" in reports[0].speculators[0].details
    assert "error" in scheduler.drafting.describe()["speculators"]["describing"]
    assert not reports[0].speculators[0].failure  # it drafts as before
    pickle.dumps(reports[0])


def test_a_description_is_told_in_plain_values() -> None:
    speculator = GuardedSpeculator(
        Describing({1: np.int64(2), "b": (np.float32(0.5), float("nan")), "c": Path}), SIZE
    )
    assert "error" in speculator.describe()
    speculator = GuardedSpeculator(
        Describing({1: np.int64(2), "b": (np.float32(0.5), float("nan"))}), SIZE
    )
    assert speculator.describe() == {"1": 2, "b": [0.5, None]}


def test_all_are_closed_though_one_cannot_be(caplog) -> None:
    class Closing(Careless):
        name = "closing"
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

    last = Closing(Draft())
    scheduler = make_scheduler(Model(), [Describing({}), last])
    with caplog.at_level(logging.ERROR):
        scheduler.drafting.close()
    assert last.is_closed
    assert [record.exc_info[0] for record in caplog.records] == [OSError]


@pytest.mark.parametrize(
    "tokens", [ZeroDivisionError(), "many", None, float("nan"), -5, np.int64(3), 2.0]
)
@pytest.mark.parametrize("spec", [fixed(4), AUTO], ids=["fixed", "auto"])
def test_a_model_that_cannot_say_how_much_it_lacks_costs_no_request(tokens: object, spec) -> None:
    class CatchUpEstimate(Careless):
        name = "reading"
        is_model = True

        def num_catch_up(self, seq_id: int, history: Sequence[int]) -> int:
            if isinstance(tokens, Exception):
                raise tokens
            return tokens  # type: ignore[return-value]  # the mistake under test

    engine, requests = Model(), make_requests(5)
    scheduler = make_scheduler(engine, [CatchUpEstimate(Draft([1, 2]))], spec)
    answers = play(scheduler, requests)
    check(engine, requests, answers)
    speculator = scheduler.drafting.speculators["reading"]
    if isinstance(tokens, int | float | np.int64) and tokens == tokens:
        assert not speculator.failure
        assert speculator.report().stats.num_calls or spec is AUTO
    else:
        assert speculator.failure.startswith("num_catch_up: ")
        assert not speculator.report().stats.num_calls
        assert set(answers["r1"].finish.stats.drafts.reasons) == {
            "speculator failed",
            "max_tokens reached",
        }


@pytest.mark.parametrize("rounds", [ZeroDivisionError(), "many", float("nan"), None, -5, 2.0])
def test_a_model_that_cannot_say_what_continuing_costs_costs_no_request(rounds: object) -> None:
    class Continues(Careless):
        name = "continues"
        is_model = True

        def rounds_behind(self, num_drafted: int) -> int | None:
            if isinstance(rounds, Exception):
                raise rounds
            return rounds  # type: ignore[return-value]  # the mistake under test

    engine, requests = Model(), make_requests(5)
    chain = [Oracle(engine, requests, wrong=0.0), Continues(Draft([1, 2]))]
    scheduler = make_scheduler(engine, chain, AUTO, RandomController())
    check(engine, requests, play(scheduler, requests))
    failure = scheduler.drafting.speculators["continues"].failure
    if rounds is None or (isinstance(rounds, int | float) and rounds == rounds):
        assert not failure
    else:
        assert failure.startswith("rounds_behind: ")


class Observing(Speculator):
    """Fails in `accept` on the sequences named; may not be shown them then, but the others."""

    name = "observing"
    needs = frozenset({Capability.LOGITS})

    def __init__(self, failing: Sequence[int] = ()) -> None:
        self._failing, self._failed = failing, set[int]()
        self.seen: list[list[int]] = []

    def begin(self, seq_id: int, prompt: Sequence[int], namespace: str = "") -> None:
        self._failed.discard(seq_id)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft([1, 2])] * len(requests)

    def observe(self, decoded: Decoded) -> None:
        assert (
            len(decoded.seq_ids)
            == len(decoded.positions)
            == len(decoded.tokens)
            == len(decoded.logits)
        )
        assert self._failed.isdisjoint(decoded.seq_ids.tolist())
        self.seen.append(sorted(set(decoded.seq_ids.tolist())))

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        if seq_id in self._failing:
            self._failed.add(seq_id)
            raise ValueError("not this one")


def test_rows_of_sequences_that_it_failed_on_are_not_shown_until_they_begin_again() -> None:
    engine, requests = Model(), make_requests(8)
    observing = Observing([0, 2])
    scheduler = make_scheduler(engine, [observing])
    check(engine, requests, play(scheduler, requests))
    assert scheduler.drafting.speculators["observing"].failure == "accept: ValueError: not this one"
    assert [1, 3] in observing.seen
    assert [0, 1, 2, 3] in observing.seen


def test_who_fails_in_observe_is_not_asked_again_for_those_sequences() -> None:
    class Blind(Observing):
        num_calls = 0

        def observe(self, decoded: Decoded) -> None:
            self.num_calls += 1
            raise ValueError("too dark")

    blind = Blind()
    requests = [
        replace(r, sampling=SamplingParams(ignore_eos=True), max_tokens=40)
        for r in make_requests(4)
    ]
    check(Model(), requests, play(make_scheduler(Model(), [blind]), requests))
    # when they are not known yet, and when they have begun
    assert blind.num_calls <= 2 * len(requests)


def test_the_logits_that_are_shown_cannot_be_changed() -> None:
    class Writing(Observing):
        def observe(self, decoded: Decoded) -> None:
            decoded.logits[:] = 0.0

    class Keeping(Model):
        def wait(self) -> Logits:
            self.last = super().wait()
            return self.last

    engine, requests = Keeping(), make_requests(4)
    scheduler = make_scheduler(engine, [Writing()])
    check(engine, requests, play(scheduler, requests))
    assert "read-only" in scheduler.drafting.speculators["observing"].failure
    assert engine.last.flags.writeable


def test_authors_are_told_of_every_failure() -> None:
    """`assert_lossless` raises what a server would only log."""
    with pytest.raises(KeyError):
        assert_lossless(lambda: Describing(KeyError("x")))
    with pytest.raises(OSError, match="disk"):
        assert_lossless(lambda: Describing({}))
    with pytest.raises(AssertionError, match="failed in propose: ValueError"):
        assert_lossless(lambda: Careless(Draft([99])))
    assert assert_lossless(lambda: Careless(Draft([1]))) > (0, 0)
