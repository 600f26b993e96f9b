"""Prompts that are read: each token once however many wait for it, and short ones soon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.harness import (
    ENDLESS,
    EOS,
    Model,
    Oracle,
    check,
    endless,
    fixed,
    make_requests,
    make_scheduler,
    play,
    run,
    run_checked,
    step_until,
    steps,
    submit_all,
)
from tests.pictures import with_pictures
from tests.planted import fail_at, noted

from headstart.scheduler.prompt_cache import choose_pauses
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.step import StepRecord
from headstart.structures.prefix import packed
from headstart.types import CacheKind, ContextFullError
from headstart.types.request import ProgressEvent, Request, TokenEvent
from headstart.types.sampling_params import SamplingParams
from headstart.worker.loop import make_report

LONG = [(7 * i) % EOS for i in range(400)]


def request(name: str, prompt: list[int], max_tokens: int = 4, **fields: object) -> Request:
    return endless(prompt, max_tokens, name, sampling=replace(ENDLESS, seed=len(name)), **fields)


def num_prompt_rows(record: StepRecord) -> int:
    """Rows without logits."""
    return sum(one.num_rows - one.num_outputs for one in record.results)


def count_prompt_rows(scheduler: Scheduler, requests: list[Request]) -> int:
    submit_all(scheduler, requests)
    rows = sum(map(num_prompt_rows, steps(scheduler)))
    check(scheduler.engine, requests, play(scheduler))
    return rows


@pytest.mark.parametrize("num_requests", [2, 8])
def test_a_prompt_that_several_wait_for_is_read_once(num_requests: int) -> None:
    requests = [request(f"r{i}", [*LONG, i], 4 + i) for i in range(num_requests)]
    scheduler = make_scheduler(Model(), parallel=8)
    assert count_prompt_rows(scheduler, requests) <= len(LONG) + 2 * num_requests
    assert scheduler.counters.prompt_tokens_cached >= (num_requests - 1) * len(LONG)


def test_prompts_that_part_midway_share_what_they_have_in_common() -> None:
    requests = [
        request("a", LONG),
        request("b", LONG[:200] + LONG[100:300]),
        request("c", LONG[:200] + LONG[100:250] + [3] * 50),
        request("d", [5, *LONG[:100]]),
    ]
    rows = count_prompt_rows(make_scheduler(Model()), requests)
    assert rows <= 400 + 200 + 50 + 101 + 8


def test_when_a_reader_is_cancelled_the_rest_of_its_prompt_is_read_once_for_all_who_wait() -> None:
    scheduler = make_scheduler(Model(), prefill_chunk=8, parallel=6)
    submit_all(scheduler, [request("busy", [1], 100)], 1)
    requests = [request(f"r{i}", [*LONG, i]) for i in range(4)]
    submit_all(scheduler, requests, 5)
    scheduler.cancel("r0")
    rows = sum(num_prompt_rows(scheduler.step()) for _ in range(60))
    assert 300 <= rows <= len(LONG) + 3 * 8
    collected = play(scheduler)
    check(scheduler.engine, requests[1:], collected)


def test_nobody_waits_for_one_who_was_preempted_and_waits_for_him() -> None:
    """The reader is the younger one, so it is preempted; it is back in the next step."""
    engine = Model()
    engine.max_batch_tokens = 16
    scheduler = make_scheduler(engine, parallel=3, cache_ram=0)
    requests = [
        request("first", [1], 4, slot_id=0),
        request("older", [*LONG, 1], slot_id=0),
        request("reader", [*LONG, 2]),
    ]
    submit_all(scheduler, requests)
    answers = step_until(scheduler, lambda _: any(active.leader for active in scheduler.running))
    fail_at(engine, [0], ContextFullError())
    check(engine, requests, run(scheduler, (), answers))
    assert scheduler.counters.preemptions == 1


def test_nobody_waits_for_a_text_that_was_shifted() -> None:
    engine = Model(context_size=128)
    engine.max_batch_tokens = 16
    scheduler = make_scheduler(engine, parallel=2, context_shift=True)
    submit_all(scheduler, (request("long", LONG[:127], 60), request("short", [*LONG[:126], 1], 1)))
    answers = step_until(scheduler, lambda told: "short" in told)
    assert len(answers["long"].tokens) < 20


def test_nothing_is_shared_between_namespaces() -> None:
    one, other = request("a", LONG, namespace="a"), request("b", LONG, namespace="b")
    for parallel in (1, 2):
        scheduler = make_scheduler(Model(), parallel=parallel)
        assert count_prompt_rows(scheduler, [one, other]) >= 2 * len(LONG) - 2


def test_a_prompt_that_must_not_be_cached_is_read_though_others_read_it() -> None:
    requests = [request("a", LONG), request("b", LONG, cache_prompt=False)]
    assert count_prompt_rows(make_scheduler(Model()), requests) >= 2 * len(LONG) - 2


def first_tokens(scheduler: Scheduler) -> dict[str, int]:
    """By request, the step of its first token."""
    first: dict[str, int] = {}
    for number, _ in enumerate(steps(scheduler), 1):
        for event in scheduler.take_events():
            if isinstance(event, TokenEvent):
                first.setdefault(event.request_id, number)
    return first


def test_a_short_prompt_is_not_held_up_by_a_long_one() -> None:
    scheduler = make_scheduler(Model(context_size=2048), prefill_chunk=16)
    busy, long = request("busy", [1], 400), request("long", [i % EOS for i in range(1600)])
    for one in (busy, long, request("short", [2] * 20)):
        submit_all(scheduler, [one], 1)
    first = first_tokens(scheduler)
    assert first["short"] <= 3
    assert first["long"] <= 1600 / 16 + 10


def test_a_stream_of_short_prompts_does_not_hold_up_a_long_one() -> None:
    scheduler = make_scheduler(Model(context_size=2048), prefill_chunk=16, parallel=3)
    submit_all(scheduler, (request("busy", [1], 1500), request("long", LONG * 2)))
    num_steps, told = 0, set[str]()
    while "long" not in told:
        num_steps += 1
        submit_all(scheduler, [request(f"s{num_steps}", [num_steps % EOS] * 15, 1)], 1)
        told = {e.request_id for e in scheduler.take_events() if isinstance(e, TokenEvent)}
        assert num_steps < 300
    assert num_steps >= 800 / 16


def test_a_request_that_is_preempted_counts_its_prompt_once() -> None:
    engine = Model(context_size=512, num_cells=96)
    requests = [request(f"r{i}", [i + 1] * 20, 50) for i in range(4)]
    scheduler = make_scheduler(engine, [Oracle(engine, requests)], fixed(4))
    answers = run_checked(scheduler, requests)
    assert scheduler.counters.preemptions > 0
    assert scheduler.counters.prompt_tokens + scheduler.counters.prompt_tokens_cached == 80
    assert all(answer.stats.num_cached < 20 for answer in answers.values())


def test_a_request_that_is_preempted_and_waits_for_a_leader_counts_what_it_shares_once() -> None:
    scheduler = make_scheduler(Model(context_size=512, num_cells=330), parallel=3, cache_ram=0)
    first = request("first", [5] * 150, 130)
    others = [request(f"other{i}", [*LONG[:80], i], 100) for i in range(2)]
    answers = run_checked(scheduler, [first, *others])
    assert scheduler.counters.preemptions >= 2
    cached = sorted(answer.stats.num_cached for answer in answers.values())
    assert cached == [0, 0, 80]


def test_progress_counts_no_more_than_the_prompt_and_ends_with_the_first_token() -> None:
    scheduler = make_scheduler(Model(context_size=512, num_cells=96), prefill_chunk=8)
    submit_all(
        scheduler, (replace(one, wants_progress=True) for one in make_requests(4, max_tokens=40))
    )
    answering = set()
    for _ in steps(scheduler):
        for event in scheduler.take_events():
            if isinstance(event, TokenEvent):
                answering.add(event.request_id)
            if isinstance(event, ProgressEvent):
                assert event.num_cached <= event.num_processed <= event.num_prompt
                assert event.request_id not in answering
    assert scheduler.counters.preemptions > 0


def test_while_a_preempted_request_reads_its_prompt_again_its_slot_counts_what_it_has() -> None:
    engine = Model(context_size=512, num_cells=180)
    scheduler = make_scheduler(engine, prefill_chunk=8, cache_ram=0)
    run(scheduler, [request("before", LONG[:60])])
    submit_all(scheduler, [request("other", [5] * 20, 140)], 1)
    scheduler.submit(request("r", [*LONG[:60], 1], 60))
    engine.max_batch_tokens = 16
    for _ in steps(scheduler):
        for slot in make_report(scheduler).slots:
            assert slot.num_cached <= slot.num_processed <= slot.num_prompt
    assert scheduler.counters.preemptions > 0
    assert scheduler.counters.prompt_tokens_cached == 60


def test_only_what_was_read_of_a_cancelled_prompt_is_counted() -> None:
    """Else reading would seem faster than it is, and copies from main memory too slow."""
    engine = Model()
    engine.max_batch_tokens = 16
    scheduler = make_scheduler(engine)
    submit_all(scheduler, [request("r", LONG)], 2)
    scheduler.cancel("r")
    scheduler.step()
    assert not scheduler.running
    assert scheduler.counters.prompt_tokens == 32


def test_what_a_preempted_request_did_is_counted_if_it_is_cancelled_before_it_goes_on() -> None:
    scheduler = make_scheduler(Model(context_size=512, num_cells=96))
    submit_all(scheduler, (request(f"r{index}", [index + 1] * 20, 50) for index in range(4)))
    answers = step_until(scheduler, lambda _: scheduler.counters.preemptions)
    scheduler.cancel(scheduler.waiting[0].request.request_id)
    run(scheduler, (), answers)
    emitted = sum(len(one.tokens) for one in answers.values())
    assert scheduler.counters.tokens_predicted == emitted
    assert scheduler.counters.requests == 4


MARKER = 99
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
UNCUTTABLE = [m for m in CacheKind if m is not CacheKind.CUT]


def pauses_of(tokens: Sequence[int], num_cached: int = 0, min_step: int = 1000) -> list[int]:
    return choose_pauses(packed(tokens), num_cached, [MARKER], min_step)


def message(size: int) -> list[int]:
    return [MARKER, *([1] * (size - 1))]


@pytest.mark.parametrize(
    ("prompt", "more", "expected"),
    [
        ([*message(30), *message(20), *message(25), *message(3)], {}, [30, 75]),
        ([1] * 100, {}, [96]),
        ([*message(30), *message(200)], {}, [30, 226]),
        ([1] * 1004, {"min_step": 300}, [300, 600, 1000]),
        (
            [*message(30), *message(330), *message(20), *message(300), *message(3)],
            {"min_step": 300},
            [30, 360, 680],
        ),
        ([*message(30), *message(70), *message(3)], {"num_cached": 30}, [100]),
        ([1] * 15, {}, []),
        ([*[1] * 100, *message(2), *message(2)], {}, [102]),
    ],
    ids=[
        "first and last",
        "no marker",
        "none near the end",
        "long",
        "preferred",
        "cached",
        "short",
        "one message",
    ],
)
def test_checkpoints_stand_behind_the_first_message_at_the_last_marker_and_in_long_texts(
    prompt: list[int], more: dict[str, int], expected: list[int]
) -> None:
    assert pauses_of(prompt, **more) == expected


def test_checkpoints_are_as_they_are_when_each_token_is_looked_at() -> None:
    for seed in range(300):
        random = np.random.default_rng(seed)
        size, min_step = random.integers(1, 400), int(random.integers(1, 120))
        is_marker = random.random(size) < random.choice([0.0, 0.01, 0.1, 1.0])
        markers = [int(at) for at in is_marker.nonzero()[0] if at >= 16]
        end = int(size) - 4
        always = {*markers[:1], end}
        if markers and markers[-1] >= size - 64:
            end = end if end - markers[-1] >= 4 else markers[-1]
            begins = [first for first in markers[:1] if first <= markers[-1] - 16]
            always = {*begins, markers[-1], end}
        expected, last = list[int](), 0
        for position in [*(one for one in markers if one < end), end]:
            while position - last >= 2 * min_step:
                last += min_step
                expected.append(last)
            if position - last >= min_step or position in always:
                expected.append(last := position)
        tokens = np.where(is_marker, MARKER, 1).tolist()
        found = pauses_of(tokens, min_step=min_step)
        assert found == [one for one in expected if one > 15], seed


def test_an_admission_asks_the_vocabulary_of_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts may have a hundred thousand different ones, and the engine waits."""
    scheduler = make_scheduler(Model(2, cache_kind=CacheKind.WINDOW))
    asked = noted(monkeypatch, scheduler.vocab, "is_control")
    run_checked(scheduler, [endless([1, 2, 3] * 20, 8)])
    assert not asked


