"""What each speculator did: per request, in total, and in the log."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from tests.harness import (
    AUTO,
    Answer,
    Clock,
    Model,
    Oracle,
    RandomController,
    check,
    collect,
    fixed,
    make_requests,
    make_scheduler,
    make_speculators,
    play,
    run,
    run_checked,
    steps,
    submit_all,
)
from tests.planted import fail_at

from headstart.config import SpeculationConfig
from headstart.control.controller import Controller
from headstart.control.model_planner import REFUSED
from headstart.scheduler.step import StepPlan
from headstart.server.answer_numbers import timings
from headstart.types import CacheKind, Draft, DraftMode, DraftRequest
from headstart.types.errors import EngineError, RequestError
from headstart.types.request import (
    ErrorEvent,
    FinishEvent,
    RequestStats,
    SpeculativeParams,
    TokenEvent,
    VerifiedDraft,
)
from headstart.types.speculation_stats import SpeculationStats
from headstart.worker.client import WorkerClient
from headstart.worker.loop import make_report

CHAIN = ("suffix", "ngram-simple", "ngram-cache", "draft-model")


def stats_of(answers: dict[str, Answer]) -> list[RequestStats]:
    return [answer.stats for answer in answers.values()]


@pytest.mark.parametrize("spec", [fixed(4), AUTO, SpeculationConfig(spec="auto", draft_min=3)])
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_each_step_of_a_slot_is_a_draft_or_a_reason_of_every_speculator(spec, seed) -> None:
    wishes = (
        SpeculativeParams(),
        SpeculativeParams(types=("draft-model", "suffix")),
        SpeculativeParams(mode=DraftMode.FIXED),
        SpeculativeParams(mode=DraftMode.OFF),
    )
    requests = [replace(r, speculative=wishes[i % 4]) for i, r in enumerate(make_requests(12))]
    engine, controller = Model(2), None if seed is None else RandomController(seed)
    scheduler = make_scheduler(engine, make_speculators(CHAIN), spec, controller)
    answers = run_checked(scheduler, requests)
    for request in requests:
        stats, wish = answers[request.request_id].stats, request.speculative
        allowed = () if wish.mode is DraftMode.OFF else wish.types or CHAIN
        assert list(stats.by_speculator) == list(allowed if stats.num_steps > 1 else ())
        for counts in stats.by_speculator.values():
            assert counts.num_drafts + counts.reasons.total() == stats.num_steps - 1
            assert counts.num_calls >= counts.num_drafts_offered >= counts.num_drafts
            assert counts.num_drafts >= counts.num_drafts_accepted
            assert counts.num_drafted == sum(counts.drafted_by_position)
            assert counts.num_accepted == sum(counts.accepted_by_position)
            assert len(counts.drafted_by_position) == len(counts.accepted_by_position)
            assert counts.num_rows_wasted == counts.num_drafted - counts.num_accepted >= 0
        by_speculator = stats.by_speculator.values()
        assert sum(c.num_drafted for c in by_speculator) == stats.drafts.num_drafted
        assert sum(c.num_accepted for c in by_speculator) == stats.drafts.num_accepted
    assert sum(stats.drafts.num_drafted for stats in stats_of(answers)) > 0


def test_requests_and_totals_agree_also_while_they_run() -> None:
    requests = make_requests(10)
    engine = Model(2)
    scheduler = make_scheduler(engine, make_speculators(CHAIN), AUTO, RandomController())
    submit_all(scheduler, requests)
    ended: list[RequestStats] = []
    for _ in steps(scheduler):
        ended += [event.stats for event in scheduler.take_events() if hasattr(event, "stats")]
        report = make_report(scheduler)
        shares = [
            *(stats.by_speculator for stats in ended),
            *(slot.by_speculator for slot in report.slots),
        ]
        for total in report.speculators:
            counted = SpeculationStats()
            for share in shares:
                counted.add(share.get(total.name, SpeculationStats()))
            assert total.stats == counted
        drafted = [total.stats.num_drafted for total in report.speculators]
        assert report.drafts.num_drafted == sum(drafted)
    assert report.drafts.num_drafted > 0


def test_the_second_of_two_fixed_speculators_is_outbid_and_not_even_asked() -> None:
    requests = make_requests(3)
    engine = Model()
    chain = [Oracle(engine, requests, wrong=0.0), *make_speculators(["suffix"])]
    for stats in stats_of(run(make_scheduler(engine, chain), requests)):
        counts = stats.by_speculator["suffix"]
        assert (counts.num_calls, counts.reasons["outbid"]) == (0, stats.drafts.num_drafts)


class Stingy(Controller):
    """Verifies the first `length` tokens of what was taken, and says that nothing else pays."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length

    def assign_rows(self, plan: StepPlan) -> None:
        for answer in plan.answers:
            answer.num_verified = min(self._length, len(answer.draft))


