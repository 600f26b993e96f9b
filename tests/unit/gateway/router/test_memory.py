"""What models take, by device, and which of them is unloaded for another."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from tests.unit.gateway.router.fakes import FakeStore, preset

from headstart.app import demo
from headstart.app.cli.serve import COMMAND
from headstart.config import Config, RouterConfig, ServerConfig
from headstart.gateway.balancer import app as balancer
from headstart.gateway.balancer.options import BalancerOptions
from headstart.gateway.router import serve as router
from headstart.gateway.router.pooled_model import LOADED, LoadLimits, PooledModel, parse_memory
from headstart.gateway.router.presets import MAIN, PROCESS_BYTES, Estimate, ModelPreset
from headstart.gateway.router.serve import estimate, read_estimate, serve
from headstart.types.errors import ConfigError, ModelError

MIB = 2**20


def using(needs: dict[str, int], last_used: float = 0.0) -> PooledModel:
    estimate = Estimate(needs)
    return PooledModel(preset("m"), status=LOADED, last_used=last_used, estimate=estimate)


def on_gpu(size: int, last_used: float = 0.0) -> PooledModel:
    return using({"CUDA0": size, MAIN: 1}, last_used)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (None, {}),
        ("16000", {MAIN: 16000 * MIB}),
        ("main=1, CUDA0=2", {MAIN: MIB, "CUDA0": 2 * MIB}),
    ],
)
def test_memory_is_said_for_all_or_by_device(text, sizes) -> None:
    assert parse_memory(text) == sizes


@pytest.mark.parametrize("text", ["-1", "0", "CUDA0", "CUDA0=", "=5", "1.5", "main=x"])
def test_memory_that_is_no_number_of_mib_is_refused(text) -> None:
    with pytest.raises(ConfigError, match="must be MiB"):
        parse_memory(text)


def test_no_model_is_loaded_beyond_the_bytes_of_any_device() -> None:
    limits = LoadLimits(budget={"CUDA0": 10, MAIN: 2})
    assert limits.fits(on_gpu(4), [on_gpu(6)])
    assert not limits.fits(on_gpu(5), [on_gpu(6)])
    assert not limits.fits(on_gpu(1), [on_gpu(1), on_gpu(1)]), "main memory"


def test_the_model_used_longest_ago_goes_first() -> None:
    old, new = on_gpu(3, 1.0), on_gpu(3, 2.0)
    assert LoadLimits(max_models=2).victims(on_gpu(3), [new, old], []) == [old]
    assert LoadLimits(budget={"CUDA0": 8}).victims(on_gpu(3), [new, old], []) == [old]


def test_only_models_of_the_full_device_go() -> None:
    elsewhere, there = using({"CUDA1": 9}, 1.0), on_gpu(9, 2.0)
    limits = LoadLimits(budget={"CUDA0": 10, "CUDA1": 10})
    assert limits.victims(on_gpu(9), [elsewhere, there], []) == [there]


def test_a_model_that_would_not_free_enough_stays_where_a_later_one_does() -> None:
    small, large = on_gpu(1, 1.0), on_gpu(8, 2.0)
    assert LoadLimits(budget={"CUDA0": 10}).victims(on_gpu(9), [small, large], []) == [large]


def test_nothing_is_unloaded_where_it_would_not_be_enough() -> None:
    busy, idle = on_gpu(8), on_gpu(1)
    assert LoadLimits(budget={"CUDA0": 10}).victims(on_gpu(5), [idle], [busy]) is None


SETTINGS = {"context": 4096, "gpu_layers": 20, "n_cpu_moe": 0}


def facts(**needs: int) -> dict:
    usable = {MAIN: 16000 * MIB, "CUDA0": 8000 * MIB}
    sizes = {MAIN if name == "main" else name: size * MIB for name, size in needs.items()}
    return {"needs": sizes, "usable": usable, "settings": SETTINGS}


def test_what_was_chosen_to_fit_is_said_to_the_server() -> None:
    found = read_estimate(preset("a"), facts(main=100, CUDA0=5000))
    assert set(found.arguments) == {
        "--context=4096", "--gpu-layers=20", "--n-cpu-moe=0", "--fit=off", "--cache-ram=2000",
    }  # fmt: skip


def test_main_memory_has_the_prompts_and_the_processes_as_well() -> None:
    found = read_estimate(preset("a"), facts(main=100, CUDA0=5000))
    assert found.needs == {MAIN: 2100 * MIB + PROCESS_BYTES, "CUDA0": 5000 * MIB}
    own = ModelPreset(name="a", source="preset", arguments=("--cache-ram=50",))
    found = read_estimate(own, facts(main=100))
    assert found.needs == {MAIN: 150 * MIB + PROCESS_BYTES}
    assert found.arguments[-1] == "--cache-ram=50"
    for most in (-1, 90_000, 2**30):  # no limit, which is -1 or, in a flag of the router, 2**30
        own = ModelPreset(name="a", source="preset", arguments=(f"--cache-ram={most}",))
        found = read_estimate(own, facts(main=100))
        assert found.needs == {MAIN: 2100 * MIB + PROCESS_BYTES}, "several models fit"
        assert found.arguments[-1] == "--cache-ram=2000"


def test_a_mapped_model_larger_than_memory_takes_all_of_it() -> None:
    assert read_estimate(preset("a"), facts(main=99000)).needs == {MAIN: 16000 * MIB}


def test_where_the_system_does_not_tell_nothing_is_limited() -> None:
    found = read_estimate(preset("a"), {"needs": {}, "usable": {}, "settings": SETTINGS})
    assert (found.needs, found.arguments, found.usable) == ({}, (), {})


def model(path: object, *arguments: str) -> ModelPreset:
    return ModelPreset(
        name="a",
        source="preset",
        arguments=(f"--model={path}", *arguments),
        environment=dict(os.environ),
    )


async def test_the_embedded_model_is_estimated_in_a_process_of_its_own(monkeypatch) -> None:
    """With the flags and variables of its server, also those that no memory depends on."""
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "512")
    found = await estimate({MAIN: 4000 * MIB}, model(demo.path(demo.TARGET), "--temp=0.5"))
    assert "--context=512" in found.arguments
    assert PROCESS_BYTES < found.needs[MAIN] < 1500 * MIB
    assert found.usable[MAIN] < 4000 * MIB, "others need memory too"


@pytest.mark.parametrize("flags", ["--parallel=2", "--parallel=2 --context=512"])
async def test_slots_share_the_context_in_a_router_as_they_do_alone(flags: str) -> None:
    """The context that fits is an argument, and one given with --parallel would be divided."""
    argv = flags.split()
    one = model(demo.path(demo.TARGET), *argv)
    found = await estimate({MAIN: 4000 * MIB}, one)
    alone, routed = COMMAND.read(argv), COMMAND.read([*argv, *found.arguments])
    assert routed.values["kv_unified"] is alone.values["kv_unified"]


async def test_a_file_that_is_no_model_is_refused_with_the_reason() -> None:
    with pytest.raises(ModelError, match="test_memory"):
        await estimate({}, model(__file__))


@pytest.fixture(autouse=True)
def _log_of_the_process_stays() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = before, level


def test_more_models_at_the_start_than_may_be_loaded_stop_the_start() -> None:
    presets = [preset(name, loads_on_startup=True) for name in ("a", "b", "c")]
    config = Config(router=RouterConfig(models_max=2))
    with pytest.raises(ConfigError, match="3 models have load-on-startup"):
        serve(config, lambda: presets, FakeStore())


def test_a_gateway_has_files_for_both_sides_of_a_connection_and_takes_images(monkeypatch) -> None:
    monkeypatch.setattr("headstart.structures.system.resource.getrlimit", lambda _: (264, 264))
    served = list[tuple[uvicorn.Server, ServerConfig]]()
    for gateway in (balancer, router):
        monkeypatch.setattr(gateway, "run", lambda server, own, _: served.append((server, own)))
    balancer.serve(BalancerOptions(backend="http://10.0.0.2"), Config())
    serve(Config(), list, FakeStore())
    for server, own in served:
        protocol: Any = server.config.http
        assert protocol.keywords["max_connections"] == own.max_connections == 100
        assert own.max_body_mb == 64


def test_memory_that_is_no_number_stops_the_start() -> None:
    config = Config(router=RouterConfig(models_memory="lots"))
    with pytest.raises(ConfigError, match="--models-memory has 'lots'"):
        serve(config, list, FakeStore())