@pytest.mark.parametrize("cache_kind", UNCUTTABLE)
def test_a_shortened_history_is_read_from_the_last_checkpoint(cache_kind: CacheKind) -> None:
    """A turn's thoughts are left out of the next prompt, as chat templates do."""
    scheduler = make_scheduler(Model(2, cache_kind=cache_kind), parallel=2)
    history = [i % 20 for i in range(60)]
    for turn in range(4):
        asked = endless(history, 40, f"turn{turn}", sampling=GREEDY)
        answer = run_checked(scheduler, [asked])[asked.request_id]
        if turn:
            assert answer.stats.num_prompt - answer.stats.num_cached <= 20 + 4
        history = [*history, *answer.tokens[-10:], *range(10)]


@pytest.mark.parametrize("cache_kind", UNCUTTABLE)
def test_a_checkpoint_serves_conversations_that_begin_alike(cache_kind: CacheKind) -> None:
    scheduler = make_scheduler(Model(2, cache_kind=cache_kind), parallel=3, checkpoint_min_step=20)
    start = [i % 20 for i in range(40)]
    for number in range(3):
        asked = endless([*start, *([number] * 30)], 20, sampling=GREEDY)
        answers = run_checked(scheduler, [asked])
        assert (answers["r"].stats.num_cached >= 20) == (number > 0)


def test_no_pause_is_inside_an_image_and_none_comes_twice() -> None:
    tokens, _ = with_pictures([1] * 60, (20, 30))
    pauses = choose_pauses(packed(tokens), 0, [31], 16)
    assert pauses == sorted(set(pauses))
    assert [pause for pause in pauses if 20 < pause < 145] == []
