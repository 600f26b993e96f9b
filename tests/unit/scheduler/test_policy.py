"""What a request's policy allows, and speculators that take too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.harness import (
    AUTO,
    Model,
    fixed,
    make_requests,
    make_scheduler,
    make_speculators,
    run_checked,
)

from headstart.config import SchedulerConfig, SpeculationConfig
from headstart.control.controller import Controller
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.scheduler.scheduler import Scheduler
from headstart.speculators import Speculator
from headstart.testing import LetterVocab
from headstart.types import Batch, Draft, DraftMode, DraftRequest
from headstart.types.errors import RequestError
from headstart.types.request import Request, RequestStats, SpeculativeParams
from headstart.types.sampling_params import SamplingParams

OFF = SpeculationConfig(spec="off")
NONE = SpeculationConfig(spec_type="none")
REQUEST = Request(
    request_id="r",
    prompt=[1, 2, 3] * 8,
    sampling=SamplingParams(temperature=0.0, ignore_eos=True),
    max_tokens=60,
)
CHAIN = ("draft-model", "ngram-simple")


def asked(
    spec: SpeculationConfig, wish: SpeculativeParams, chain: tuple[str, ...] = ("ngram-simple",)
) -> RequestStats:
    """What became of a request on a text that repeats itself."""
    scheduler = make_scheduler(Model(1), make_speculators(chain, lambda: Model(1)), spec)
    request = replace(REQUEST, speculative=wish)
    answers = run_checked(scheduler, [request])
    return answers["r"].stats


@pytest.mark.parametrize(
    ("spec", "wish", "says"),
    [
        (OFF, {"mode": DraftMode.AUTO}, "mode is auto .*off; start it with --spec auto, or"),
        (OFF, {"mode": DraftMode.FIXED, "n_max": 4}, "mode is fixed .*off; start it with --spec"),
        (OFF, {"types": ("suffix",)}, "types names 'suffix' .*off; start it with --spec auto"),
        (NONE, {"mode": DraftMode.AUTO}, "mode is auto .*--spec-type none; start it without it"),
    ],
)
def test_drafts_from_a_server_that_has_no_speculator_are_refused_with_the_remedy(spec, wish, says):
    scheduler = make_scheduler(Model(), [], spec)
    with pytest.raises(RequestError, match=says):
        scheduler.submit(replace(REQUEST, speculative=SpeculativeParams(**wish)))
    assert not scheduler.has_work


TEXT, AUTO_8 = ("ngram-simple",), {"mode": DraftMode.AUTO, "n_max": 8}
UNWANTED = ({"n_max": 0}, {"mode": DraftMode.OFF}, {"types": ()})
HARMLESS = ({}, {"n_max": 16}, {"n_min": 2, "p_min": 0.5}, {"mode": DraftMode.OFF})


@pytest.mark.parametrize(
    ("spec", "wish", "chain", "reason"),
    [
        *((OFF, wish, (), "no speculator is loaded") for wish in HARMLESS),
        *((fixed(0), wish, TEXT, "off") for wish in ({}, {"n_max": 8}, AUTO_8)),
        *((fixed(4), wish, TEXT, "disabled by request") for wish in UNWANTED),
    ],
)
def test_why_nothing_is_drafted_is_told_apart(spec, wish, chain, reason) -> None:
    assert asked(spec, SpeculativeParams(**wish), chain).drafts.reasons == {reason: 59}


@pytest.mark.parametrize("n_max", [3, 4, 5, 100])
def test_the_servers_draft_max_is_the_limit_for_requests_too(n_max: int) -> None:
    stats = asked(fixed(4), SpeculativeParams(n_max=n_max))
    assert len(stats.drafts.accepted_histogram) - 1 == min(n_max, 4)


def test_without_draft_max_a_request_may_draft_as_far_as_auto() -> None:
    stats = asked(SpeculationConfig(spec="fixed"), SpeculativeParams(n_max=24))
    assert stats.drafts.num_drafted / stats.drafts.num_drafts > 16


@pytest.mark.parametrize("chain", [CHAIN, CHAIN[::-1]])
@pytest.mark.parametrize("first", CHAIN)
def test_with_fixed_lengths_the_first_in_order_drafts_model_or_not(first, chain) -> None:
    """Texts are asked before models: that must not decide."""
    other = CHAIN[1 - CHAIN.index(first)]
    stats = asked(fixed(4), SpeculativeParams(types=(first, other)), chain)
    names = {name: counts.num_drafts for name, counts in stats.by_speculator.items()}
    assert names[first] > 0
    if first == "draft-model":  # which always has one
        assert names[other] == 0
        reasons = set(stats.by_speculator[other].reasons)
        assert {"outbid"} <= reasons <= {"outbid", "no match", "max_tokens reached"}
    else:
        assert stats.by_speculator[other].reasons["outbid"] > 0


def test_a_model_that_has_no_draft_leaves_the_texts() -> None:
    wish = SpeculativeParams(types=CHAIN, p_min=1.0)
    stats = asked(fixed(4), wish, CHAIN)
    assert stats.by_speculator["ngram-simple"].num_drafts > 0
    assert stats.by_speculator["draft-model"].reasons["draft model is unsure"] > 0


def test_a_speculator_named_twice_is_asked_once() -> None:
    requests = [
        replace(r, speculative=SpeculativeParams(types=("suffix", "suffix")))
        for r in make_requests(4)
    ]
    answers = run_checked(make_scheduler(Model(1), make_speculators(["suffix"])), requests)
    for answer in answers.values():
        stats = answer.stats
        for counts in stats.by_speculator.values():
            assert counts.num_drafts + sum(counts.reasons.values()) == stats.num_steps - 1


class Time:
    """Passes only where somebody says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed(Speculator):
    """Takes so many seconds, and is never right."""

    name = "timed"

    def __init__(self, name: str, time: Time, seconds: float) -> None:
        self.name = name  # type: ignore[misc]
        self.time, self.seconds, self.num_asked = time, seconds, 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.time.now += self.seconds
        self.num_asked += 1
        return [Draft([30] * request.max_tokens) for request in requests]


class TimedModel(Model):
    """A row takes a millisecond."""

    def __init__(self, time: Time) -> None:
        super().__init__(2)
        self.time = time

    def launch(self, batch: Batch) -> None:
        self.time.now += 0.001 * batch.num_rows
        super().launch(batch)


def test_a_slow_speculator_costs_the_others_nothing() -> None:
    time = Time()
    slow, fast = Timed("slow", time, 0.05), Timed("fast", time, 0.000002)
    engine, requests = TimedModel(time), make_requests(4, max_tokens=60)
    guarded = [GuardedSpeculator(s, engine.vocab_size, time) for s in (slow, fast)]
    drafting = Drafting(guarded, AUTO, Controller(), clock=time)
    scheduler = Scheduler(engine, LetterVocab(), drafting, SchedulerConfig(parallel=1), time)
    answers = run_checked(scheduler, requests)
    num_steps = sum(answer.stats.num_steps for answer in answers.values())
    assert num_steps > 100
    assert slow.num_asked < 0.1 * num_steps
    assert fast.num_asked > 0.9 * (num_steps - 2 * len(requests))
