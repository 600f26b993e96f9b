"""Drafters that read hidden states behind drafts copied from the text, over tiny real models: the
same text, and where they predict exactly, every draft accepted. Blocks do not continue drafts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.heads import CYCLE
from tests.real.answers import Setting, different, generate, open_setting
from tests.real.pairs import RANDOM, RIGHT, ask, prompt_of, text_after
from tests.real.support import byte_requests
from tests.unit.scheduler.test_hidden_states import Continuing, num_behind_texts

from headstart.app import saved_control
from headstart.app.assemble import Models, build_scheduler
from headstart.config import Config
from headstart.scheduler.scheduler import Scheduler

BLOCKS = ("dflash", "dspark")
SEVERAL_HEADS = ("three heads of step35", "heads of mimo2")  # each drafts a token, in their order
RIGHT_KINDS = [kind for kind in RIGHT if kind not in (*BLOCKS, *SEVERAL_HEADS)]
EAGLE3 = ("eagle3", "eagle3 shared", "eagle3 reduced")
TEXTS = "ngram-simple,ngram-map-k"
OPTIONS = {"ngram-simple": {"size_n": 2, "size_m": 3}, "ngram-map-k": {"size_n": 2, "size_m": 2}}


@pytest.fixture(autouse=True)
def continuing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control lets models draft wherever they can."""
    monkeypatch.setattr(saved_control, "Controller", Continuing)


def open_chain(name: str, models: Models, *, slots: int, exact: bool = False) -> Scheduler:
    config: Config = Setting("auto", 6, slots, exact=exact).config()
    chain = replace(config.speculation, spec_type=f"{TEXTS},{name}", options=OPTIONS)
    return build_scheduler(replace(config, speculation=chain), models)[0]


@pytest.mark.parametrize("kind", [*EAGLE3, *BLOCKS, "assistant", "heads of deepseek2"])
def test_the_text_is_the_same_in_every_chain(kind: str, tmp_path: Path) -> None:
    name, models = RANDOM[kind].name, RANDOM[kind].models(tmp_path)
    plain = open_setting(Setting(), replace(models, draft=None))
    chains = [open_chain(name, models, slots=slots, exact=True) for slots in (1, 2, 4)]
    for temperature in (0.0, 0.8, 1.5):
        requests = byte_requests(5, temperature)
        expected = generate(plain, requests)
        for scheduler in chains:
            assert different(expected, generate(scheduler, requests)) == ()
    for scheduler in chains:
        guarded = scheduler.drafting.speculators[name]
        assert not guarded.failure
        assert guarded.describe()["missing_states"] == 0
        assert scheduler.counts.total.by_speculator[name].num_drafted > 0
    behind_texts = [num_behind_texts(scheduler, name) for scheduler in chains]
    assert any(behind_texts) == (name not in BLOCKS)


@pytest.mark.parametrize("kind", RIGHT_KINDS)
def test_a_drafter_that_predicts_exactly_is_right_behind_texts(kind: str, tmp_path: Path) -> None:
    name, models = RIGHT[kind].name, RIGHT[kind].models(tmp_path)
    scheduler = open_chain(name, models, slots=2)
    for seed in range(4):
        length = 3 * CYCLE
        ask(scheduler, text_after(f"{seed}", prompt_of(seed, 9 + 4 * seed), max_tokens=length))
    stats = scheduler.counts.total.by_speculator[name]
    assert stats.num_accepted == stats.num_drafted > 0
    assert num_behind_texts(scheduler, name) > 0
