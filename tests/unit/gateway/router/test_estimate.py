from __future__ import annotations

import os

import pytest
from tests.unit.gateway.router.fakes import preset

from headstart.app import demo
from headstart.gateway.router.estimate import MIB, Estimator, read_estimate
from headstart.gateway.router.presets import MAIN, PROCESS_BYTES, ModelPreset
from headstart.types.errors import ModelError

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
    assert not any(one.startswith("--cache-ram") for one in found.arguments)


def test_a_mapped_model_larger_than_memory_takes_all_of_it() -> None:
    assert read_estimate(preset("a"), facts(main=99000)).needs == {MAIN: 16000 * MIB}


def test_where_the_system_does_not_tell_nothing_is_limited() -> None:
    found = read_estimate(preset("a"), {"needs": {}, "usable": {}, "settings": SETTINGS})
    assert (found.needs, found.arguments, found.usable) == ({}, (), {})


def model(path: object, *arguments: str) -> ModelPreset:
    return ModelPreset(
        name="a",
        source="preset",
        arguments=(),
        engine_arguments=(f"--model={path}", *arguments),
        environment=dict(os.environ),
    )


async def test_the_embedded_model_is_estimated_in_a_process_of_its_own() -> None:
    estimator = Estimator({MAIN: 4000 * MIB})
    found = await estimator(model(demo.path(demo.TARGET), "--context=512"))
    assert "--context=512" in found.arguments
    assert PROCESS_BYTES < found.needs[MAIN] < 1500 * MIB
    assert found.usable[MAIN] < 4000 * MIB, "others need memory too"


async def test_a_file_that_is_no_model_is_refused_with_the_reason() -> None:
    with pytest.raises(ModelError, match="test_estimate"):
        await Estimator({})(model(__file__))
