"""Which prompts a step reads, in as few pieces as that allows, and the scores of their tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count, groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness import (
    Model,
    Oracle,
    check,
    endless,
    fixed,
    make_requests,
    make_scheduler,
    run,
    sequence_of,
)

from headstart.config import SchedulerConfig
from headstart.sampling.verify import token_logprobs
from headstart.scheduler import scheduler as scheduling
from headstart.scheduler.admission import Tenants
from headstart.scheduler.batching import prompt_rows
from headstart.scheduler.prompt_order import PromptOrder
from headstart.scheduler.sequence import Cells, Sequence
from headstart.scheduler.step import SequencePlan, StepPlan
from headstart.structures.tenants import namespace_of_key
from headstart.types import Batch
from headstart.types.request import Request

NUMBERS = count()


def waiting(*lengths: int, tenant: str = "") -> list[Sequence]:
    return [
        sequence_of(
            Request(request_id="", prompt=[1] * length, namespace=tenant),
            cells=Cells(seq_id),
            number=next(NUMBERS),
        )
        for seq_id, length in enumerate(lengths)
    ]


def planned(
    *prompts: tuple[Sequence, int], max_rows: int, answers: tuple[Sequence, ...] = ()
) -> StepPlan:
    """A step with so many rows of each prompt, and one of each answer."""
    plan = StepPlan(Batch(1), 0.0, max_prompt_rows=max_rows)
    plan.answers = [SequencePlan(sequence, num_rows=1) for sequence in answers]
    plan.prompts = [SequencePlan(one, is_prompt=True, num_rows=rows) for one, rows in prompts]
    plan.num_rows = sum(one.num_rows for one in (*plan.answers, *plan.prompts))
    return plan


def read_alone(order: PromptOrder, num_rows: int, max_rows: int, milliseconds: float) -> None:
    """A step with so many rows of another tenant's prompt."""
    (prompt,) = waiting(num_rows, tenant="other")
    order.share([prompt], num_rows, [])
    order.count(planned((prompt, num_rows), max_rows=max_rows), milliseconds)


def step(order: PromptOrder, reading: list[Sequence], num_rows: int) -> list[int]:
    """One step; those that are read leave the list."""
    shares = order.share(reading, num_rows, [])
    plan = planned(*zip(reading, shares, strict=True), max_rows=num_rows)
    order.count(plan, float(sum(shares)))
    for prompt in plan.prompts:
        sequence = prompt.sequence
        assert sequence.cells is not None
        sequence.cells.length += prompt.num_rows
        if not sequence.num_pending:
            reading.remove(sequence)
    return shares


def pieces(reading: list[Sequence], tile: int, num_rows: int) -> dict[int, int]:
    """For each prompt, in how many pieces it is read, where steps in a row count as one piece."""
    order, numbers, steps = PromptOrder(tile, Tenants()), [*map(id, reading)], []
    while reading:
        names = [id(active) for active in reading]
        shares = step(order, reading, num_rows)
        steps.append({name for name, rows in zip(names, shares, strict=True) if rows})
    return {
        number: sum(1 for is_in, _ in groupby(name in one for one in steps) if is_in)
        for number, name in enumerate(numbers)
    }


@pytest.mark.parametrize(
    ("lengths", "tile", "shares"),
    [
        ((100,), 64, [100]),
        ((1000,), 64, [128]),
        ((1000, 50), 64, [78, 50]),
        ((1000, 100), 64, [0, 100]),
        ((1000, 100), 1, [28, 100]),
        ((1000, 300, 20, 30), 64, [0, 78, 20, 30]),
        ((40, 40, 40, 40), 64, [40, 40, 40, 0]),
    ],
)
def test_the_shortest_come_first_and_pieces_of_less_than_a_tile_are_not_cut(lengths, tile, shares):
    assert PromptOrder(tile, Tenants()).share(waiting(*lengths), 128, []) == shares


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=16),
    st.integers(1, 2048),
    st.sampled_from([1, 64]),
)
def test_every_step_reads_something_and_no_more_than_it_may(lengths, num_rows, tile) -> None:
    reading, order = waiting(*lengths), PromptOrder(tile, Tenants())
    left = sum(lengths)
    while reading:
        pending = [active.num_pending for active in reading]
        shares = step(order, reading, num_rows)
        assert 0 < sum(shares) <= num_rows
        assert all(0 <= rows <= most for rows, most in zip(shares, pending, strict=True))
        left -= sum(shares)
    assert left == 0


