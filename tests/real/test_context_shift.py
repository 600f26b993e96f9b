"""Texts longer than the context, and moved pieces of kept prompts, with libllama's cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.real.answers import Setting, make_requests

from headstart.app import demo
from headstart.app.assemble import Models, build_scheduler
from headstart.config import EngineConfig
from headstart.engine.context import LlamaEngine
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.scheduler.scheduler import Scheduler
from headstart.types import Batch
from headstart.types.request import FinishEvent, Request, TokenEvent

CONTEXT = 160
PAIR = Models(demo.path(demo.TARGET), demo.path(demo.DRAFT), is_demo=True)


def scheduler_of(types: str, num_slots: int) -> Scheduler:
    config = Setting(types, 6, num_slots, CONTEXT).config()
    limits = replace(config.scheduler, context_shift=True)
    return build_scheduler(replace(config, scheduler=limits), PAIR)[0]


def answers(scheduler: Scheduler, requests: list[Request]) -> dict[str, list[int]]:
    texts: dict[str, list[int]] = {r.request_id: [] for r in requests}
    for request in requests:
        scheduler.submit(request)
    while scheduler.has_work:
        scheduler.step()
        for event in scheduler.take_events():
            if isinstance(event, TokenEvent):
                texts[event.request_id] += event.tokens
            else:
                assert isinstance(event, FinishEvent)
    return texts


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_shifted_text_is_identical_with_and_without_drafts(temperature: float) -> None:
    requests = [
        replace(
            r,
            prompt=r.prompt[:90],
            num_keep=(0, 8, -1)[i % 3],
            sampling=replace(r.sampling, ignore_eos=True),
        )
        for i, r in enumerate(make_requests(3, temperature, max_tokens=200))
    ]
    expected = answers(scheduler_of("off", 1), requests)
    assert all(len(tokens) == 200 for tokens in expected.values())
    scheduler = scheduler_of("ngram-simple,draft-model", 2)
    assert answers(scheduler, requests) == expected
    assert scheduler.counts.total.drafts.num_accepted > 0


@pytest.fixture(scope="module")
def engine() -> LlamaEngine:
    settings = EngineConfig(context=256, batch=256, threads=1, gpu_layers=0)
    return LlamaEngine(Model(demo.path(demo.TARGET), settings), settings, Limits(2, 16, 8))


def decode(engine: LlamaEngine, seq_id: int, position: int, tokens: list[int]) -> np.ndarray:
    batch = Batch(256)
    batch.add(seq_id, position, tokens, 1)
    return engine.decode(batch)[0].copy()


def test_a_shift_leaves_the_sequences_that_share_its_cells_alone(engine: LlamaEngine) -> None:
    text, following = list(range(40, 100)), [7]
    engine.clear(0)
    decode(engine, 0, 0, text)
    expected = decode(engine, 0, 60, following)
    assert engine.truncate(0, 60)
    assert engine.copy_prefix(0, 1, 60)
    assert engine.shift(1, 10, 30)
    moved = decode(engine, 1, 40, following)
    assert np.allclose(decode(engine, 0, 60, following), expected, atol=1e-3)
    assert not np.allclose(moved, expected, atol=1e-1)


def test_moved_tokens_stand_where_the_model_expects_them(engine: LlamaEngine) -> None:
    """With all in front dropped, keys turned back are those of a text read from its beginning."""
    text = list(range(40, 100))
    engine.clear(0)
    decode(engine, 0, 0, text[:1])  # in the first layer a key depends on its token alone
    decode(engine, 0, 1, text[1:])
    assert engine.shift(0, 0, 30)
    moved = decode(engine, 0, 30, [7])
    engine.clear(0)
    decode(engine, 0, 0, text[30:])
    fresh = decode(engine, 0, 30, [7])
    engine.clear(0)
    decode(engine, 0, 0, text)
    unmoved = decode(engine, 0, 60, [7])
    assert np.abs(moved - fresh).mean() < 2 * np.abs(unmoved - fresh).mean()
    assert np.corrcoef(moved, fresh)[0, 1] > 0.9