def test_what_is_cut_to_nothing_is_below_break_even_and_so_is_what_was_worth_less() -> None:
    requests = make_requests(4)
    engine = Model()
    one, other = Oracle(engine, requests, wrong=0.0), Oracle(engine, requests, wrong=0.5)
    other.name = "worse"
    for stats in stats_of(run(make_scheduler(engine, [one, other], AUTO, Stingy(0)), requests)):
        for counts in stats.by_speculator.values():
            assert counts.num_drafts_offered > 0 == counts.num_drafts
            assert set(counts.reasons) <= {"below break-even", "no match", "max_tokens reached"}
    for stats in stats_of(run(make_scheduler(Model(), [one, other], AUTO, Stingy(1)), requests)):
        by = stats.by_speculator
        assert by["oracle"].num_drafts + by["worse"].num_drafts == stats.drafts.num_drafts > 0
        assert sum(counts.reasons.get("outbid", 0) for counts in by.values()) > 0
        assert "below break-even" not in by["oracle"].reasons


@pytest.mark.parametrize("drafts", [[], [Draft(), Draft([99])]])
def test_a_model_that_failed_to_draft_is_asked_nothing_more(drafts: list[Draft]) -> None:
    """Its answers would be worth nothing, and a second error would hide the first."""
    asked_after = list[bool]()

    class Failing(Oracle):
        is_model = True

        def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            return drafts[-len(requests) :]

        def num_catch_up(self, seq_id: int, history: Sequence[int]) -> int:
            asked_after.append(seq_id in model.failed)
            return 0

    engine, requests = Model(), make_requests(2)
    scheduler = make_scheduler(engine, [Failing(engine, requests)], fixed(4))
    model = scheduler.drafting.speculators["oracle"]
    check(engine, requests, play(scheduler, requests))
    assert model.failure.startswith("propose: ")
    assert asked_after
    assert not any(asked_after)


@pytest.mark.parametrize("mode", [None, DraftMode.FIXED])
def test_a_resting_model_drafts_for_a_length_set_by_hand_and_not_for_those_beside_it(mode) -> None:
    engine, requests = Model(), make_requests(2)
    requests[0] = replace(requests[0], speculative=SpeculativeParams(mode=mode))
    model, control = Oracle(engine, requests), Controller()
    model.is_model, control.begin_model_step = True, lambda speculator: REFUSED
    scheduler = make_scheduler(engine, [model], AUTO, control)
    first, auto = (one.by_speculator["oracle"] for one in stats_of(run(scheduler, requests)))
    assert (first.num_calls > 0) == (mode is DraftMode.FIXED)
    assert auto.num_calls == 0 < auto.reasons[REFUSED]
    assert not set(auto.reasons) & {"below break-even", "tried on another slot first"}


@pytest.mark.parametrize("every", [1, 3])
def test_where_a_state_cannot_be_kept_a_step_has_one_reason_and_no_draft(every: int) -> None:
    """Issue 28, point 16: 60 steps had 117 reasons."""

    class Forgetful(Model):
        num_asked = 0

        def keep_for_draft(self, seq_id: int) -> bool:
            self.num_asked += 1
            return bool(self.num_asked % every) and super().keep_for_draft(seq_id)

    engine, requests = Forgetful(2, cache_kind=CacheKind.CHECKPOINT), make_requests(6)
    scheduler = make_scheduler(engine, [Oracle(engine, requests)], fixed(4))
    answers = run_checked(scheduler, requests)
    num_missing = 0
    for stats in stats_of(answers):
        # a step that reads again what was accepted is neither
        num_drafts = stats.drafts.num_drafts
        for counts in (stats.drafts, *stats.by_speculator.values()):
            assert counts.num_drafts == num_drafts
            assert counts.reasons == stats.drafts.reasons
            assert num_drafts + counts.reasons.total() <= max(0, stats.num_steps - 1)
            assert num_drafts or counts.reasons.total() == max(0, stats.num_steps - 1)
        num_missing += stats.drafts.reasons["no memory for the state before a draft"]
    assert num_missing == engine.num_asked // every > 0


