"""--no-kv-unified and --kv-unified-per-slot: a request has its slot's share, or a limit."""

from __future__ import annotations

import pytest
from tests.server.server_process import until
from tests.server.serving import serving_models

from headstart.app.assemble import build_scheduler, find_models
from headstart.app.loading import most_tokens
from headstart.config import Config, EngineConfig, SchedulerConfig, SpeculationConfig
from headstart.types.errors import ConfigError

OFF = SpeculationConfig(spec="off")


def config(context: int = 512, **scheduler: object) -> Config:
    engine = EngineConfig(context=context, threads=1)
    return Config(engine=engine, scheduler=SchedulerConfig(**scheduler), speculation=OFF)


def test_without_a_unified_cache_a_request_has_its_slots_share():
    with serving_models(config(parallel=2, kv_unified=False)) as client:
        props = client.get("/props").json()
        assert props["default_generation_settings"]["n_ctx"] == 256
        until(lambda: client.get("/slots").json() != [], "the engine's first report")
        assert [slot["n_ctx"] for slot in client.get("/slots").json()] == [256, 256]
        too_long = client.post("/completion", json={"prompt": "a b " * 200, "n_predict": 4})
        assert too_long.status_code == 400
        assert too_long.json()["error"]["n_ctx"] == 256
        body = {"prompt": "a b ", "n_predict": 400, "ignore_eos": True}
        answer = client.post("/completion", json=body).json()
        assert answer["tokens_evaluated"] + answer["tokens_predicted"] <= 256
        assert answer["stop_type"] == "limit"


@pytest.mark.parametrize(
    ("scheduler", "most"),
    [
        ({}, 512),
        ({"parallel": 4, "kv_unified": False}, 128),
        ({"kv_unified_per_slot": 100}, 100),
        ({"kv_unified_per_slot": 1000}, 512),
        ({"parallel": 2, "kv_unified": False, "kv_unified_per_slot": 300}, 256),
    ],
)
def test_the_smallest_limit_holds(scheduler, most):
    assert most_tokens(SchedulerConfig(**scheduler), 512, 512) == most


def test_a_share_that_is_of_no_use_is_refused_before_anything_is_served():
    few = config(parallel=16, kv_unified=False)
    with pytest.raises(ConfigError, match="a slot has 32 of the context's 512 tokens"):
        build_scheduler(few, find_models(few))
