"""The cache of sequences: chunks, reuse, and what happens when cells run out."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.harness import (
    AUTO,
    EOS,
    Model,
    Oracle,
    check,
    endless,
    fixed,
    make_requests,
    make_scheduler,
    make_speculators,
    renamed,
    run,
    run_checked,
    step_until,
    submit_all,
)
from tests.unit.scheduler.conversations import ask, conversation

from headstart.scheduler import prompt_cache
from headstart.types import Batch, CacheKind
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams


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


def long_requests(num: int, prompt_size: int, max_tokens: int | None = None) -> list[Request]:
    prompts = np.random.default_rng(5).integers(0, EOS, (num, prompt_size)).tolist()
    return [endless(prompt, max_tokens, f"p{i}") for i, prompt in enumerate(prompts)]


@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_chunked_prefill_matches_single_chunk(chunk: int) -> None:
    requests = [*make_requests(2, max_tokens=60), *long_requests(3, 90, max_tokens=8)]
    run_checked(make_scheduler(Watched(), prefill_chunk=chunk), requests)


def test_a_long_prompt_does_not_starve_running_requests() -> None:
    engine = Watched()
    (running,), (long,) = long_requests(1, 4, 60), long_requests(1, 400, 1)
    long = renamed(long, "long")
    scheduler = make_scheduler(engine, prefill_chunk=16)
    submit_all(scheduler, [running], 1)
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
    run_checked(scheduler, requests)
    long = 3  # its slot; it emits one token, so all its rows are of the prompt
    last = max(step for step, batch in enumerate(engine.batches) if long in batch)
    drafting = engine.batches[1:last]  # behind the prompts of the others, before its last rows
    assert len(drafting) > 10
    assert all(batch.count(0) > 4 for batch in drafting)
    assert all(len(batch) <= 24 for batch in engine.batches)
    assert {batch.count(long) for batch in drafting} == {8}


def test_the_next_turn_decodes_only_what_is_new() -> None:
    engine = Watched()
    scheduler = make_scheduler(engine, make_speculators(["suffix"]))
    turn = endless([1, 2, 3, 4, 5], 10, "t0")
    for number in range(1, 4):
        answer = run_checked(scheduler, [turn])[turn.request_id]
        assert answer.stats.num_cached == (0 if number == 1 else len(turn.prompt) - 4)
        turn = endless([*turn.prompt, *answer.tokens, 7, 8, 9], 10, f"t{number}")
    assert len(engine.cache) == 1


def test_prefixes_are_shared_across_slots_running_ones_included() -> None:
    common = long_requests(1, 50)[0].prompt
    first = endless([*common, 1], 40, "first")
    second = endless([*common, 2, 3], 40, "second")
    engine = Watched()
    scheduler = make_scheduler(engine)
    submit_all(scheduler, [first], 5)
    answers = run_checked(scheduler, [second])
    assert answers["second"].stats.num_cached == 50
    assert engine.copies == [(0, 1, 50)]


def test_a_request_may_ask_not_to_reuse() -> None:
    first = replace(long_requests(1, 30, 4)[0], cache_prompt=False)
    engine = Watched()
    scheduler = make_scheduler(engine)
    run(scheduler, [first])
    answers = run_checked(scheduler, [renamed(first, "again")])
    assert answers["again"].stats.num_cached == 0


@pytest.mark.parametrize("cache_kind", list(CacheKind))
def test_reuse_never_changes_the_text(cache_kind: CacheKind) -> None:
    """Turns, branches, repeats and slot wishes in random order, on few slots."""
    random = np.random.default_rng(9)
    engine = Watched(2, cache_kind=cache_kind)
    drafters = make_speculators(["suffix", "draft-model"])
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
        answers = run_checked(scheduler, batch)
        histories += [[*r.prompt, *answers[r.request_id].tokens] for r in batch]
    assert scheduler.counters.prompt_tokens_cached > 0
    assert engine.copies


def test_a_preempted_request_goes_on_when_there_is_room_and_the_oldest_is_never_put_back() -> None:
    requests = long_requests(8, 20, max_tokens=40)
    engine = Model(num_cells=130)  # two texts of 60 tokens
    scheduler = make_scheduler(engine, parallel=8)
    answers = run_checked(scheduler, requests)
    assert 0 < scheduler.counters.preemptions <= 2 * len(requests)
    seconds = {name: a.stats.generation_seconds for name, a in answers.items()}
    assert seconds["p0"] == pytest.approx(min(seconds.values()))


def test_the_last_request_that_fills_all_cells_is_cut_off_and_says_so() -> None:
    engine = Model(context_size=512, num_cells=64)
    request = long_requests(1, 20)[0]
    scheduler = make_scheduler(engine, [Oracle(engine, [request])], fixed(16))
    answers = run(scheduler, [request])
    stats = answers["p0"].stats
    total = scheduler.outcomes.total.drafts
    assert stats.drafts.reasons["context full"] == total.reasons["context full"] > 0
    assert stats.by_speculator["oracle"].reasons == stats.drafts.reasons
    # the first step, which ended the prompt, has no reason
    assert stats.num_steps - 1 == stats.drafts.num_drafts + sum(stats.drafts.reasons.values())
    assert answers["p0"].reason == "length"
    assert answers["p0"].finish.truncated
    assert 64 - 20 <= len(answers["p0"].tokens) <= 64 - 20 + 1


def test_a_request_waits_for_the_slot_that_it_asks_for_and_others_go_first() -> None:
    engine = Model()
    scheduler = make_scheduler(engine, parallel=2)
    busy, other = (replace(one, max_tokens=10) for one in make_requests(2))
    wishing = replace(busy, request_id="wishing", slot_id=0)
    submit_all(scheduler, [busy], 1)
    scheduler.submit(wishing)
    submit_all(scheduler, [other], 1)
    assert [active.request.request_id for active in scheduler.running] == [
        busy.request_id,
        other.request_id,
    ]
    answers = run(scheduler)
    check(engine, [wishing], answers)
    assert answers["wishing"].stats.slot_id == 0


def test_a_short_request_goes_past_preempted_ones_that_do_not_fit_yet() -> None:
    """Endless texts in shifting contexts fill all cells; those that wait for room held up all."""
    engine = Model(context_size=256, num_cells=256)
    scheduler = make_scheduler(engine, parallel=4, context_shift=True)
    submit_all(scheduler, (endless(one.prompt, name=one.request_id) for one in make_requests(4)))
    answers = step_until(scheduler, lambda _: scheduler.counters.preemptions >= 3)
    short = Request(request_id="short", prompt=[1, 2, 3], max_tokens=20)
    scheduler.submit(short)
    step_until(scheduler, lambda told: "short" in told and told["short"].end, answers)
    check(engine, [short], answers)


def test_the_slot_that_goes_is_the_one_used_longest_ago_though_the_clock_was_set_back(
    monkeypatch,
) -> None:
    now = iter([5000.0, 1000.0, 1000.0, 1001.0])
    monkeypatch.setattr(prompt_cache, "time", SimpleNamespace(time=lambda: next(now)))
    scheduler = make_scheduler(Model(), parallel=2, cache_ram=0)
    assert ask(scheduler, *(conversation(i) for i in (1, 2, 3))) == [100, 100, 100]
    assert ask(scheduler, conversation(2, 1)) == [20]