def test_a_request_with_a_fixed_length_silences_no_speculator_for_others() -> None:
    requests, control = make_requests(4), Controller()
    scheduler = make_scheduler(engine := Model(), [Oracle(engine, requests)], fixed(4), control)
    scheduler.drafting._clock = Clock()  # asking takes as long as a step
    run(scheduler, requests)
    assert control.begin_text_step("oracle", 1)


def test_positions_are_counted_from_the_first_token_of_the_step() -> None:
    verified = Counter([(0, 3, 3), (0, 2, 0), (1, 2, 1)])
    stats = SpeculationStats(verified=verified, reasons=Counter(["no match"]))
    assert (stats.num_drafts, stats.num_drafts_accepted) == (3, 2)
    assert (stats.num_drafted, stats.drafted_by_position) == (7, (2, 3, 2))
    assert (stats.num_accepted, stats.accepted_by_position) == (4, (1, 2, 1))
    assert stats.accepted_histogram == (1, 1, 0, 1)
    stats.add(stats)
    assert stats.drafted_by_position == (4, 6, 4)
    assert (stats.num_rows_wasted, stats.reasons) == (6, {"no match": 2})
    assert SpeculationStats().drafted_by_position == SpeculationStats().accepted_histogram == ()


def logged(caplog: pytest.LogCaptureFixture, *events) -> list[str]:
    client = WorkerClient(lambda: None)  # type: ignore[return-value]  # never started
    caplog.clear()
    with caplog.at_level(logging.INFO, "headstart.worker.request_log"):
        client._hear(None, list(events))
    return [record.getMessage() for record in caplog.records]


def test_the_log_line_says_who_drafted_what_and_why_nobody_did(caplog) -> None:
    verified = Counter({(0, 3, 3): 1, (0, 4, 2): 1, (0, 2, 0): 1})
    reasons = Counter({"no match": 4, "outbid": 1})
    suffix = SpeculationStats(verified=verified, reasons=reasons)
    model = SpeculationStats(num_calls=2, reasons=Counter({"below break-even": 8}))
    stats = RequestStats(
        num_emitted=13,
        num_steps=8,
        drafts=SpeculationStats(verified=verified, reasons=Counter({"no match": 4})),
        by_speculator={"suffix": suffix, "draft-model": model},
    )
    both = scheduler_line(caplog, stats)
    assert "draft acceptance = 0.55556 (5 accepted / 9 drafted), acceptance length = 1.62; " in both
    assert "; suffix 5/9 in 3 drafts, 4 rows wasted (4 no match, 1 outbid); " in both
    assert "; draft-model no drafts (8 below break-even); " in both
    assert both.endswith("; without a draft: 4 no match")
    alone = scheduler_line(caplog, replace(stats, by_speculator={"suffix": suffix}))
    assert alone.endswith("; suffix 5/9 in 3 drafts, 4 rows wasted; without a draft: 4 no match")
    drafts = SpeculationStats(reasons=Counter({"no match": 4}))
    none = replace(stats, drafts=drafts, by_speculator={"suffix": SpeculationStats()})
    assert scheduler_line(caplog, none).endswith("eos, no drafts; without a draft: 4 no match")


def scheduler_line(caplog: pytest.LogCaptureFixture, stats: RequestStats) -> str:
    (line,) = logged(caplog, FinishEvent("r", "eos", stats))
    assert line.startswith("request r: slot -1, prompt 0 tokens (0 cached), TTFT ")
    return line


