"""What each speculator did: per request, in total, and in the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import reduce
from operator import add

import pytest
from tests.unit.scheduler.harness import (
    AUTO,
    Answer,
    Model,
    Oracle,
    RandomController,
    check,
    fixed,
    make_requests,
    make_scheduler,
    make_speculators,
    run,
)

from headstart.config import SpeculationConfig
from headstart.control.controller import Controller
from headstart.control.values import SlotDraft, Step
from headstart.errors import EngineError, InvalidParameterError
from headstart.sampling import SamplingParams
from headstart.scheduler.client import WorkerClient
from headstart.scheduler.loop import Message, make_report
from headstart.scheduler.request import (
    DraftCounts,
    FinishEvent,
    Request,
    RequestStats,
    SpeculativeParams,
    error_event,
)
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.speculator_stats import SpeculatorStats
from headstart.types import SequenceMode

CHAIN = ("suffix", "ngram-simple", "recycling", "draft-model")
COUNTS = [field.name for field in fields(DraftCounts)]


def stats_of(answers: dict[str, Answer]) -> list[RequestStats]:
    return [answer.finish.stats for answer in answers.values()]


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
        SpeculativeParams(mode=SequenceMode.FIXED),
        SpeculativeParams(mode=SequenceMode.OFF),
    )
    requests = [replace(r, speculative=wishes[i % 4]) for i, r in enumerate(make_requests(12))]
    engine = Model(2)
    scheduler = chain_scheduler(engine, spec, None if seed is None else RandomController(seed))
    answers = run(scheduler, requests)
    check(engine, requests, answers)
    for request in requests:
        stats, wish = answers[request.request_id].finish.stats, request.speculative
        allowed = () if wish.mode is SequenceMode.OFF else wish.types or CHAIN
        assert list(stats.drafted_by) == list(allowed if stats.num_steps > 1 else ())
        for counts in stats.drafted_by.values():
            assert counts.drafts + sum(counts.reasons.values()) == stats.num_steps - 1
            assert counts.calls >= counts.offered >= counts.drafts >= counts.drafts_accepted
            assert counts.drafted == sum(counts.drafted_by_position)
            assert counts.accepted == sum(counts.accepted_by_position)
            assert len(counts.drafted_by_position) == len(counts.accepted_by_position)
            assert counts.rows_wasted == counts.drafted - counts.accepted >= 0
        assert sum(c.drafted for c in stats.drafted_by.values()) == stats.num_drafted
        assert sum(c.accepted for c in stats.drafted_by.values()) == stats.num_accepted
    assert sum(stats.num_drafted for stats in stats_of(answers)) > 0


def test_requests_and_totals_agree_also_while_they_run() -> None:
    requests = make_requests(10)
    engine = Model(2)
    scheduler = chain_scheduler(engine, AUTO, RandomController())
    for request in requests:
        scheduler.submit(request)
    ended: list[RequestStats] = []
    while scheduler.has_work:
        scheduler.step()
        ended += [event.stats for event in scheduler.take_events() if hasattr(event, "stats")]
        report = make_report(scheduler)
        shares = [
            *(stats.drafted_by for stats in ended),
            *(slot.drafted_by for slot in report.slots),
        ]
        for total in report.speculators:
            expected = reduce(
                add, (share[total.name] for share in shares if total.name in share), DraftCounts()
            )
            assert {n: getattr(total, n) for n in COUNTS} == {
                n: getattr(expected, n) for n in COUNTS
            }
        assert report.drafted == sum(total.drafted for total in report.speculators)
    assert report.drafted > 0


def test_the_second_of_two_fixed_speculators_is_outbid_and_not_even_asked() -> None:
    requests = make_requests(3)
    engine = Model()
    chain = [Oracle(engine, requests, wrong=0.0), *make_speculators(["suffix"], Model)]
    for stats in stats_of(run(make_scheduler(engine, chain), requests)):
        counts = stats.drafted_by["suffix"]
        assert (counts.calls, counts.reasons.get("outbid", 0)) == (0, stats.num_drafts)


class Stingy(Controller):
    """Verifies the first `length` tokens of what was taken, and says that nothing else pays."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length

    def plan(self, slots: Sequence[SlotDraft], step: Step, sunk_ms: float = 0.0) -> list[int]:
        return [min(self._length, len(slot.survival)) for slot in slots]


