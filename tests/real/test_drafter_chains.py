"""Drafters that read hidden states beside speculators that copy, over tiny real models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.harness import play
from tests.real.answers import Setting, different, open_config, open_setting
from tests.real.pairs import RANDOM
from tests.real.support import byte_requests

from headstart.app import saved_control
from headstart.app.assemble import Models
from headstart.config import Config
from headstart.scheduler.scheduler import Scheduler
from headstart.testing import RandomController

KINDS = (
    *("eagle3", "eagle3 shared", "eagle3 reduced", "dflash", "dspark"),
    *("assistant", "heads of deepseek2"),
)
TEXTS = "ngram-simple,ngram-map-k"
OPTIONS = {"ngram-simple": {"size_n": 2, "size_m": 3}, "ngram-map-k": {"size_n": 2, "size_m": 2}}


def open_chain(name: str, models: Models, slots: int) -> Scheduler:
    config: Config = Setting("auto", 6, slots).config()
    chain = replace(config.speculation, spec_type=f"{TEXTS},{name}", options=OPTIONS)
    return open_config(replace(config, speculation=chain), models)


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_the_same_in_every_chain(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_control, "Controller", RandomController)
    name, models = RANDOM[kind].name, RANDOM[kind].models(tmp_path)
    plain = open_setting(Setting(), replace(models, draft=None))
    chains = [open_chain(name, models, slots) for slots in (1, 2, 4)]
    for temperature in (0.0, 0.8, 1.5):
        requests = byte_requests(5, temperature)
        expected = play(plain, requests)
        for scheduler in chains:
            assert different(expected, play(scheduler, requests)) == ()
    for scheduler in chains:
        guarded = scheduler.drafting.speculators[name]
        assert not guarded.failure
        assert guarded.describe()["missing_states"] == 0
        assert scheduler.counts.total.by_speculator[name].num_drafted > 0
