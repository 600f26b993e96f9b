from __future__ import annotations

import pytest
from tests.unit.gateway.router.fakes import preset

from headstart.gateway.router.eviction import LoadLimits, may_stay, parse_memory
from headstart.gateway.router.pooled_model import LOADED, PooledModel
from headstart.gateway.router.presets import MAIN, Estimate
from headstart.types.errors import ConfigError

MIB = 2**20


def using(needs: dict[str, int], last_used: float = 0.0, group: str = "") -> PooledModel:
    estimate = Estimate(needs)
    return PooledModel(
        preset("m", group=group), status=LOADED, last_used=last_used, estimate=estimate
    )


def on_gpu(size: int, last_used: float = 0.0, group: str = "") -> PooledModel:
    return using({"CUDA0": size, MAIN: 1}, last_used, group)


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


def test_no_more_models_are_loaded_than_may_be() -> None:
    assert LoadLimits(max_models=0).fits(on_gpu(1), [on_gpu(1)] * 99)
    assert not LoadLimits(max_models=1).fits(on_gpu(1), [on_gpu(1)])


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


def test_models_of_different_groups_are_not_loaded_together() -> None:
    chat, code, any_ = on_gpu(1, group="chat"), on_gpu(1, group="code"), on_gpu(1)
    assert may_stay(chat, any_)
    assert may_stay(any_, any_)
    assert may_stay(chat, on_gpu(1, group="chat"))
    assert LoadLimits().victims(code, [any_, chat], []) == [chat]
    assert LoadLimits().victims(code, [], [chat]) is None