@pytest.mark.parametrize(("num_emitted", "rate"), [(0, 0.0), (1, 0.0), (13, 24.0)])
def test_the_log_line_has_the_tokens_per_second_of_the_answer(caplog, num_emitted, rate) -> None:
    stats = RequestStats(num_emitted=num_emitted, generation_seconds=0.5)
    assert f", {num_emitted} tokens at {rate} tokens/s, " in scheduler_line(caplog, stats)
    assert timings(stats)["predicted_per_second"] == rate


def test_a_request_that_fails_has_a_line_too(caplog) -> None:
    requests = make_requests(3)
    engine = Model()
    scheduler = make_scheduler(engine, [Oracle(engine, requests)])
    submit_all(scheduler, requests, 5)
    scheduler.take_events()
    fail_at(engine, [0], EngineError("the graph\ncould not be computed"))
    scheduler.step()
    lines = logged(caplog, *scheduler.take_events())
    assert len(lines) == scheduler.counters.requests_failed > 0
    why = "failed with EngineError: the graph could not be computed"
    for line in lines:
        assert re.search(
            r"^request r\d: slot \d, prompt \d+ tokens .* tokens/s, "
            rf"{why}, draft acc.*; oracle \d+/\d+ in ",
            line,
        )
        assert "\n" not in line


def test_a_request_that_is_refused_has_a_short_one(caplog) -> None:
    event = ErrorEvent("r", RequestError("top_k is -1"))
    assert logged(caplog, event) == ["request r refused: RequestError: top_k is -1"]


TEXTS_AND_MODEL = ("suffix", "ngram-cache", "draft-model")


@cache
def steps_of(is_auto: bool, wants_provenance: bool) -> dict[str, list[TokenEvent]]:
    """The steps of twelve requests; their answers are what they must be."""
    engine = Model(2)
    speculators = make_speculators(TEXTS_AND_MODEL)
    spec, controller = (AUTO, RandomController(3)) if is_auto else (fixed(4), None)
    scheduler = make_scheduler(engine, speculators, spec, controller)
    requests = [replace(r, wants_provenance=wants_provenance) for r in make_requests(12)]
    answers = dict[str, Answer]()
    submit_all(scheduler, requests)
    events: list[TokenEvent] = []
    for _ in steps(scheduler):
        told = (event for event in scheduler.outcomes._events if isinstance(event, TokenEvent))
        events += [event for event in told if event.tokens]
        collect(scheduler, answers)
    check(engine, requests, answers)
    return {r.request_id: [e for e in events if e.request_id == r.request_id] for r in requests}


def step_of(event: TokenEvent) -> VerifiedDraft:
    assert event.step is not None
    return event.step


@pytest.mark.parametrize("is_auto", [False, True])
def test_accepted_tokens_are_the_first_of_the_draft_and_a_rejected_one_is_followed_by_another(
    is_auto,
):
    num_drafts, num_rejections = 0, 0
    for events in steps_of(is_auto, wants_provenance=True).values():
        for event in events:
            num_accepted = sum(map(bool, event.sources))
            step = step_of(event)
            assert step.draft[:num_accepted] == event.tokens[:num_accepted]
            assert step.sources[:num_accepted] == event.sources[:num_accepted]
            assert len(step.draft) == len(step.sources) == len(step.survival)
            assert step.target_ms >= 0
            offered, own = [tokens for _, tokens in step.offers], step.draft
            assert not own or any(own[: len(tokens)] == tokens[: len(own)] for tokens in offered)
            num_drafts += bool(own)
            if num_accepted < min(len(own), len(event.tokens)):
                num_rejections += 1
                assert event.tokens[num_accepted] != own[num_accepted]
    assert num_drafts
    assert num_rejections


def test_chances_fall_along_a_draft_and_are_unknown_with_fixed_lengths():
    chances = [
        [-1.0 if chance is None else chance for chance in step_of(event).survival]
        for events in steps_of(True, wants_provenance=True).values()
        for event in events
        if len(step_of(event).draft) > 1
    ]
    assert chances
    for some in chances:
        assert some[0] <= 1
        assert sorted(some, reverse=True) == list(some)
        assert some[-1] >= 0
    for events in steps_of(False, wants_provenance=True).values():
        assert all(chance is None for event in events for chance in step_of(event).survival)


def test_who_does_not_ask_gets_nothing():
    for events in steps_of(True, wants_provenance=False).values():
        assert all(event.step is None for event in events)