@pytest.mark.parametrize("tile", [1, 64])
@pytest.mark.parametrize("num_rows", [16, 128, 512])
def test_the_oldest_gets_half_of_the_rows_while_short_ones_come_without_end(num_rows, tile) -> None:
    order, (oldest, *shorter) = PromptOrder(tile, Tenants()), waiting(100 * num_rows, *[100] * 7)
    reading, total = [oldest, *shorter], 0
    for _ in range(60):
        total += sum(step(order, reading, num_rows))
        reading += waiting(*[100] * (8 - len(reading)))
    assert 0.4 * total <= oldest.num_decoded <= 0.6 * total


@pytest.mark.parametrize("tile", [1, 64])
def test_tenants_share_the_rows_however_many_prompts_they_have(tile) -> None:
    one, other = (namespace_of_key(name) for name in (b"a", b"b"))
    order, had = PromptOrder(tile, Tenants()), Counter[str]()
    reading = [*waiting(*[9000] * 5, tenant=other), *waiting(9000, tenant=one)]
    for _ in range(40):
        for sequence, rows in zip(list(reading), step(order, reading, 128), strict=True):
            had[sequence.tenant] += rows
        assert abs(had[one] - had[other]) <= 256


def test_the_prompts_of_a_tenant_that_asks_now_and_then_are_read_before_those_of_a_flood() -> None:
    order, reading = PromptOrder(64, Tenants()), waiting(90_000, 90_000, tenant="a")
    for _ in range(5):
        for _ in range(8):
            step(order, reading, 64)
        reading += waiting(400, tenant="b")
        while len(reading) > 2:
            assert step(order, reading, 64)[:2] == [0, 0]


@pytest.mark.parametrize("length", [100, 5000])
def test_a_tenant_that_was_away_is_ahead_of_the_others_by_a_step_and_no_more(length: int) -> None:
    order, reading = PromptOrder(64, Tenants()), waiting(90_000, tenant="a")
    for _ in range(100):
        step(order, reading, 64)
    had = Counter[str]()
    for _ in range(300):
        if len(reading) == 1:
            reading += waiting(length, tenant="b")
        for sequence, rows in zip(list(reading), step(order, reading, 64), strict=True):
            had[sequence.tenant] += rows
    assert 512 - 64 <= had["b"] - had["a"] <= 512 + 64


def test_tenants_that_come_without_end_leave_rows_to_one_that_waits() -> None:
    order, (long, *_) = PromptOrder(64, Tenants()), waiting(9000, tenant="a")
    reading = [long]
    for number in range(100):
        reading += waiting(128, tenant=f"b{number}")
        step(order, reading, 128)
    assert long.num_decoded >= 5 * 128


def test_a_tenant_whose_prompts_are_read_does_not_wait() -> None:
    order, first = PromptOrder(64, Tenants()), waiting(6400, tenant="a")
    while first:
        step(order, first, 64)
    (other,) = waiting(300, tenant="b")
    order.count(planned(max_rows=0, answers=(other,)), 2000.0)
    reading = [*waiting(300, tenant="a"), other]  # the first had more
    assert order.share(reading, 64, []) == [0, 64]


def test_the_rest_of_a_prompt_does_not_limit_the_steps_of_a_tenant_that_is_alone() -> None:
    order, reading = PromptOrder(64, Tenants()), waiting(65)
    read_alone(order, 512, 512, 1.0)
    assert order.limit(reading, reading, SchedulerConfig(), 2048) == 1024


