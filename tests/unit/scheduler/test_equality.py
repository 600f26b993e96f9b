"""Nothing changes but the speed: whatever drafts, the tokens are those of the rule."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.harness import (
    AUTO,
    Model,
    Oracle,
    RandomController,
    fixed,
    make_requests,
    make_scheduler,
    make_speculators,
    run,
    run_checked,
)

from headstart.config import SpeculationConfig
from headstart.scheduler.step import StepRecord
from headstart.speculators import Speculator
from headstart.structures.checkpoints import Checkpoints
from headstart.types import CacheKind, DraftMode
from headstart.types.request import SpeculativeParams

CHAINS = (
    ("draft-model",),
    ("ngram-simple",),
    ("suffix",),
    ("suffix", "draft-model"),
    ("draft-model", "ngram-simple"),
    ("ngram-mod", "ngram-cache", "draft-model"),
)
ORDERS = (2, None)  # text that repeats itself; text in which every cached token counts
TEMPERATURES = (0.0, 0.8, 1.5)


def speculators_of(chain: Sequence[str], order: int | None) -> list[Speculator]:
    return make_speculators(chain, lambda: Model(order, skew=0.3))


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("chain", CHAINS, ids="+".join)
def test_output_is_identical_with_and_without_drafts(chain, temperature) -> None:
    requests = make_requests(9, temperature)
    orders = ORDERS if len(chain) > 1 else (None,)  # contract tests have the other one
    for order, spec in itertools.product(orders, (fixed(1), fixed(4), fixed(16), AUTO)):
        scheduler = make_scheduler(Model(order), speculators_of(chain, order), spec)
        run_checked(scheduler, requests)
        if order == 2 or "draft-model" in chain:
            assert scheduler.outcomes.total.drafts.num_drafted > 0


@pytest.mark.parametrize("num_slots", range(1, 9))
def test_output_does_not_depend_on_the_number_of_slots(num_slots: int) -> None:
    requests = make_requests(12)
    for order in ORDERS:
        scheduler = make_scheduler(
            Model(order), speculators_of(("suffix", "draft-model"), order), parallel=num_slots
        )
        run_checked(scheduler, requests)
        assert scheduler.outcomes.total.drafts.num_accepted > 0


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_output_does_not_depend_on_what_each_request_asks_of_speculation(temperature) -> None:
    random = np.random.default_rng(1)
    wishes = [
        SpeculativeParams(
            mode=DraftMode(random.choice([m.value for m in DraftMode])),
            types=tuple(
                random.permutation(["suffix", "draft-model", "ngram-simple"])[
                    : random.integers(1, 4)
                ].tolist()
            ),
            n_max=n_max,
            n_min=int(random.integers(0, min(3, n_max + 1))),
            p_min=float(random.choice([0.0, 0.5])),
        )
        for n_max in random.integers(0, 12, 24).tolist()
    ]
    requests = [
        replace(r, speculative=w)
        for r, w in zip(make_requests(24, temperature), wishes, strict=True)
    ]
    chain = speculators_of(("ngram-simple", "suffix", "draft-model"), 2)
    run_checked(make_scheduler(Model(2), chain, SpeculationConfig()), requests)


def test_memory_that_cannot_roll_back_and_keeps_no_state_gets_no_drafts() -> None:
    requests = make_requests(8)
    engine = Model(cache_kind=CacheKind.CHECKPOINT)
    engine.checkpoints = Checkpoints(0, 0)
    scheduler = make_scheduler(engine, [Oracle(engine, requests)], parallel=2)
    run_checked(scheduler, requests)
    assert scheduler.outcomes.total.drafts.num_drafted == 0


def test_after_a_rejection_what_was_accepted_is_read_again_once() -> None:
    requests = make_requests(6)
    engine = Model(cache_kind=CacheKind.CHECKPOINT)
    oracle = Oracle(engine, requests, wrong=0.3)
    scheduler = make_scheduler(engine, [oracle], fixed(4), parallel=2)
    answers = run_checked(scheduler, requests)
    drafts = scheduler.outcomes.total.drafts
    assert 0 < drafts.num_accepted < drafts.num_drafted
    prompts = sum(len(request.prompt) for request in requests)
    emitted = sum(len(answer.tokens) for answer in answers.values())
    # each token once, each draft token once, and after a draft what was accepted of it once more
    assert engine.num_rows <= prompts + emitted + drafts.num_drafted + drafts.num_accepted


@pytest.mark.parametrize(("num_slots", "most_rows"), [(1, 256), (3, 256), (4, 24)])
def test_what_is_decoded_again_may_precede_another_draft(num_slots: int, most_rows: int) -> None:
    """No state is copied for that, and the batch is never too small for it."""
    requests, copies, again = make_requests(12), [], list[tuple[int, int]]()
    engine = Model(cache_kind=CacheKind.CHECKPOINT)
    engine.max_batch_tokens = most_rows
    oracle = Oracle(engine, requests, wrong=0.3)
    scheduler = make_scheduler(engine, [oracle], AUTO, RandomController(1), parallel=num_slots)

    def read(record: StepRecord) -> None:
        assert record.plan.num_rows <= most_rows
        copies.extend(record.plan.copies_ms)
        for result in record.results:
            if not result.is_prompt and (num := result.num_rows - result.num_outputs):
                again.append((num, result.num_verified))

    scheduler.readers.append(read)
    run_checked(scheduler, requests)
    assert any(num_drafted for _, num_drafted in again)
    assert any(not num_drafted for _, num_drafted in again)
    assert max(num for num, _ in again) < most_rows // num_slots
    num_first = scheduler.outcomes.total.drafts.num_drafts - sum(n > 0 for _, n in again)
    assert len(copies) == num_first


def test_drafts_are_as_short_as_the_memory_can_roll_back() -> None:
    requests = make_requests(4)
    engine = Model(cache_kind=CacheKind.ROLLBACK)
    answers = run(
        make_scheduler(engine, [Oracle(engine, requests, wrong=0.0)], fixed(16)), requests
    )
    longest = max(len(a.stats.drafts.accepted_histogram) - 1 for a in answers.values() if a.finish)
    assert longest == engine.max_rollback


def test_log_probabilities_are_the_same_with_and_without_drafts() -> None:
    requests = [replace(r, num_logprobs=3) for r in make_requests(6)]
    engine = Model()
    plain = run(make_scheduler(engine), requests)
    drafted = run(make_scheduler(Model(), [Oracle(engine, requests, wrong=0.1)]), requests)
    assert all(len(a.logprobs) == len(a.tokens) for a in plain.values())
    assert {k: a.logprobs for k, a in drafted.items()} == {k: a.logprobs for k, a in plain.items()}


def test_padding_leaves_no_trace_in_texts_or_cache() -> None:
    """`RandomController` adds rows at random; they are counted, and forgotten at once."""
    engine, requests = Model(order=3), make_requests(12)
    oracle = Oracle(Model(order=3), requests, wrong=0.3)
    scheduler = make_scheduler(engine, [oracle], controller=RandomController(3))
    run_checked(scheduler, requests)
    assert scheduler.counters.padding_rows > 0
    assert engine.padding_sequence not in engine.cache


def test_an_engine_without_a_spare_sequence_gets_no_padding() -> None:
    engine = Model(order=3)
    engine.padding_sequence = None
    scheduler = make_scheduler(engine, controller=RandomController(3))
    run_checked(scheduler, make_requests(6))
    assert scheduler.counters.padding_rows == 0


def test_padding_gives_way_when_the_cache_is_full() -> None:
    engine = Model(order=3, num_cells=4 * 64 + 8)
    run_checked(make_scheduler(engine, controller=RandomController(5)), make_requests(4))
