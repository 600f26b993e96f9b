"""What others would have given: only where somebody asks or is sampled, and as in a real run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.harness import (
    AUTO,
    Model,
    check,
    fixed,
    make_requests,
    make_scheduler,
    make_speculators,
    play,
)

from headstart.config import SpeculationConfig
from headstart.scheduler.guess_log import SAMPLE_EVERY
from headstart.types.request import RequestStats

CHAIN = ("suffix", "ngram-simple", "draft-model")


def answered(
    spec: SpeculationConfig = AUTO,
    *,
    wants: bool = True,
    num: int = 6,
    names: tuple[str, ...] = CHAIN,
) -> tuple[list[RequestStats], dict[str, Any]]:
    """The counts of some requests, and what control believes then."""
    engine = Model(2)
    speculators = make_speculators(names, lambda: Model(2, skew=0.3))
    scheduler = make_scheduler(engine, speculators, spec)
    requests = [
        replace(r, wants_counterfactual=wants) for r in make_requests(num, 0.2, max_tokens=60)
    ]
    answers = play(scheduler, requests)
    check(engine, requests, answers)
    stats = [answers[r.request_id].finish.stats for r in requests]
    return stats, scheduler.drafting.describe_control()


@pytest.mark.parametrize("spec", [fixed(4), AUTO])
def test_nobody_is_told_of_but_who_was_asked_or_is_a_model_that_read_along(spec):
    for stats in answered(spec)[0]:
        told = stats.counterfactual
        if told is None:
            assert stats.num_emitted < 2
            continue
        assert told.num_tokens == stats.num_emitted - 1
        asked = {n for n, s in stats.by_speculator.items() if s.num_calls}
        assert set(told.by_speculator) <= asked | {"draft-model"}
        assert told.off.tokens == told.hindsight.tokens == told.num_tokens
        assert told.hindsight.speed >= 0.999 * told.off.speed


def test_a_run_alone_with_a_fixed_length_is_on_paper_what_it_was():
    for stats in answered(fixed(4), names=("suffix",))[0]:
        if stats.counterfactual is None:
            continue
        sums = stats.counterfactual.by_speculator["suffix"]["4"]
        # where only one token is left nobody is asked
        assert stats.counterfactual.num_tokens - 1 <= sums.tokens <= stats.num_emitted - 1
        assert sums.milliseconds > 0.0


@pytest.mark.parametrize("spec", [fixed(4), AUTO])
def test_a_draft_model_tells_of_the_whole_text_also_where_it_did_not_draft(spec):
    for stats in answered(spec)[0]:
        told = stats.counterfactual
        if told is None or stats.num_emitted < 4:
            continue
        assert told.num_seen["draft-model"] == told.num_tokens
        speeds = told.describe()["speculators"]["draft-model"]["by_length"]
        assert len({one["tokens_per_second"] for one in speeds.values()}) > 1


def test_who_does_not_ask_gets_nothing_and_one_in_so_many_is_looked_at():
    stats, control = answered(wants=False, num=3)
    assert all(one.counterfactual is None for one in stats)
    assert control["counterfactual"] is not None, "the first one is looked at"
    num_tokens = control["counterfactual"]["num_tokens"]
    assert num_tokens <= max(one.num_emitted for one in stats)
    _, control = answered(wants=False, num=SAMPLE_EVERY + 1)
    assert control["counterfactual"]["num_tokens"] > num_tokens
