"""The first token of a tenant that asks now and then, beside a flood, in simulated arrivals."""

from __future__ import annotations

import heapq
from dataclasses import replace
from random import Random
from statistics import median

import pytest
from tests.harness import EOS, Model, endless, make_scheduler

from headstart.sampling import SamplingParams
from headstart.structures.tenants import namespace_of_key
from headstart.types import Batch
from headstart.types.request import FinishEvent, TokenEvent

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


def first_tokens(
    flood: int, length: tuple[int, int], answer: tuple[int, int], weights: str = ""
) -> list[float]:
    """Seconds to the first token of 30 requests, beside so many others that never end."""
    engine, random = Timed(), Random(1)
    scheduler = make_scheduler(
        engine, clock=lambda: engine.now, prefill_ms=100.0, tenant_weights=weights
    )
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
    ("length", "answer", "weights"),
    [
        ((100, 800), (20, 200), ""),
        ((100, 800), (20, 200), "flood=2"),
        ((400, 800), (5, 20), ""),  # it reads most of the time
        ((2000, 6000), (5, 50), ""),  # what loses its cells takes long to copy
    ],
)
def test_a_tenant_that_asks_now_and_then_waits_little_longer_beside_a_flood(
    length, answer, weights
) -> None:
    alone = median(first_tokens(0, length, answer))
    beside = sorted(first_tokens(100, length, answer, weights))
    assert median(beside) <= 1.3 * alone
    # a step of prompts that nobody waits for was under way, and cells had to be copied
    assert beside[-1] <= 2.5 * alone