def test_what_the_answers_of_a_tenant_took_counts_too() -> None:
    tenants = Tenants()
    for tenant in "abb":  # of equals, the one that asks for less would be first
        tenants.add(tenant)
    reading = [*waiting(300, tenant="a"), *waiting(300, tenant="b")]
    for num_answers in range(2):
        order = PromptOrder(64, tenants)
        read_alone(order, 64, 64, 64.0)
        order.count(planned(max_rows=0, answers=(reading[0],) * num_answers), 20.0)
        assert order.share(reading, 64, []) == [[64, 0], [0, 64]][num_answers]


def test_long_prompts_are_read_in_pieces_of_several_tiles() -> None:
    assert pieces(waiting(2048, 1024), 64, 128) == {0: 4, 1: 4}
    assert pieces(waiting(2048, 1024), 64, 512) == {0: 2, 1: 2}
    assert pieces(waiting(1024, 1024), 64, 128) == {0: 1, 1: 1}


def test_a_short_prompt_waits_for_one_piece_of_the_oldest_at_most() -> None:
    order = PromptOrder(64, Tenants())
    reading = waiting(4000, 3000)
    for _ in range(20):
        short = waiting(60)[0]
        reading.append(short)
        for _ in range(3):
            if short in reading:
                step(order, reading, 128)
        assert short not in reading


def test_a_new_oldest_is_owed_nothing() -> None:
    order, reading = PromptOrder(64, Tenants()), waiting(300, 500, 60)
    for _ in range(3):
        step(order, reading, 128)
    reading[:] = waiting(900, 200)
    assert order.share(reading, 128, []) == [0, 128]


def test_a_prompt_that_a_short_one_waits_for_comes_as_early_as_that() -> None:
    """The second is longer than the first, but holds up the third, which begins alike."""
    reading = waiting(8000, 12000)
    follower, last = waiting(100, 200)
    follower.leader, last.leader = reading[1], follower
    assert PromptOrder(64, Tenants()).share(reading, 128, []) == [128, 0]
    assert PromptOrder(64, Tenants()).share(reading, 128, [last, follower]) == [0, 128]


def read_beside_answers(
    row_ms: float, attention_ms: float, num_answers: int = 3
) -> list[tuple[int, float]]:
    """Rows and milliseconds of each step in which a long prompt is read, 100 ms a step allowed."""
    order, steps, known = PromptOrder(64, Tenants()), list[tuple[int, float]](), 0
    while known < 32_000:
        wanted = order.num_rows(64, 2048, 100.0)
        rows = min(prompt_rows(num_answers, wanted, 64), 32_000 - known)
        milliseconds = 5.0 + rows * (row_ms + attention_ms * known)
        read_alone(order, rows, wanted, milliseconds)
        steps.append((rows, milliseconds))
        known += rows
    return steps


def test_a_long_prompt_keeps_the_time_of_a_step_while_attention_grows() -> None:
    for row_ms in (0.02, 0.1, 0.5, 2.0):
        for rows, milliseconds in read_beside_answers(row_ms, row_ms / 4000):
            assert rows <= 64 or milliseconds <= 110.0


def test_a_fast_machine_reads_more_at_once_and_a_slow_one_what_it_must() -> None:
    for num_answers in (1, 3, 8):
        fast = read_beside_answers(0.05, 0.0, num_answers)
        slow = read_beside_answers(5.0, 0.0, num_answers)
        assert {rows for rows, _ in slow[:-1]} == {64 - num_answers}
        assert len(fast) <= 5 + 32_000 // (1024 - num_answers) + 1


def test_rows_of_prompts_keep_their_bounds() -> None:
    order = PromptOrder(64, Tenants())
    assert order.num_rows(64, 32, 100.0) == 32
    read_alone(order, 64, 64, 0.1)
    assert order.num_rows(64, 100, 100.0) == 100
    assert order.num_rows(64, 2048, 0.0) == 64
    # the short rest of a prompt says nothing about a row
    read_alone(order, 3, 64, 90.0)
    assert order.num_rows(64, 2048, 100.0) == 128


