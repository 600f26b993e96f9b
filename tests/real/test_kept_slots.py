"""What the slots hold comes back with the model, with the embedded model."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from tests.real.support import without_draft
from tests.server.server_process import until
from tests.server.serving import serving_models

from headstart.app import demo
from headstart.app.assemble import build_scheduler, find_models
from headstart.app.loading import most_tokens
from headstart.config import (
    Config,
    EngineConfig,
    SchedulerConfig,
    ServerConfig,
    SpeculationConfig,
)
from headstart.types.errors import ConfigError

PROMPT = "def add(first, second):\n    return first + second\n\n\ndef multiply(first, second):\n"
BODY = {"prompt": PROMPT * 3, "n_predict": 8, "temperature": 0}


@contextmanager
def server(folder: Path, *, api_key: str | None = None, **engine) -> Iterator[httpx2.Client]:
    config = Config(
        engine=EngineConfig(context=1024, threads=1, **engine),
        scheduler=SchedulerConfig(parallel=2, cache_ram=0, keep_slots=str(folder)),
        speculation=SpeculationConfig(spec_state="none", spec_type="none"),
        server=ServerConfig(api_key=api_key),
    )
    with serving_models(config, without_draft(demo.path(demo.TARGET))) as client:
        yield client


def ask(client: httpx2.Client, key: str = "") -> dict:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return client.post("/completion", json=BODY, headers=headers).json()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "kept"
    with server(folder) as client:
        assert ask(client)["timings"]["cache_n"] == 0
    return folder


@pytest.fixture
def kept(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "kept"))


def test_a_prompt_is_not_read_again_after_the_model_was_unloaded(kept: Path) -> None:
    with server(kept) as client:
        again = ask(client)
    assert (again["timings"]["prompt_n"], again["tokens_cached"] > 0) == (1, True)


def test_only_their_owner_can_read_what_was_kept(written: Path) -> None:
    assert stat.S_IMODE(written.stat().st_mode) == 0o700


def test_a_state_of_other_settings_is_not_used(kept: Path) -> None:
    with server(kept, rope_freq_base=20000.0) as client:
        assert ask(client)["timings"]["cache_n"] == 0


@pytest.mark.parametrize("damage", ["[" * 100_000, "", "{", '{"identity": 1}', "[]"])
def test_a_damaged_list_is_passed_over(kept: Path, damage: str) -> None:
    (kept / "slots.json").write_text(damage)
    with server(kept) as client:
        assert ask(client)["timings"]["cache_n"] == 0


def test_a_damaged_state_is_passed_over(kept: Path) -> None:
    (file,) = kept.glob("*.bin")
    file.write_bytes(file.read_bytes()[:500])
    with server(kept) as client:
        assert ask(client)["timings"]["cache_n"] == 0


def test_what_was_kept_is_its_tenants_alone(tmp_path: Path) -> None:
    with server(tmp_path, api_key="one,two") as client:
        ask(client, "one")
    with server(tmp_path, api_key="one,two") as client:
        assert ask(client, "two")["timings"]["cache_n"] == 0
        assert ask(client, "one")["timings"]["prompt_n"] == 1


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with server(tmp_path / "file" / "x") as client:
        assert ask(client)["tokens_predicted"] == 8


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
