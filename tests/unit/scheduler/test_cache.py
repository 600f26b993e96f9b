"""The cache of sequences: chunks, reuse, and what happens when cells run out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.harness import (
    AUTO,
    EOS,
    Answer,
    Model,
    Oracle,
    answer,
    check,
    collect,
    fixed,
    make_requests,
    make_scheduler,
    make_speculators,
    renamed,
    run,
)

from headstart.sampling import SamplingParams
from headstart.types import Batch, CacheKind
from headstart.types.request import Request

ENDLESS = SamplingParams(temperature=0.8, ignore_eos=True)


class Watched(Model):
    """Remembers copies and the rows of every decode, by sequence."""

    def __init__(self, order: int | None = None, **settings: Any) -> None:
        super().__init__(order, **settings)
        self.copies: list[tuple[int, int, int]] = []
        self.batches: list[list[int]] = []

    def launch(self, batch: Batch) -> None:
        self.batches.append(batch.seq_ids[: batch.num_rows].tolist())
        super().launch(batch)

    def copy_prefix(self, source: int, target: int, length: int) -> bool:
        assert source != target, "a sequence was copied onto itself"
        assert length <= len(self.cache[source])
        has_copied = super().copy_prefix(source, target, length)
        if has_copied:
            self.copies.append((source, target, length))
        return has_copied


def long_requests(num: int, prompt_size: int, **settings: Any) -> list[Request]:
    random = np.random.default_rng(5)
    return [
        Request(
            request_id=f"p{i}",
            prompt=random.integers(0, EOS, prompt_size).tolist(),
            sampling=ENDLESS,
            **settings,
        )
        for i in range(num)
    ]


@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_chunked_prefill_matches_single_chunk(chunk: int) -> None:
    requests = [*make_requests(2, max_tokens=60), *long_requests(3, 90, max_tokens=8)]
    engine = Watched()
    check(engine, requests, run(make_scheduler(engine, prefill_chunk=chunk), requests))


def test_a_long_prompt_does_not_starve_running_requests() -> None:
    engine = Watched()
    running, long = (
        long_requests(1, 4, max_tokens=60)[0],
        renamed(long_requests(1, 400, max_tokens=1)[0], "long"),
    )
    scheduler = make_scheduler(engine, prefill_chunk=16)
    scheduler.submit(running)
    scheduler.step()
    engine.batches.clear()
    scheduler.submit(long)
    answers = run(scheduler)
    check(engine, [running, long], answers)
    both = [b for b in engine.batches if {0, 1} <= set(b)]
    assert len(both) == 400 // 16
    assert all(b.count(1) <= 16 and b.count(0) == 1 for b in both)


def test_running_requests_do_not_starve_a_long_prompt() -> None:
    """Every step has a whole chunk of it, even if all slots draft as far as they may."""
    requests = [
        *long_requests(3, 3, max_tokens=400),
        renamed(long_requests(1, 120, max_tokens=1)[0], "long"),
    ]
    engine = Watched()
    engine.max_batch_tokens = 24
    scheduler = make_scheduler(
        engine, [Oracle(engine, requests, wrong=0.0)], fixed(16), prefill_chunk=8
    )
    check(engine, requests, run(scheduler, requests))
    long = 3  # its slot; it emits one token, so all its rows are of the prompt
    last = max(step for step, batch in enumerate(engine.batches) if long in batch)
    drafting = engine.batches[1:last]  # behind the prompts of the others, before its last rows
    assert len(drafting) > 10
    assert all(batch.count(0) > 4 for batch in drafting)
    assert all(len(batch) <= 24 for batch in engine.batches)
    assert {batch.count(long) for batch in drafting} == {8}


def test_the_next_turn_decodes_only_what_is_new() -> None:
    engine = Watched()
    scheduler = make_scheduler(engine, make_speculators(["suffix"], Model))
    turn = Request(request_id="t0", prompt=[1, 2, 3, 4, 5], sampling=ENDLESS, max_tokens=10)
    for number in range(1, 4):
        answers = run(scheduler, [turn])
        check(engine, [turn], answers)
        history = [*turn.prompt, *answers[turn.request_id].tokens]
        assert answers[turn.request_id].finish.stats.num_cached == (
            0 if number == 1 else len(turn.prompt) - 4
        )
        turn = Request(
            request_id=f"t{number}", prompt=[*history, 7, 8, 9], sampling=ENDLESS, max_tokens=10
        )
    assert len(engine.cache) == 1


def test_prefixes_are_shared_across_slots_running_ones_included() -> None:
    common = long_requests(1, 50)[0].prompt
    first = Request(request_id="first", prompt=[*common, 1], sampling=ENDLESS, max_tokens=40)
    second = Request(request_id="second", prompt=[*common, 2, 3], sampling=ENDLESS, max_tokens=40)
    engine = Watched()
    scheduler = make_scheduler(engine)
    scheduler.submit(first)
    for _ in range(5):
        scheduler.step()
    answers = run(scheduler, [second])
    check(engine, [second], answers)
    assert answers["second"].finish.stats.num_cached == 50
    assert engine.copies == [(0, 1, 50)]


def test_a_request_may_ask_not_to_reuse() -> None:
    first = long_requests(1, 30, max_tokens=4, cache_prompt=False)[0]
    engine = Watched()
    scheduler = make_scheduler(engine)
    run(scheduler, [first])
    answers = run(scheduler, [renamed(first, "again")])
    assert answers["again"].finish.stats.num_cached == 0
    check(engine, [renamed(first, "again")], answers)


@pytest.mark.parametrize("cache_kind", list(CacheKind))
def test_reuse_never_changes_the_text(cache_kind: CacheKind) -> None:
    """Turns, branches, repeats and slot wishes in random order, on few slots."""
    random = np.random.default_rng(9)
    engine = Watched(2, cache_kind=cache_kind)
    drafters = make_speculators(["suffix", "draft-model"], lambda: Model(2, skew=0.3))
    scheduler = make_scheduler(engine, drafters, AUTO, parallel=3)
    histories: list[list[int]] = [[1, 2, 3]]
    for number in range(40):
        batch = []
        for part in range(int(random.integers(1, 5))):
            base = histories[random.integers(len(histories))]
            kept = len(base) if random.random() < 0.6 else random.integers(1, len(base) + 1)
            prompt = [*base[:kept], *random.integers(0, EOS, random.integers(0, 6)).tolist()]
            wish = int(random.integers(3)) if random.random() < 0.3 else None
            sampling = SamplingParams(temperature=0.8, seed=int(random.integers(3)))
            batch.append(
                Request(
                    request_id=f"{number}.{part}",
                    prompt=prompt,
                    sampling=sampling,
                    max_tokens=12,
                    slot_id=wish,
                )
            )
        answers = run(scheduler, batch)
        check(engine, batch, answers)
        histories += [[*r.prompt, *answers[r.request_id].tokens] for r in batch]
    assert scheduler.counters.prompt_tokens_cached > 0
    assert engine.copies


def test_a_preempted_request_reads_its_text_again_only_when_there_is_room() -> None:
    requests = long_requests(8, 20, max_tokens=40)
    engine = Model(num_cells=130)  # two texts of 60 tokens
    scheduler = make_scheduler(engine, parallel=8)
    check(engine, requests, run(scheduler, requests))
    assert 0 < scheduler.counters.preemptions <= 2 * len(requests)


def test_the_last_request_that_fills_all_cells_is_cut_off_and_says_so() -> None:
    engine = Model(context_size=512, num_cells=64)
    request = long_requests(1, 20)[0]
    scheduler = make_scheduler(engine, [Oracle(engine, [request])], fixed(16))
    answers = run(scheduler, [request])
    stats = answers["p0"].finish.stats
    total = scheduler.counts.total.drafts
    assert stats.drafts.reasons["context full"] == total.reasons["context full"] > 0
    # the first step, which ended the prompt, has no reason
    assert stats.num_steps - 1 == stats.drafts.num_drafts + sum(stats.drafts.reasons.values())
    assert answers["p0"].reason == "length"
    assert answers["p0"].finish.truncated
    assert 64 - 20 <= len(answers["p0"].tokens) <= 64 - 20 + 1


def test_a_preempted_request_emits_each_token_once_and_keeps_its_place() -> None:
    requests = long_requests(3, 20, max_tokens=30)
    engine = Model(num_cells=90)
    scheduler = make_scheduler(engine)
    answers = run(scheduler, requests)
    check(engine, requests, answers)
    assert scheduler.counters.preemptions > 0
    finished = [
        k
        for k, a in sorted(
            answers.items(), key=lambda item: item[1].finish.stats.generation_seconds
        )
    ]
    assert finished[0] == "p0"  # the oldest is never put back


def test_a_request_waits_for_the_slot_that_it_asks_for_and_others_go_first() -> None:
    engine = Model()
    scheduler = make_scheduler(engine, parallel=2)
    busy, other = (replace(one, max_tokens=10) for one in make_requests(2))
    wishing = replace(busy, request_id="wishing", slot_id=0)
    scheduler.submit(busy)
    scheduler.step()
    scheduler.submit(wishing)
    scheduler.submit(other)
    scheduler.step()
    assert [active.request.request_id for active in scheduler.running] == [
        busy.request_id,
        other.request_id,
    ]
    answers = run(scheduler)
    check(engine, [wishing], answers)
    assert answers["wishing"].finish.stats.slot_id == 0


def test_many_requests_for_one_slot_run_one_after_the_other() -> None:
    engine = Model()
    scheduler = make_scheduler(engine, parallel=2)
    requests = [replace(one, slot_id=1) for one in make_requests(6)]
    answers = run(scheduler, requests)
    check(engine, requests, answers)
    assert {answer.finish.stats.slot_id for answer in answers.values()} == {1}


def test_a_short_request_goes_past_preempted_ones_that_do_not_fit_yet() -> None:
    """Endless texts in shifting contexts fill all cells; those that wait for room held up all."""
    engine = Model(context_size=256, num_cells=256)
    scheduler = make_scheduler(engine, parallel=4, context_shift=True)
    endless = [
        replace(request, max_tokens=None, sampling=replace(request.sampling, ignore_eos=True))
        for request in make_requests(4)
    ]
    for request in endless:
        scheduler.submit(request)
    while scheduler.counters.preemptions < 3:
        scheduler.step()
    short = Request(request_id="short", prompt=[1, 2, 3], max_tokens=20)
    scheduler.submit(short)
    answers: dict[str, Answer] = {}
    for _ in range(400):
        scheduler.step()
        collect(scheduler, answers)
    assert answers["short"].tokens == answer(engine, short).tokens
    assert answers["short"].end is not None
