"""Speculators that read the target's hidden states see those of every token in its cache, whatever
happens to it; without such a speculator nobody is asked for any.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness import (
    EOS,
    Model,
    RandomController,
    check,
    fixed,
    make_requests,
    make_scheduler,
    make_speculators,
    play,
    run,
)
from tests.states import StateReader

from headstart.sampling import SamplingParams
from headstart.scheduler.observed_engine import ObservedEngine
from headstart.scheduler.scheduler import Scheduler
from headstart.types import CacheKind
from headstart.types.request import Request, SlotAction

KINDS = [CacheKind.CUT, CacheKind.WINDOW, CacheKind.ROLLBACK]
SEEDED = SamplingParams(temperature=0.8, seed=1, ignore_eos=True)


def greedy(name: str, prompt: list[int], max_tokens: int = 12, **fields: object) -> Request:
    """At temperature 0 a reader's draft is always right: it has the target's own logits."""
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    return Request(
        request_id=name, prompt=prompt, sampling=sampling, max_tokens=max_tokens, **fields
    )


def prompt_of(seed: int, size: int = 60) -> list[int]:
    return [(seed * 5 + i * 3) % EOS for i in range(size)]


def ask(scheduler: Scheduler, engine: Model, *requests: Request) -> None:
    check(engine, requests, run(scheduler, requests))


def all_right(scheduler: Scheduler) -> bool:
    """Whether every draft was accepted and none was missing for want of states."""
    stats = scheduler.drafting.speculators["state-reader"].stats
    return stats.num_accepted == stats.num_drafted > 0 and "states are missing" not in stats.reasons


@pytest.mark.parametrize("cache_kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_states_of_chunked_prompts_and_of_drafts_are_those_of_their_tokens(
    cache_kind: CacheKind, chunk: int
) -> None:
    engine = Model(cache_kind=cache_kind)
    reader = StateReader(engine)
    requests = make_requests(8)
    scheduler = make_scheduler(engine, [reader], fixed(3), prefill_chunk=chunk)
    check(engine, requests, run(scheduler, requests))
    assert scheduler.counts.stats.num_drafted > 0
    assert not reader.reasons


@pytest.mark.parametrize("cache_kind", KINDS)
def test_every_draft_of_a_reader_that_predicts_exactly_is_accepted(cache_kind: CacheKind) -> None:
    engine = Model(cache_kind=cache_kind)
    scheduler = make_scheduler(engine, [StateReader(engine)], fixed(4))
    ask(scheduler, engine, *(greedy(f"r{i}", prompt_of(i, 8 + 5 * i)) for i in range(6)))
    assert all_right(scheduler)


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("cache_kind", KINDS)
def test_also_after_a_shared_prefix_and_a_continued_turn(
    cache_kind: CacheKind, overlap: int
) -> None:
    engine = Model(cache_kind=cache_kind)
    reader = StateReader(engine, overlap=overlap)
    scheduler = make_scheduler(engine, [reader], fixed(3), parallel=3)
    first = prompt_of(1)
    ask(scheduler, engine, greedy("first", first))
    ask(
        scheduler,
        engine,
        greedy("same", first),
        greedy("branch", [*first[:40], 1, 2]),
        greedy("turn", [*first, 3, 4, 5]),
    )
    assert all_right(scheduler)
    assert not reader.reasons


def test_rows_that_a_reader_wants_to_see_again_are_decoded_again() -> None:
    engine = Model()
    scheduler = make_scheduler(engine, [StateReader(engine, overlap=1)], fixed(3), parallel=2)
    first = prompt_of(1)
    ask(scheduler, engine, greedy("first", first))
    answers = run(scheduler, [greedy("branch", [*first[:40], 9, 2])])
    assert answers["branch"].finish.stats.num_cached == 39


def test_also_after_a_prompt_came_back_from_main_memory() -> None:
    engine = Model()
    reader = StateReader(engine)
    scheduler = make_scheduler(engine, [reader], fixed(3), parallel=1)
    for seed in (1, 2, 1, 2):
        ask(scheduler, engine, greedy(f"{seed}", prompt_of(seed)))
    assert scheduler.counters.prompts_restored >= 2
    assert all_right(scheduler)
    assert not reader.reasons


def test_also_after_a_preemption() -> None:
    engine = Model(context_size=128, num_cells=160)
    reader = StateReader(engine)
    scheduler = make_scheduler(engine, [reader], fixed(3), parallel=3)
    ask(scheduler, engine, *(greedy(f"r{i}", prompt_of(i, 40), 40) for i in range(3)))
    assert scheduler.counters.preemptions > 0
    assert all_right(scheduler)
    assert not reader.reasons


def test_a_checkpoint_is_told_where_it_is_made() -> None:
    engine = Model(cache_kind=CacheKind.ROLLBACK)
    reader = StateReader(engine)
    scheduler = make_scheduler(engine, [reader], fixed(3), checkpoint_min_step=16)
    ask(scheduler, engine, greedy("long", prompt_of(1, 90)))
    assert reader.checkpoints
    assert all_right(scheduler)


def test_a_slot_that_was_read_from_a_file_is_a_text_of_which_no_state_is_known(
    tmp_path: Path,
) -> None:
    engine = Model()
    reader = StateReader(engine)
    scheduler = make_scheduler(engine, [reader], fixed(3), parallel=1)
    ask(scheduler, engine, greedy("first", prompt_of(1)))
    for action in ("save", "erase", "restore"):
        scheduler.act_on_slot(SlotAction("x", action, 0, str(tmp_path / "slot")))
    ask(scheduler, engine, greedy("turn", [*prompt_of(1), 7]))
    assert reader.reasons["behind"]
    stats = scheduler.drafting.speculators["state-reader"].stats
    assert stats.reasons["states are missing"]


def test_a_reader_that_fails_costs_no_text_and_only_its_own_drafts() -> None:
    engine = Model()

    class Failing(StateReader):
        def observe_states(self, decoded: object) -> None:
            raise RuntimeError("it cannot read")

    requests = make_requests(4)
    scheduler = make_scheduler(engine, [Failing(engine)], fixed(3))
    check(engine, requests, play(scheduler, requests))
    assert "it cannot read" in scheduler.drafting.speculators["state-reader"].failure


@pytest.mark.parametrize("seed", range(4))
def test_texts_are_the_same_with_a_reader_in_any_mixture(seed: int) -> None:
    engine = Model(2, num_cells=300, context_size=128)
    speculators = [*make_speculators(["suffix"], Model), StateReader(engine, overlap=seed % 2)]
    requests = make_requests(12, seed=seed)
    controller = RandomController(seed)
    scheduler = make_scheduler(engine, speculators, None, controller, parallel=3)
    check(engine, requests, run(scheduler, requests))


def test_without_a_reader_no_states_are_asked_for_and_the_engine_is_used_itself() -> None:
    class Silent(Model):
        def publish_states(self, layers: object) -> None:
            raise AssertionError("nobody wants states")

        hidden_states = publish_states  # type: ignore[assignment]

    engine = Silent()
    requests = make_requests(4)
    scheduler = make_scheduler(engine, make_speculators(["suffix", "recycling"], Model))
    check(engine, requests, run(scheduler, requests))
    assert not isinstance(scheduler.engine, ObservedEngine)
