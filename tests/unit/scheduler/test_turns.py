"""Whose turn a step is: answers and prompts, sets of adapters, tenants, also beside a flood."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random
from statistics import median
from typing import Any

import pytest
from tests.harness import (
    ENDLESS,
    EOS,
    Model,
    Oracle,
    check,
    endless,
    fixed,
    make_scheduler,
    play,
    sequence_of,
    step_until,
    steps,
    submit_all,
)
from tests.pictures import Pictures, with_pictures

from headstart.config import SpeculationConfig
from headstart.scheduler.turns import STEPS, Scales, Turns
from headstart.structures.tenants import namespace_of_key
from headstart.types import Batch, CacheKind
from headstart.types.request import FinishEvent, Request, TokenEvent
from headstart.types.sampling_params import SamplingParams

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
    return endless(prompt, max_tokens, name, sampling=replace(ENDLESS, seed=len(name)))


def read_beside(
    engine: TiledModel, prompt: list[int], *, answered: int, chunk: int = 128
) -> list[Counter[int]]:
    """Decodes from when `prompt` arrives beside two answers, which have so many tokens behind them,
    until its first token. Its sequence is 2.
    """
    scheduler = make_scheduler(engine, parallel=3, prefill_chunk=chunk)
    texts = (request(f"a{index}", [index, *LONG[: answered - 1]], 50) for index in range(2))
    submit_all(scheduler, texts)
    answers = step_until(scheduler, lambda told: len(told) == 2)
    engine.decodes.clear()
    scheduler.submit(request("prompt", prompt, 4))
    step_until(scheduler, lambda told: "prompt" in told, answers)
    return engine.decodes


def test_long_answers_and_the_chunks_of_a_prompt_are_decoded_in_turn() -> None:
    """Chunks are whole tiles, and leave less than a tile to none."""
    decodes = read_beside(TiledModel(), [5, *LONG], answered=200)
    assert all(set(rows) in ({0, 1}, {2}) for rows in decodes)
    assert all(bool(before[2]) != bool(after[2]) for before, after in pairwise(decodes))
    chunks = [rows[2] for rows in decodes if rows[2]]
    assert sum(chunks) == len(LONG) + 1
    assert all(rows % TILE == 0 for rows in chunks[:-1])
    assert chunks[-1] >= TILE


@pytest.mark.parametrize(
    ("prompt", "answered", "chunk", "tile"),
    [
        (LONG, 20, 128, TILE),
        (LONG[:40], 200, 128, TILE),
        (LONG, 200, 16, TILE),
        (LONG, 200, 128, 1),
    ],
    ids=["short answers", "a short prompt", "small chunks", "no tiles"],
)
def test_where_little_is_looked_at_for_nothing_they_share_decodes(prompt, answered, chunk, tile):
    engine = TiledModel()
    engine.attention_tile = tile
    decodes = read_beside(engine, [5, *prompt], answered=answered, chunk=chunk)
    assert all(set(rows) == {0, 1, 2} for rows in decodes if rows[2])


@pytest.mark.parametrize("prompt", [LONG, LONG[:40]], ids=["long", "short"])
@pytest.mark.parametrize("kind", [CacheKind.ROLLBACK, CacheKind.CHECKPOINT])
def test_of_recurrent_models_short_answers_and_a_prompt_share_no_decode_either(kind, prompt):
    engine = TiledModel(kind)
    engine.attention_tile = 1
    decodes = read_beside(engine, [5, *prompt], answered=20)
    assert sum(rows[2] for rows in decodes) == len(prompt) + 1
    assert all(set(rows) in ({0, 1}, {2}) for rows in decodes)
    assert all(bool(before[2]) != bool(after[2]) for before, after in pairwise(decodes))


@pytest.mark.parametrize(
    ("spec", "draft", "num", "is_limited"),
    [("auto", 16, 6, True), ("auto", 100, 1, False), ("fixed", 16, 6, False)],
    ids=["several", "one", "by hand"],
)
def test_drafts_of_several_answers_fill_no_tile_of_attention(spec, draft, num, is_limited):
    engine = TiledModel()
    requests = [request("a" * index, LONG[index:200], 200) for index in range(num)]
    oracle = Oracle(engine, requests, wrong=0.0)
    config = SpeculationConfig(spec=spec, draft_max=draft)
    scheduler = make_scheduler(engine, [oracle], config, parallel=num)
    check(engine, requests, play(scheduler, requests))
    most = max(rows.total() for rows in engine.decodes if max(rows.values()) <= 1 + draft)
    assert most == TILE - 1 if is_limited else most >= TILE


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


def test_only_who_finds_a_free_slot_beside_others_counts_as_an_arrival():
    """Who takes the place of one that ended waited for that, not for the end of a step."""
    scheduler = make_scheduler(Model(), parallel=2)
    submit_all(scheduler, [request("a" * index, [index], 6) for index in range(1, 6)])
    counts = [record.plan.num_new for record in steps(scheduler)]
    assert len(counts) > 10
    assert not any(counts)
    scheduler.submit(request("first", [1], 20))
    scheduler.step()
    scheduler.submit(request("second", [2], 20))
    assert [record.plan.num_new for record in steps(scheduler)][:2] == [1, 0]


def test_prompts_that_wait_for_the_answers_turn_are_in_the_price_of_drafts():
    """A long draft of an answer delays their first token, though their rows come in other steps."""
    engine = TiledModel()
    answer, *prompts = [request(name, [len(name), *LONG], 40) for name in ("a", "bb", "ccc")]
    scheduler = make_scheduler(engine, [Oracle(engine, [answer])], parallel=4, prefill_chunk=64)
    scheduler.submit(answer)
    step_until(scheduler, bool)
    submit_all(scheduler, prompts)
    plans = [record.plan for record in steps(scheduler)]
    assert [plan.num_new for plan in plans if plan.num_new] == [2]
    turns = [plan for plan in plans if plan.step and not plan.prompts]
    assert {plan.step.num_reading for plan in turns if plan.step} == {0, 1, 2}


def test_a_prompt_is_read_on_when_the_last_answer_is_cancelled() -> None:
    engine = TiledModel()
    scheduler = make_scheduler(engine, parallel=2, prefill_chunk=64)
    scheduler.submit(request("a", LONG, 50))
    answers = step_until(scheduler, bool)
    prompt = request("bb", [5, *LONG], 4)
    submit_all(scheduler, [prompt], 3)
    scheduler.cancel("a")
    check(engine, [prompt], play(scheduler, answers=answers))


def test_images_of_one_prompt_do_not_keep_another_with_one_from_its_turn() -> None:
    scheduler = make_scheduler(Model(context_size=512), parallel=2)
    scheduler.media = Pictures()
    for name, num in (("many", 20), ("one", 1)):
        tokens, media = with_pictures([5] * 60, *((2 + 7 * at, 0) for at in range(num)))
        scheduler.submit(replace(request(name, tokens, 4), media=media))
    rows = Counter[str]()
    for record in steps(scheduler):
        for result in record.results:
            name = result.sequence.request.request_id
            rows[name] += result.num_rows
            if name == "one" and result.emitted:
                assert rows["many"] < rows["one"] + 20
                return


def test_an_image_late_in_a_prompt_has_its_turn_while_prompts_with_early_ones_come() -> None:
    scheduler = make_scheduler(Model(context_size=512), parallel=3)
    scheduler.media = Pictures()
    tokens, media = with_pictures([5] * 200, (150, 0))
    scheduler.submit(replace(request("late", tokens, 1), media=media))
    for num in range(1, 100):
        tokens, media = with_pictures([num % 29, num % 23, 5], (1, 0))
        submit_all(scheduler, [replace(request(f"early{num}", tokens, 1), media=media)], 2)
        if "late" in [event.request_id for event in scheduler.take_events()]:
            return
    raise AssertionError("it never has it")


def active(*scales: float) -> Any:
    return sequence_of(Request(request_id="r", prompt=(1,), adapters=scales))


@pytest.mark.parametrize("scales", [(), (0.5,)])
def test_a_set_that_is_alone_is_applied_once_and_not_interrupted(scales: Scales) -> None:
    applied = list[Scales]()
    turns = Turns(Model(), 64)
    turns.use_scales = applied.append
    running = [active(*scales), active(*scales)]
    for _ in range(3 * STEPS):
        assert turns.choose(running) == ([], running)
    turns.choose([])
    assert applied == [scales] * bool(scales)


def test_sets_take_turns() -> None:
    applied = list[Scales]()
    turns = Turns(Model(), 64)
    turns.use_scales = applied.append
    running = [active(0.5), active(), active(0.5), active(1.0)]
    served: list[int] = [0] * 4
    for _ in range(6 * STEPS):
        _, sharing = turns.choose(running)
        assert len({one.request.adapters for one in sharing}) == 1
        assert sharing
        for index, one in enumerate(running):
            served[index] += one in sharing
    assert served == [2 * STEPS] * 4
    assert len(applied) in (5, 6)


@pytest.mark.parametrize(("tenant", "is_apart"), [("a", False), ("b", True)])
def test_answers_of_a_flood_pause_longer_for_the_prompt_of_another_tenant(tenant, is_apart) -> None:
    engine = TiledModel()
    # a decode takes some milliseconds of the pretended clock, whatever its rows
    scheduler = make_scheduler(engine, parallel=4, prefill_chunk=64, prefill_ms=1)
    first = replace(request("first", LONG, 900), namespace="a")
    submit_all(scheduler, (replace(first, request_id=f"a{number}") for number in range(6)), 20)
    if not is_apart:
        scheduler.cancel("a3")
    lone = request("lone", [5, *LONG], 900)
    scheduler.submit(replace(lone, namespace=tenant, priority=-1))
    engine.decodes.clear()
    step_until(scheduler, lambda told: "lone" in told)
    pieces = [max(rows.values()) for rows in engine.decodes if max(rows.values()) > 4]
    assert sum(pieces) == len(LONG) + 1
    assert (pieces[0] > 64) == is_apart


ROW, LEAST, BLOCK = 0.0017, 0.1, 0.0004  # seconds: of a prompt row, a tile of these, a block's copy
VISIT = 400  # tokens of a prompt


class Timed(Model):
    """Decodes take as long as on a processor, and nothing else takes time but copies."""

    def __init__(self) -> None:
        super().__init__(1, context_size=16384, num_cells=32768)
        self.max_batch_tokens, self.attention_tile, self.now = 2048, 64, 0.0

    def launch(self, batch: Batch) -> None:
        rows = batch.num_rows
        super().launch(batch)
        self.now += 0.01 + 0.005 * rows if rows < 16 else max(LEAST, ROW * rows)

    def save_block(self, seq_id: int, start: int, end: int) -> bytearray:
        self.now += BLOCK
        return super().save_block(seq_id, start, end)

    def restore_block(self, seq_id: int, data: bytes | bytearray | memoryview) -> bool:
        self.now += BLOCK
        return super().restore_block(seq_id, data)


def first_tokens(flood: int, length: tuple[int, int], answer: tuple[int, int]) -> list[float]:
    """Seconds to the first token of 30 requests, beside so many others that never end."""
    engine, random = Timed(), Random(1)
    scheduler = make_scheduler(engine, clock=lambda: engine.now, prefill_ms=100.0)
    arrivals = [(0.0, number) for number in range(1, flood + 1)]  # 0 is the visitor
    heapq.heappush(arrivals, (10.0, 0))
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    waits, sent, number = list[float](), 0.0, 0
    while len(waits) < 30:
        if not scheduler.has_work:
            engine.now = max(engine.now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= engine.now:
            at, client = heapq.heappop(arrivals)
            num_prompt, num_tokens = VISIT, 16
            if client:
                num_prompt, num_tokens = random.randint(*length), random.randint(*answer)
            else:
                sent = at
            number += 1
            prompt = [random.randrange(EOS) for _ in range(num_prompt)]
            one = endless(prompt, num_tokens, f"{client}.{number}", sampling=sampling)
            tenant = namespace_of_key(b"flood" if client else b"visitor")
            scheduler.submit(replace(one, namespace=tenant))
        scheduler.step()
        for event in scheduler.take_events():
            client = int(event.request_id.split(".")[0])
            if isinstance(event, TokenEvent) and not client and sent:
                waits.append(engine.now - sent)
                sent = 0.0
            if isinstance(event, FinishEvent):
                pause = 0.003 if client else random.uniform(0.2, 1.0)
                heapq.heappush(arrivals, (engine.now + pause, client))
    return waits


@pytest.mark.parametrize(
    ("length", "answer"),
    [
        ((100, 800), (20, 200)),
        ((400, 800), (5, 20)),  # it reads most of the time
        ((2000, 6000), (5, 50)),  # what loses its cells takes long to copy
    ],
)
def test_a_tenant_that_asks_now_and_then_waits_little_longer_beside_a_flood(length, answer) -> None:
    alone = median(first_tokens(0, length, answer))
    beside = sorted(first_tokens(100, length, answer))
    assert median(beside) <= 1.3 * alone
    # a step of prompts that nobody waits for was under way, and cells had to be copied
    assert beside[-1] <= 2.5 * alone
