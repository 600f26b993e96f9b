"""What each speculator did: per request, in total, and in the log."""

from __future__ import annotations

import logging
import re
from collections import Counter
from dataclasses import replace

import pytest
from tests.harness import (
    AUTO,
    Answer,
    Clock,
    Model,
    Oracle,
    RandomController,
    fixed,
    make_requests,
    make_scheduler,
    make_speculators,
    run,
    run_checked,
    steps,
    submit_all,
)
from tests.planted import fail_at

from headstart.config import SpeculationConfig
from headstart.control.controller import Controller
from headstart.scheduler.prompt_cache import NO_ROOM
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.step import StepPlan
from headstart.types import CacheKind, DraftMode
from headstart.types.errors import EngineError, RequestError
from headstart.types.request import (
    FinishEvent,
    RequestStats,
    SpeculativeParams,
    error_event,
)
from headstart.types.speculation_stats import SpeculationStats
from headstart.worker.client import WorkerClient
from headstart.worker.loop import make_report
from headstart.worker.pipes import Message

CHAIN = ("suffix", "ngram-simple", "ngram-cache", "draft-model")


def stats_of(answers: dict[str, Answer]) -> list[RequestStats]:
    return [answer.stats for answer in answers.values()]


def chain_scheduler(
    engine: Model, spec: SpeculationConfig, controller: Controller | None = None
) -> Scheduler:
    return make_scheduler(
        engine, make_speculators(CHAIN, lambda: Model(2, skew=0.3)), spec, controller
    )


@pytest.mark.parametrize("spec", [fixed(4), AUTO, SpeculationConfig(spec="auto", draft_min=3)])
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_each_step_of_a_slot_is_a_draft_or_a_reason_of_every_speculator(
    spec: SpeculationConfig, seed
) -> None:
    wishes = (
        SpeculativeParams(),
        SpeculativeParams(types=("draft-model", "suffix")),
        SpeculativeParams(mode=DraftMode.FIXED),
        SpeculativeParams(mode=DraftMode.OFF),
    )
    requests = [replace(r, speculative=wishes[i % 4]) for i, r in enumerate(make_requests(12))]
    engine = Model(2)
    scheduler = chain_scheduler(engine, spec, None if seed is None else RandomController(seed))
    answers = run_checked(scheduler, requests)
    for request in requests:
        stats, wish = answers[request.request_id].stats, request.speculative
        allowed = () if wish.mode is DraftMode.OFF else wish.types or CHAIN
        assert list(stats.by_speculator) == list(allowed if stats.num_steps > 1 else ())
        for counts in stats.by_speculator.values():
            assert counts.num_drafts + counts.reasons.total() == stats.num_steps - 1
            assert counts.num_calls >= counts.num_offered >= counts.num_drafts
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
    scheduler = chain_scheduler(engine, AUTO, RandomController())
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
            counts = (share[total.name] for share in shares if total.name in share)
            assert total.stats == sum(counts, SpeculationStats())
        drafted = [total.stats.num_drafted for total in report.speculators]
        assert report.drafts.num_drafted == sum(drafted)
    assert report.drafts.num_drafted > 0


def test_the_second_of_two_fixed_speculators_is_outbid_and_not_even_asked() -> None:
    requests = make_requests(3)
    engine = Model()
    chain = [Oracle(engine, requests, wrong=0.0), *make_speculators(["suffix"], Model)]
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
            assert counts.num_offered > 0 == counts.num_drafts
            assert set(counts.reasons) <= {"below break-even", "no match", "max_tokens reached"}
    for stats in stats_of(run(make_scheduler(Model(), [one, other], AUTO, Stingy(1)), requests)):
        by = stats.by_speculator
        assert by["oracle"].num_drafts + by["worse"].num_drafts == stats.drafts.num_drafts > 0
        assert sum(counts.reasons.get("outbid", 0) for counts in by.values()) > 0
        assert "below break-even" not in by["oracle"].reasons


class ModelOracle(Oracle):
    is_model = True


class Resting(Controller):
    def __init__(self) -> None:
        super().__init__()
        self.may_ask_model_now = lambda speculator: False


def test_a_model_that_is_not_asked_has_a_reason_of_its_own() -> None:
    engine, requests = Model(), make_requests(2)
    scheduler = make_scheduler(engine, [ModelOracle(engine, requests)], AUTO, Resting())
    for stats in stats_of(run(scheduler, requests)):
        counts = stats.by_speculator["oracle"]
        assert counts.num_calls == 0 < counts.reasons["resting: its drafts did not pay"]


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
        num_missing += stats.drafts.reasons[NO_ROOM]
    assert num_missing == engine.num_asked // every > 0


def test_a_request_with_a_fixed_length_silences_no_speculator_for_others() -> None:
    requests, control = make_requests(4), Controller()
    scheduler = make_scheduler(engine := Model(), [Oracle(engine, requests)], fixed(4), control)
    scheduler.drafting._clock = Clock()  # asking takes as long as a step
    run(scheduler, requests)
    assert control.may_ask_now("oracle", 1)


def test_positions_are_counted_from_the_first_token_of_the_step() -> None:
    verified = Counter([(0, 3, 3), (0, 2, 0), (1, 2, 1)])
    stats = SpeculationStats(verified=verified, reasons=Counter(["no match"]))
    assert (stats.num_drafts, stats.num_drafts_accepted) == (3, 2)
    assert (stats.num_drafted, stats.drafted_by_position) == (7, (2, 3, 2))
    assert (stats.num_accepted, stats.accepted_by_position) == (4, (1, 2, 1))
    assert stats.accepted_histogram == (1, 1, 0, 1)
    twice = stats + stats
    assert twice.drafted_by_position == (4, 6, 4)
    assert (twice.num_rows_wasted, twice.reasons) == (6, {"no match": 2})
    assert SpeculationStats().drafted_by_position == SpeculationStats().accepted_histogram == ()


def logged(caplog: pytest.LogCaptureFixture, *events) -> list[str]:
    client = WorkerClient(lambda: None)  # type: ignore[return-value]  # never started
    caplog.clear()
    with caplog.at_level(logging.INFO, "headstart.worker.request_log"):
        client._on_message(Message(events))
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
    event = error_event("r", RequestError("top_k is -1"))
    assert logged(caplog, event) == ["request r refused: RequestError: top_k is -1"]
