"""Requests come, leave and lose their cells at any step: texts, caches and counts stay right."""

from __future__ import annotations

import random

import pytest
from tests.harness import (
    AUTO,
    EOS,
    Answer,
    Model,
    RandomController,
    answer,
    collect,
    make_scheduler,
    make_speculators,
)

from headstart.sampling import SamplingParams
from headstart.scheduler.scheduler import Scheduler
from headstart.types import CacheKind
from headstart.types.request import Request
from headstart.worker.loop import make_report

NUM_REQUESTS, CONTEXT = 16, 100


def requests_of(chance: random.Random) -> list[Request]:
    """Prompts that begin alike, of any length, for answers of any length."""
    bases = [[chance.randrange(EOS) for _ in range(90)] for _ in range(2)]
    requests = []
    for index in range(NUM_REQUESTS):
        own = [chance.randrange(EOS) for _ in range(chance.randrange(1, 9))]
        sampling = SamplingParams(
            temperature=chance.choice((0.0, 0.8, 1.5)), seed=index, ignore_eos=index % 3 > 0
        )
        request = Request(
            request_id=f"r{index}",
            prompt=chance.choice(bases)[: chance.choice((0, 40, 60, 91))] + own,
            sampling=sampling,
            max_tokens=chance.choice((0, 1, 8, 40)),
            cache_prompt=chance.random() < 0.9,
            slot_id=chance.choice((None, None, None, 0)),
        )
        requests.append(request)
    return requests


def check_caches(scheduler: Scheduler, engine: Model) -> None:
    """The cache holds what the slots say, and reports count no more than there is."""
    for slot in scheduler.cells:
        assert engine.cache.get(slot.seq_id, []) == slot.tokens[: slot.length]
    for report in make_report(scheduler).slots:
        assert report.num_cached <= report.num_processed <= report.num_prompt


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cache_kind", list(CacheKind))
def test_random_traffic_leaves_texts_caches_and_counts_right(
    cache_kind: CacheKind, seed: int
) -> None:
    chance = random.Random(seed)
    engine = Model(2, context_size=CONTEXT, num_cells=CONTEXT + 60, cache_kind=cache_kind)
    engine.max_batch_tokens, engine.padding_sequence = 24, None
    speculators = make_speculators(("suffix", "draft-model"), lambda: Model(2, skew=0.3))
    scheduler = make_scheduler(
        engine, speculators, AUTO, RandomController(seed), prefill_chunk=8, parallel=4
    )
    requests = [r for r in requests_of(chance) if len(r.prompt) < CONTEXT]
    waiting, answers = list(requests), dict[str, Answer]()
    num_steps = 0
    while waiting or scheduler.has_work:
        while waiting and chance.random() < 0.3:
            scheduler.submit(waiting.pop(0))
        active = [*scheduler.waiting, *scheduler.running]
        if active and chance.random() < 0.03:
            scheduler.cancel(chance.choice(active).request.request_id)
        scheduler.step()
        collect(scheduler, answers)
        check_caches(scheduler, engine)
        num_steps += 1
        assert num_steps < 3000, "requests wait for each other"
    for request in requests:
        told, expected = answers[request.request_id], answer(engine, request).tokens
        is_cut = told.reason == "cancelled"
        assert told.tokens == expected[: len(told.tokens) if is_cut else None]
    stats = [told.finish.stats for told in answers.values()]
    assert scheduler.counters.tokens_predicted == sum(s.num_emitted for s in stats)
    assert scheduler.counters.preemptions > 0