def test_what_is_cut_to_nothing_is_below_break_even_and_so_is_what_was_worth_less() -> None:
    requests = make_requests(4)
    engine = Model()
    one, other = Oracle(engine, requests, wrong=0.0), Oracle(engine, requests, wrong=0.5)
    other.name = "worse"
    for stats in stats_of(run(make_scheduler(engine, [one, other], AUTO, Stingy(0)), requests)):
        for counts in stats.drafted_by.values():
            assert counts.offered > 0 == counts.drafts
            assert set(counts.reasons) <= {"below break-even", "no match", "max_tokens reached"}
    for stats in stats_of(run(make_scheduler(Model(), [one, other], AUTO, Stingy(1)), requests)):
        by = stats.drafted_by
        assert by["oracle"].drafts + by["worse"].drafts == stats.num_drafts > 0
        assert sum(counts.reasons.get("outbid", 0) for counts in by.values()) > 0
        assert "below break-even" not in by["oracle"].reasons


def test_a_draft_for_which_the_cache_has_no_room_is_counted_by_its_speculator_too() -> None:
    engine = Model(context_size=512, num_cells=64)
    request = Request(
        request_id="r", prompt=[1] * 20, sampling=SamplingParams(temperature=0.8, ignore_eos=True)
    )
    scheduler = make_scheduler(engine, [Oracle(engine, [request])], fixed(16))
    (stats,) = stats_of(run(scheduler, [request]))
    counts = stats.drafted_by["oracle"]
    assert counts.reasons["context full"] == stats.reasons["context full"] > 0


def test_a_tally_counts_positions_from_the_first_token_of_the_step() -> None:
    stats = SpeculatorStats()
    stats.ask(True)
    stats.ask(False)
    for outcome in ((0, 3, 3), (0, 2, 0), (1, 2, 1)):
        stats.verify(outcome)
    stats.miss("no match")
    counts = stats.counts()
    assert (counts.calls, counts.offered, counts.drafts, counts.drafts_accepted) == (2, 1, 3, 2)
    assert (counts.drafted, counts.drafted_by_position) == (7, (2, 3, 2))
    assert (counts.accepted, counts.accepted_by_position) == (4, (1, 2, 1))
    assert counts.reasons == {"no match": 1}
    assert SpeculatorStats().counts() == DraftCounts()
    twice = counts + counts
    assert (twice.drafted_by_position, twice.rows_wasted, twice.reasons) == (
        (4, 6, 4),
        6,
        {"no match": 2},
    )


def logged(caplog: pytest.LogCaptureFixture, *events) -> list[str]:
    client = WorkerClient(lambda: None)  # type: ignore[arg-type, return-value]  # never started
    caplog.clear()
    with caplog.at_level(logging.INFO, "headstart.scheduler.request_log"):
        client._on_message(Message(events))
    return [record.getMessage() for record in caplog.records]


def test_the_log_line_says_who_drafted_what_and_why_nobody_did(caplog) -> None:
    suffix = DraftCounts(drafts=3, drafted=9, accepted=5, reasons={"no match": 4, "outbid": 1})
    model = DraftCounts(calls=2, reasons={"below break-even": 8})
    stats = RequestStats(
        num_emitted=13,
        num_steps=8,
        num_drafts=3,
        num_drafted=9,
        num_accepted=5,
        drafted_by={"suffix": suffix, "draft-model": model},
        reasons={"no match": 4},
    )
    both = scheduler_line(caplog, stats)
    assert "draft acceptance = 0.55556 (5 accepted / 9 drafted), acceptance length = 1.62; " in both
    assert "; suffix 5/9 in 3 drafts, 4 rows wasted (4 no match, 1 outbid); " in both
    assert "; draft-model no drafts (8 below break-even); " in both
    assert both.endswith("; without a draft: 4 no match")
    alone = scheduler_line(caplog, replace(stats, drafted_by={"suffix": suffix}))
    assert alone.endswith("; suffix 5/9 in 3 drafts, 4 rows wasted; without a draft: 4 no match")
    none = replace(stats, num_drafted=0, num_accepted=0, drafted_by={"suffix": DraftCounts()})
    assert scheduler_line(caplog, none).endswith("eos, no drafts; without a draft: 4 no match")
    assert scheduler_line(caplog, replace(stats, is_valid=False)).endswith(
        "unseen, for a measurement"
    )


def scheduler_line(caplog: pytest.LogCaptureFixture, stats: RequestStats) -> str:
    (line,) = logged(caplog, FinishEvent("r", "eos", stats))
    assert line.startswith("request r: slot -1, prompt 0 tokens (0 cached), TTFT ")
    return line


def test_a_request_that_fails_has_a_line_too(caplog) -> None:
    requests = make_requests(3)
    engine = Model()
    scheduler = make_scheduler(engine, [Oracle(engine, requests)])
    for request in requests:
        scheduler.submit(request)
    for _ in range(5):
        scheduler.step()
    scheduler.take_events()

    def fail(batch: object) -> None:
        raise EngineError("the graph\ncould not be computed")

    engine.fail = fail
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
    event = error_event("r", InvalidParameterError("top_k is -1"))
    assert logged(caplog, event) == ["request r refused: InvalidParameterError: top_k is -1"]
