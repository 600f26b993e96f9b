"""Whose turn a step is: answers and prompts, sets of adapters, tenants."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from tests.harness import (
    EOS,
    Answer,
    Model,
    Oracle,
    check,
    collect,
    fixed,
    make_scheduler,
    play,
    sequence_of,
)

from headstart.sampling import SamplingParams
from headstart.scheduler.turns import STEPS, AdapterTurns, Scales
from headstart.types import Batch, CacheKind
from headstart.types.request import Request

TILE = 64
LONG = [(7 * i) % EOS for i in range(400)]


class TiledModel(Model):
    """Notes how many rows each sequence has in each decode."""

    def __init__(self, cache_kind: CacheKind = CacheKind.CUT) -> None:
        super().__init__(context_size=2048, cache_kind=cache_kind)
        self.attention_tile = TILE
        self.decodes: list[Counter[int]] = []

    def launch(self, batch: Batch) -> None:
        self.decodes.append(Counter(batch.seq_ids[: batch.num_rows].tolist()))
        super().launch(batch)


def request(name: str, prompt: list[int], max_tokens: int) -> Request:
    sampling = SamplingParams(temperature=0.8, seed=len(name), ignore_eos=True)
    return Request(request_id=name, prompt=prompt, sampling=sampling, max_tokens=max_tokens)


def read_beside(
    engine: TiledModel, prompt: list[int], *, answered: int, chunk: int = 128
) -> list[Counter[int]]:
    """Decodes from when `prompt` arrives beside two answers, which have so many tokens behind them,
    until its first token. Its sequence is 2.
    """
    scheduler = make_scheduler(engine, parallel=3, prefill_chunk=chunk)
    answers: dict[str, Answer] = {}
    for index in range(2):
        scheduler.submit(request(f"a{index}", [index, *LONG[: answered - 1]], 50))
    while len(answers) < 2:
        scheduler.step()
        collect(scheduler, answers)
    engine.decodes.clear()
    scheduler.submit(request("prompt", prompt, 4))
    while "prompt" not in answers:
        scheduler.step()
        collect(scheduler, answers)
    return engine.decodes


def test_long_answers_and_a_prompt_share_no_decode() -> None:
    decodes = read_beside(TiledModel(), [5, *LONG], answered=200)
    assert sum(rows[2] for rows in decodes) == len(LONG) + 1
    assert all(set(rows) in ({0, 1}, {2}) for rows in decodes)


def test_every_answer_gets_a_token_between_two_chunks() -> None:
    decodes = read_beside(TiledModel(), [5, *LONG], answered=200)
    for before, after in pairwise(decodes):
        assert bool(before[2]) != bool(after[2])


def test_the_chunks_of_a_prompt_are_whole_tiles_and_leave_less_than_a_tile_to_none() -> None:
    chunks = [rows[2] for rows in read_beside(TiledModel(), [5, *LONG], answered=200) if rows[2]]
    assert all(rows % TILE == 0 for rows in chunks[:-1])
    assert chunks[-1] >= TILE


@pytest.mark.parametrize(
    ("prompt", "answered", "chunk"),
    [(LONG, 20, 128), (LONG[:40], 200, 128), (LONG, 200, 16)],
    ids=["short answers", "a short prompt", "small chunks"],
)
def test_where_little_is_looked_at_for_nothing_they_share_decodes(
    prompt: list[int], answered: int, chunk: int
) -> None:
    decodes = read_beside(TiledModel(), [5, *prompt], answered=answered, chunk=chunk)
    with_prompt = [rows for rows in decodes if rows[2]]
    assert all(set(rows) == {0, 1, 2} for rows in with_prompt)


@pytest.mark.parametrize("prompt", [LONG, LONG[:40]], ids=["long", "short"])
def test_where_drafts_have_snapshots_short_answers_and_a_prompt_share_no_decode_either(
    prompt: list[int],
) -> None:
    engine = TiledModel(CacheKind.ROLLBACK)
    engine.attention_tile = 1
    decodes = read_beside(engine, [5, *prompt], answered=20)
    assert sum(rows[2] for rows in decodes) == len(prompt) + 1
    assert all(set(rows) in ({0, 1}, {2}) for rows in decodes)
    for before, after in pairwise(decodes):
        assert bool(before[2]) != bool(after[2])


def test_without_tiles_prompts_are_read_beside_answers() -> None:
    engine = TiledModel()
    engine.attention_tile = 1
    assert all(set(rows) == {0, 1, 2} for rows in read_beside(engine, [5, *LONG], answered=200))


@pytest.mark.parametrize("draft", [0, 7])
@pytest.mark.parametrize("chunk", [16, 64, 200])
def test_texts_are_those_without_turns(draft: int, chunk: int) -> None:
    engine = TiledModel()
    requests = [
        request("a", LONG[:150], 40),
        request("bb", [3, *LONG[:150]], 60),
        request("ccc", [4, *LONG], 30),
        request("dddd", LONG[7:300], 30),
        request("eeeee", [*LONG[:150], 9], 30),
    ]
    speculators = [Oracle(engine, requests, wrong=0.3)] if draft else []
    scheduler = make_scheduler(engine, speculators, fixed(draft), parallel=3, prefill_chunk=chunk)
    check(engine, requests, play(scheduler, requests))


def test_a_prompt_is_read_on_when_the_last_answer_is_cancelled() -> None:
    engine = TiledModel()
    scheduler = make_scheduler(engine, parallel=2, prefill_chunk=64)
    answers: dict[str, Answer] = {}
    scheduler.submit(request("a", LONG, 50))
    while not answers:
        scheduler.step()
        collect(scheduler, answers)
    prompt = request("bb", [5, *LONG], 4)
    scheduler.submit(prompt)
    for _ in range(3):
        scheduler.step()
    scheduler.cancel("a")
    collect(scheduler, answers)
    check(engine, [prompt], {"bb": play(scheduler)["bb"]})


@dataclass
class Used:
    """Remembers what was applied."""

    calls: list[Scales] = field(default_factory=list)


def active(*scales: float) -> Any:
    return sequence_of(Request(request_id="r", prompt=(1,), adapters=scales))


def test_requests_without_scales_change_nothing() -> None:
    used = Used()
    turns = AdapterTurns(used.calls.append)
    running = [active(), active()]
    for _ in range(3 * STEPS):
        assert turns.choose(running) == running
    assert used.calls == []


def test_sets_take_turns() -> None:
    used = Used()
    turns = AdapterTurns(used.calls.append)
    running = [active(0.5), active(), active(0.5), active(1.0)]
    served: list[int] = [0] * 4
    for _ in range(6 * STEPS):
        sharing = turns.choose(running)
        assert len({one.request.adapters for one in sharing}) == 1
        assert sharing
        for index, one in enumerate(running):
            served[index] += one in sharing
    assert served == [2 * STEPS] * 4
    assert len(used.calls) in (5, 6)


def test_who_is_alone_is_not_interrupted() -> None:
    used = Used()
    turns = AdapterTurns(used.calls.append)
    for _ in range(3 * STEPS):
        turns.choose([active(0.5)])
    assert used.calls == [(0.5,)]
    turns.choose([])
    assert used.calls == [(0.5,)]


@pytest.mark.parametrize(("tenant", "is_apart"), [("a", False), ("b", True)])
def test_answers_of_a_flood_pause_longer_for_the_prompt_of_another_tenant(
    tenant: str, is_apart: bool
) -> None:
    engine = TiledModel()
    # a decode takes some milliseconds of the pretended clock, whatever its rows
    scheduler = make_scheduler(engine, parallel=4, prefill_chunk=64, prefill_ms=1)
    first = replace(request("first", LONG, 900), namespace="a")
    for number in range(6):
        scheduler.submit(replace(first, request_id=f"a{number}"))
    for _ in range(20):
        scheduler.step()
    if not is_apart:
        scheduler.cancel("a3")
    scheduler.submit(
        replace(
            first,
            request_id="lone",
            prompt=[5, *LONG],
            namespace=tenant,
            priority=-1,
        )
    )
    engine.decodes.clear()
    answers: dict[str, Answer] = {}
    while "lone" not in answers:
        scheduler.step()
        collect(scheduler, answers)
    pieces = [max(rows.values()) for rows in engine.decodes if max(rows.values()) > 4]
    assert sum(pieces) == len(LONG) + 1
    assert (pieces[0] > 64) == is_apart
