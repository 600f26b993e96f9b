"""Adapters per request and for all, with a real tiny model: texts and caches do not mix."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.models import tiny_llama
from tests.real.test_adapters import write_lora
from tests.server.serving import serving_models

from headstart.config import Config, EngineConfig, ModelConfig, SchedulerConfig, ServerConfig
from headstart.server import adapters

PROMPT = "the theatre and the other thing in an inn " * 3


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("model")
    files = [write_lora(folder / f"lora-{seed}.gguf", seed=seed) for seed in (1, 2)]
    engine = EngineConfig(
        gpu_layers=0, threads=1, context=2048, exact=True,
        lora=str(files[0]), lora_scaled=f"{files[1]}:0",
    )  # fmt: skip
    config = Config(
        model=ModelConfig(model=str(tiny_llama(folder / "model.gguf"))),
        engine=engine,
        scheduler=SchedulerConfig(parallel=3),
        server=ServerConfig(),
    )
    with serving_models(config) as client:
        yield client


@pytest.fixture
def adapted(served: httpx2.Client) -> Iterator[httpx2.Client]:
    yield served
    served.post("/lora-adapters", json=[{"id": 0, "scale": 1}])


def ask(adapted: httpx2.Client, lora: Any = None, **body: Any) -> dict[str, Any]:
    wanted = {"prompt": PROMPT, "n_predict": 24, "temperature": 0, "ignore_eos": True}
    answer = adapted.post("/completion", json=wanted | {"lora": lora, "return_tokens": True} | body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def lora(first: float, second: float = 0.0) -> list[dict[str, float]]:
    return [{"id": 0, "scale": first}, {"id": 1, "scale": second}]


def test_a_request_says_how_much_each_adapter_counts(adapted: httpx2.Client) -> None:
    usual = ask(adapted)["tokens"]
    texts = [ask(adapted, one)["tokens"] for one in (lora(1), lora(0), lora(0, 1), lora(1, 1))]
    assert texts[0] == usual
    assert len({tuple(text) for text in texts}) == 4
    assert ask(adapted, [{"id": 1, "scale": 1}])["tokens"] == texts[2]
    assert ask(adapted, lora(0.5))["generation_settings"]["lora"] == lora(0.5)


def test_caches_of_different_adapters_do_not_mix(adapted: httpx2.Client) -> None:
    alone = {scale: ask(adapted, lora(scale), cache_prompt=False)["tokens"] for scale in (0, 1)}
    for scale in (1, 0, 0, 1):
        answer = ask(adapted, lora(scale))
        assert answer["tokens"] == alone[scale]
    assert ask(adapted, lora(0))["timings"]["cache_n"] > 0
    assert ask(adapted, lora(0.25))["timings"]["cache_n"] == 0
    assert ask(adapted, lora(0.2500001))["timings"]["cache_n"] == 0


def test_requests_with_different_adapters_run_at_once(adapted: httpx2.Client) -> None:
    wishes = [lora(0), lora(1), lora(0.5, 0.5), lora(1), lora(0), lora(0, 1)]
    alone = [ask(adapted, one, cache_prompt=False)["tokens"] for one in wishes]
    with ThreadPoolExecutor(len(wishes)) as threads:
        together = list(threads.map(lambda one: ask(adapted, one)["tokens"], wishes))
    assert together == alone


def test_scales_of_all_requests_can_be_changed(adapted: httpx2.Client) -> None:
    first, second = adapted.get("/lora-adapters").json()
    assert (first["id"], first["scale"], second["id"], second["scale"]) == (0, 1, 1, 0)
    assert first["path"].endswith("lora-1.gguf")
    assert first["task_name"] == ""
    usual, plain = ask(adapted)["tokens"], ask(adapted, lora(0))["tokens"]
    changed = adapted.post("/lora-adapters", json=[{"id": 1, "scale": 0}])
    assert (changed.status_code, changed.json()) == (200, {"success": True})
    assert [one["scale"] for one in adapted.get("/lora-adapters").json()] == [0, 0]
    assert ask(adapted)["tokens"] == plain != usual
    assert ask(adapted, lora(1))["tokens"] == usual
    for one in ({"n_predict": 1}, {"n_predict": 2}):  # nobody gets what others left
        assert ask(adapted, **one)["tokens"] == plain[: one["n_predict"]]


def test_scales_that_one_key_sets_are_not_those_of_another(tmp_path: Path) -> None:
    adapter = str(write_lora(tmp_path / "lora.gguf", seed=1))
    config = Config(
        model=ModelConfig(model=str(tiny_llama(tmp_path / "model.gguf"))),
        engine=EngineConfig(gpu_layers=0, threads=1, context=256, lora=adapter),
        scheduler=SchedulerConfig(parallel=1),
        server=ServerConfig(api_key="one,two", slot_save_path=str(tmp_path)),
    )
    with serving_models(config) as client:
        for key, told in (("one", 0), ("two", 1), ("one", 0)):
            client.headers["authorization"] = f"Bearer {key}"
            if told == 0:
                client.post("/lora-adapters", json=[])
            assert client.get("/lora-adapters").json()[0]["scale"] == told
            settings = ask(client, n_predict=1)["generation_settings"]
            assert settings["lora"] == [{"id": 0, "scale": told}]
        saved = client.post("/slots/0?action=save", json={"filename": "a"}).json()
        assert saved["n_saved"] > 0  # a prompt that was read with these scales


def test_scales_are_kept_of_the_tenants_that_set_other_ones_last(tmp_path, monkeypatch) -> None:
    """A proxy may name any number of tenants."""
    monkeypatch.setattr(adapters, "MAX_TENANTS", 2)
    adapter = str(write_lora(tmp_path / "lora.gguf", seed=1))
    config = Config(
        model=ModelConfig(model=str(tiny_llama(tmp_path / "model.gguf"))),
        engine=EngineConfig(gpu_layers=0, threads=1, context=256, lora=adapter),
        server=ServerConfig(api_key="key", tenant_header="X-Tenant"),
    )
    with serving_models(config) as client:
        client.headers["authorization"] = "Bearer key"

        def kept() -> str:
            told = {
                name: client.get("/lora-adapters", headers={"X-Tenant": name}).json()[0]["scale"]
                for name in "abcd"
            }
            return "".join(name for name, scale in told.items() if scale != 1)

        found = []
        for name, scale in (("a", 0), ("b", 0), ("a", 0.5), ("c", 0), ("c", 1), ("d", 0)):
            wanted = [{"id": 0, "scale": scale}]
            client.post("/lora-adapters", json=wanted, headers={"X-Tenant": name})
            found.append(kept())
        assert found == ["a", "ab", "ab", "ac", "a", "ad"]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({}, "must be an array"),
        ([{"id": 2, "scale": 1}], "lora.0.id is 2 but the adapters are 0 to 1"),
        ([{"id": 0, "scale": "much"}], "lora.0.scale is 'much'"),
        ([{"id": 0, "scale": 1e39}], "lora.0.scale is 1e+39 but must be at most 100"),
        ([{"id": 0, "scale": -101}], "lora.0.scale is -101 but must be at least -100"),
        ([{"id": "a", "scale": 1}], "lora.0.id is 'a'"),
        ([3], "lora.0 is 3"),
        ([{}] * 257, "must have at most 256 items"),
    ],
)
def test_scales_that_cannot_be_had_are_refused(adapted: httpx2.Client, wanted, words) -> None:
    for path, body in (
        ("/lora-adapters", wanted),
        ("/completion", {"prompt": "a", "lora": wanted or "x"}),
    ):
        answer = adapted.post(path, json=body)
        assert answer.status_code == 400
        if wanted:
            assert words in answer.json()["error"]["message"]
    assert adapted.get("/lora-adapters").json()[0]["scale"] == 1


def test_without_adapters_there_are_none(client: httpx2.Client) -> None:
    assert client.get("/lora-adapters").json() == []
    assert client.post("/lora-adapters", json=[]).json() == {"success": True}
    answer = client.post("/completion", json={"prompt": "a", "lora": lora(1)})
    assert "this server has no adapters; start it with --lora" in answer.json()["error"]["message"]