def scored_requests() -> list[Request]:
    return [
        replace(request, wants_prompt_scores=True, cache_prompt=False, num_logprobs=2)
        if index % 2
        else request
        for index, request in enumerate(make_requests(7))
    ]


def expected(engine: Model, prompt: list[int]) -> list[tuple[int, float]]:
    return [
        (token, token_logprobs(engine.logits_after(prompt[:at]), token, 2).logprob)
        for at, token in enumerate(prompt)
        if at
    ]


@pytest.mark.parametrize(
    ("limits", "cells", "outputs"),
    [
        ({}, None, 128),
        ({"prefill_chunk": 3}, None, 128),
        ({"parallel": 2}, None, 9),  # outputs are fewer than the prompts' rows
        ({"prefill_chunk": 5}, 90, 128),  # requests are preempted
    ],
)
def test_scores_do_not_depend_on_how_a_prompt_is_read(limits, cells, outputs) -> None:
    engine = Model(2, num_cells=cells)
    engine.max_outputs = outputs
    requests = scored_requests()
    scheduler = make_scheduler(engine, [Oracle(Model(2), requests, wrong=0.3)], fixed(4), **limits)
    answers = run(scheduler, requests)
    check(engine, requests, answers)
    for request in requests:
        found = answers[request.request_id].prompt_logprobs
        if not request.wants_prompt_scores:
            assert found == []
            continue
        wanted = expected(engine, request.prompt)
        assert [one.token for one in found] == [token for token, _ in wanted]
        np.testing.assert_allclose([one.logprob for one in found], [p for _, p in wanted])
        assert all(one.num_alternatives == 2 for one in found)
    assert (scheduler.counters.preemptions > 0) == (cells is not None)


def test_prompts_are_scored_a_few_rows_a_step_while_others_wait(monkeypatch) -> None:
    """Each row takes up to half a millisecond, where the vocabulary is large."""
    monkeypatch.setattr(scheduling, "MOST_SCORED", 4 * Model(2).vocab_size)
    scored = replace(scored_requests()[1], prompt=[i % 30 for i in range(400)], max_tokens=0)
    for others, most in (([], 128), ([endless([1, 2], 300, "other")], 5)):
        scheduler = make_scheduler(Model(2, context_size=1024), parallel=2)
        rows = list[int]()
        scheduler.readers.append(lambda r, rows=rows: rows.extend(len(o.scores) for o in r.results))
        run(scheduler, [*others, scored])
        assert most // 2 < max(rows) <= most
        assert sum(rows) == 399


def test_scores_take_no_rows_from_other_prompts_and_wait_for_none(monkeypatch) -> None:
    monkeypatch.setattr(scheduling, "MOST_SCORED", 4 * Model(2).vocab_size)
    prompt = scored_requests()[1]
    scored = [
        replace(prompt, request_id=str(n), prompt=[(n + i) % 30 for i in range(400)], max_tokens=0)
        for n in range(4)
    ]
    answer = endless([1, 2], 100, "answer")
    other = Request(request_id="other", prompt=[i % 29 for i in range(600)], max_tokens=1)
    for requests, most in ((scored, 1600 // 100), ([answer, scored[0], other], 600 // 50)):
        scheduler = make_scheduler(Model(2, context_size=1024), prefill_chunk=64)
        steps = list[Counter[str]]()  # rows of each request
        scheduler.readers.append(
            lambda record, steps=steps: steps.append(
                Counter({one.sequence.request.request_id: one.num_rows for one in record.results})
            )
        )
        run(scheduler, requests)
        last = requests[-1].request_id
        assert max(number for number, rows in enumerate(steps) if rows[last]) <= most


def test_a_prompt_can_be_scored_without_an_answer() -> None:
    engine = Model(2)
    (request,) = (one for one in scored_requests()[1:2])
    scheduler = make_scheduler(engine)
    for name in ("a", "b"):  # the second time it is cached, and read all the same
        one = replace(request, request_id=name, max_tokens=0)
        found = run(scheduler, [one])[name]
        assert len(found.prompt_logprobs) == len(request.prompt) - 1
        assert (found.tokens, found.reason) == ([], "length")
