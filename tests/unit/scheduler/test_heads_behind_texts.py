"""A head continues a text speculator's draft: it reads those tokens with states that it computes
itself, and what it drafts behind them is as right as what it drafts alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import pytest
from tests.harness import (
    AUTO,
    Model,
    Oracle,
    RandomController,
    make_requests,
    make_scheduler,
    make_speculators,
)
from tests.states import KINDS, Sure, ask, greedy, mtp, prompt_of

from headstart.control import Allowance, Controller
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.step import StepPlan
from headstart.speculators import Speculator
from headstart.types import Draft, DraftRequest


class Continuing(Controller):
    """Control that asks everybody, verifies everything, believes texts, and lets models draft two
    tokens wherever they can.
    """

    def __init__(self) -> None:
        super().__init__()
        self.leads: list[int] = []

    def share(self, plan: StepPlan) -> None:
        plan.lengths = list(map(len, plan.survivals))

    def sleeps(self, plan: StepPlan, texts: Sequence[str], models: Sequence[str]) -> bool:
        return False

    def wants(self, speculator: str, number: int | None = None) -> bool:
        return True

    def survival(
        self,
        speculator: str,
        confidence: Sequence[float],
        seq_id: int,
        tokens: Sequence[int] = (),
    ) -> list[float]:
        return [0.9] * len(confidence)

    def grant(self, plan: StepPlan) -> dict[str, list[Allowance]]:
        self.leads += [slot.lead for slots in plan.wishes.values() for slot in slots]
        return {
            name: [Allowance(min(2, slot.max_tokens)) for slot in slots]
            for name, slots in plan.wishes.items()
        }


class ShortOracle(Oracle):
    """Drafts so many of the tokens that will come, another number each time."""

    name = "oracle"
    lengths: ClassVar[Sequence[int]] = (1, 3, 0, 2, 1, 2, 3)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [
            super(ShortOracle, self).propose(
                [replace(r, max_tokens=self.lengths[len(r.tokens) % len(self.lengths)])]
            )[0]
            for r in requests
        ]


def num_behind_texts(scheduler: Scheduler, name: str = "mtp") -> int:
    """Verified drafts of a speculator that began behind another's."""
    verified = scheduler.drafting.speculators[name].stats.verified
    return sum(count for (start, _, _), count in verified.items() if start > 0)


@pytest.mark.parametrize("num_heads", [1, 4])
@pytest.mark.parametrize("cache_kind", KINDS)
@pytest.mark.parametrize("parallel", [1, 3])
def test_every_token_of_a_right_head_behind_a_right_text_is_accepted(
    num_heads: int, cache_kind: object, parallel: int
) -> None:
    engine = Sure(cache_kind=cache_kind)  # type: ignore[arg-type]
    requests = [greedy(f"r{i}", prompt_of(i, 5 + 9 * i), 40) for i in range(4)]
    head, control = mtp(engine, num_heads), Continuing()
    chain: list[Speculator] = [ShortOracle(engine, requests, wrong=0.0), head]
    scheduler = make_scheduler(engine, chain, AUTO, control, parallel=parallel)
    ask(scheduler, engine, *requests)
    assert num_behind_texts(scheduler) > 10
    stats = scheduler.drafting.speculators["mtp"].stats
    assert stats.num_accepted == stats.num_drafted
    assert scheduler.counts.stats.num_accepted == scheduler.counts.stats.num_drafted
    assert head.describe()["missing_states"] == 0
    assert {1, 2, 3} <= set(control.leads)


def test_several_heads_leave_a_text_alone_that_is_as_long_as_they_are_many() -> None:
    head = mtp(Sure(), 2)
    assert [head.rounds_behind(n) for n in (1, 2, 3)] == [1, None, None]
    assert mtp(Sure(), 1).rounds_behind(9) == 9


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
@pytest.mark.parametrize("names", [["suffix"], ["ngram-simple", "ngram-cache"], ["ngram-map-k"]])
@pytest.mark.parametrize("parallel", [1, 2, 4])
def test_texts_are_the_same_with_heads_behind_wrong_and_right_ones(
    names: list[str], temperature: float, parallel: int
) -> None:
    requests = make_requests(8, temperature)
    for control in (Continuing(), RandomController(parallel)):
        engine = Model(2)
        chain = [*make_speculators(names, Model), ShortOracle(engine, requests), mtp(engine)]
        scheduler = make_scheduler(engine, chain, AUTO, control, parallel=parallel)
        ask(scheduler, engine, *requests)
        assert num_behind_texts(scheduler)
