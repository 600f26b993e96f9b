"""`--spec-synth-rates`: draft tokens accepted at random, to measure what drafts would earn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.harness import (
    EOS,
    Model,
    Oracle,
    endless,
    fixed,
    make_requests,
    make_scheduler,
    run,
    run_checked,
)

from headstart.config import SpeculationConfig
from headstart.scheduler.scheduler import Scheduler
from headstart.speculators import Speculator
from headstart.types import Draft, DraftMode, DraftRequest
from headstart.types.errors import ConfigError

REQUESTS = [endless([number], 200, f"r{number}") for number in range(1, 5)]


class Stubborn(Speculator):
    """Drafts the same tokens whatever the target says."""

    name = "stubborn"

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = [list(self._tokens[: request.max_tokens]) for request in requests]
        return [Draft(tokens, [0.9] * len(tokens), self.name) for tokens in drafts]


def at_rates(rates: str, speculator: Speculator) -> Scheduler:
    return make_scheduler(Model(), [speculator], replace(fixed(4), spec_synth_rates=rates))


def test_at_a_rate_of_0_no_draft_is_accepted_though_all_are_right_and_no_token_changes() -> None:
    requests = make_requests(6)
    scheduler = at_rates("0,0,0,0", Oracle(Model(), requests, wrong=0.0))
    run_checked(scheduler, requests)
    drafts = scheduler.counts.total.drafts
    assert drafts.num_drafted > 0 == drafts.num_accepted


def test_at_a_rate_of_1_all_are_accepted_though_they_are_wrong() -> None:
    scheduler = at_rates("1,1,1,1", Stubborn([1, 2, 3]))
    for answer in run(scheduler, REQUESTS).values():
        # the first follows from the prompt; behind each draft comes a token of the target
        assert [answer.tokens[start : start + 3] for start in (1, 5, 9)] == [[1, 2, 3]] * 3
    drafts = scheduler.counts.total.drafts
    assert drafts.num_drafted == drafts.num_accepted > 0


def test_a_drafted_end_of_the_turn_is_not_accepted() -> None:
    sampling = replace(REQUESTS[0].sampling, ignore_eos=False)
    request = replace(REQUESTS[0], sampling=sampling, max_tokens=3)
    scheduler = at_rates("1,1", Stubborn([EOS]))
    run_checked(scheduler, [request])
    drafts = scheduler.counts.total.drafts
    assert drafts.num_drafted > 0 == drafts.num_accepted


def test_between_them_as_many_are_accepted_as_the_rates_say_and_the_same_ones_again() -> None:
    first, second = at_rates("0.8,0.4", Stubborn([1, 2])), at_rates("0.8,0.4", Stubborn([1, 2]))
    assert [a.tokens for a in run(first, REQUESTS).values()] == [
        a.tokens for a in run(second, REQUESTS).values()
    ]
    none, one, both = first.counts.total.drafts.accepted_histogram
    num = none + one + both
    assert num > 300
    assert (one + both) / num == pytest.approx(0.8, abs=0.07)
    assert both / num == pytest.approx(0.4, abs=0.08)


@pytest.mark.parametrize("rates", ["x", "1.1", "0.5,0.6", "0.5,-0.1", "nan", "0.5,"])
def test_what_are_no_such_probabilities_is_refused(rates: str) -> None:
    with pytest.raises(ConfigError, match="--spec-synth-rates"):
        SpeculationConfig(spec_synth_rates=rates)


def test_drafts_have_fixed_lengths_unless_another_mode_is_named() -> None:
    assert SpeculationConfig(spec_synth_rates="1").mode is DraftMode.FIXED
    assert SpeculationConfig(spec_synth_rates="1", spec="auto").mode is DraftMode.AUTO
