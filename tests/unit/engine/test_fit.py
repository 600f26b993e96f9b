"""What is chosen so that models fit into memory: context, experts, layers, snapshots."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from headstart.app.cli.devices import _facts, tables
from headstart.config import EngineConfig, SchedulerConfig
from headstart.engine.fit import Fitted, Part, by_device, fit
from headstart.engine.footprint import HOST, REPACKED, Measured, Use
from headstart.engine.parameters import Facts, Limits
from headstart.types.errors import ConfigError

GIB, MIB = 2**30, 2**20
LAYERS = 10
TRAIN = 32768
MODEL = Path("big.gguf")


def machine(
    *, num_experts: int = 0, is_recurrent: bool = False, state: int = 0, train: int = TRAIN
) -> Callable[..., Measured]:
    """A model of 10 GiB, 8 of them experts if it has any, and 256 KiB of cache for each token."""

    def measure(path: Path, config: EngineConfig, limits: Limits, context: int) -> Measured:
        facts = Facts(is_recurrent, 0, train, LAYERS, 1000, num_experts=num_experts)
        size = 10 if path == MODEL else 1
        on_gpu = LAYERS + 1 if config.gpu_layers < 0 else min(config.gpu_layers, LAYERS + 1)
        share = on_gpu / (LAYERS + 1)
        moved = 0.8 * config.n_cpu_moe / LAYERS if num_experts else 0.0
        cache = context * 256 * 1024 + state * (1 + limits.max_draft) * limits.num_sequences
        weights = size * GIB
        return facts, {
            "CUDA0": Use(int(weights * share * (1 - moved)), int(cache * share), GIB // 4),
            HOST: Use(int(weights * (1 - share * (1 - moved))), int(cache * (1 - share)), 1),
        }

    return measure


def test_nothing_is_measured_twice() -> None:
    asked, size = [], machine()

    def measure(*what) -> Measured:
        asked.append(what)
        return size(*what)

    for gib in (10, 20):  # refused; fits with less context
        with suppress(ConfigError):
            fitted(gib, draft=True, measure=measure)
        assert len(asked) == len(set(asked)) > 2
        asked.clear()


def fitted(
    gpu_gib: float,
    *,
    config: EngineConfig | None = None,
    draft: bool = False,
    max_draft: int = 0,
    measure: Callable[..., Measured] | None = None,
) -> Fitted:
    return fit(
        Part(MODEL, config or EngineConfig(), Limits(4, 4, max_draft)),
        lambda target: [Part(Path("draft.gguf"), target, Limits(4, 4, 0))] * draft,
        measure=measure or machine(),
        free=lambda: {"CUDA0": int(gpu_gib * GIB), HOST: 64 * GIB},
    )


def test_repacked_weights_are_told_as_main_memory() -> None:
    uses = {HOST: Use(60 * MIB, 85 * MIB), REPACKED: Use(83 * MIB), "CUDA0": Use(compute=MIB)}
    found = Fitted(EngineConfig(), Limits(4, 4, 0), by_device(uses))
    facts, table = _facts((), found, SchedulerConfig()), tables((), found)
    assert facts["needs"] == {HOST: 228 * MIB, "CUDA0": MIB}
    assert re.search(rf"{HOST} +143 MiB +85 MiB +0 MiB +228 MiB", table)
    assert f"228 MiB of {HOST} (weights 143 MiB, " in found.describe()
    assert f"{REPACKED} " not in table + found.describe()


def test_repacked_weights_and_the_rest_of_main_memory_must_fit_together() -> None:
    def repacked(path: Path, config: EngineConfig, limits: Limits, context: int) -> Measured:
        facts, uses = machine()(path, config, limits, context)
        return facts, {REPACKED: Use(uses[HOST].weights), HOST: replace(uses[HOST], weights=0)}

    def fitted(context: int, free: float) -> Fitted:
        config = EngineConfig(context=context, gpu_layers=0)
        part = Part(MODEL, config, Limits(1, 1, 0))
        return fit(part, measure=repacked, free=lambda: {HOST: int(free * GIB)})

    assert fitted(0, 15).config.context * 256 * 1024 < 4 * GIB
    with pytest.raises(ConfigError, match=r"needs 14.0 GiB \(weights 10.0 GiB, cache 4.0 GiB"):
        fitted(16384, 12)


def test_with_enough_memory_nothing_is_lowered() -> None:
    result = fitted(24)
    assert (result.config.context, result.config.gpu_layers) == (TRAIN, -1)
    assert result.remarks == ()


@pytest.mark.parametrize("train", [TRAIN, 2**20, 10_000_000])
def test_the_context_is_as_large_as_fits(train: int) -> None:
    result = fitted(15, measure=machine(train=train))
    free = 15 * GIB - GIB - 10 * GIB - GIB // 4
    assert 0.97 * free <= result.config.context * 256 * 1024 <= free
    assert result.config.gpu_layers == -1
    assert "tokens" in result.remarks[0]


def test_a_given_context_is_kept_and_layers_move_instead() -> None:
    result = fitted(15, config=EngineConfig(context=TRAIN))
    assert result.config.context == TRAIN
    assert 0 < result.config.gpu_layers <= LAYERS
    used = result.uses["CUDA0"].total
    assert used <= 14 * GIB
    assert used + 18 * GIB / (LAYERS + 1) > 14 * GIB, "one layer more would not have fitted"


def test_experts_move_before_whole_layers() -> None:
    result = fitted(8, measure=machine(num_experts=8))
    assert result.config.gpu_layers == -1
    assert 0 < result.config.n_cpu_moe <= LAYERS
    assert result.uses["CUDA0"].total <= 7.2 * GIB


def test_the_draft_model_is_counted_in() -> None:
    alone, with_draft = fitted(15), fitted(15, draft=True)
    assert with_draft.config.context < alone.config.context


@pytest.mark.parametrize(("target", "left"), [("512", 512), ("512,99999", 512), ("", 1024)])
def test_each_gpu_has_its_own_target(target: str, left: int) -> None:
    config = EngineConfig(context=512, fit_target=target or "1024")
    gpu = fitted(24, config=config).usable["CUDA0"]
    assert gpu == 24 * GIB - left * MIB
    second = fitted(24, config=EngineConfig(context=512, device="X,CUDA0", fit_target="9,256"))
    assert second.usable["CUDA0"] == 24 * GIB - 256 * MIB


def test_what_is_set_is_not_changed_when_fitting_is_off() -> None:
    config = EngineConfig(context=TRAIN, fit="off")
    with pytest.raises(
        ConfigError,
        match=r"big\.gguf does not fit: of 15\.0 GiB free in CUDA0 it needs 18\.2 GiB .*"
        r"weights 10\.0 GiB.*; lower --gpu-layers.*--context \(32768; 19456 would fit\)",
    ):
        fitted(15, config=config)


def test_a_mapped_file_may_be_larger_than_main_memory() -> None:
    result = fit(
        Part(MODEL, EngineConfig(context=512, gpu_layers=0), Limits(1, 1, 0)),
        measure=machine(),
        free=lambda: {HOST: 5 * GIB},
    )
    assert "read from disk again and again" in result.remarks[-1]
    with pytest.raises(ConfigError, match="main memory"):
        fit(
            Part(MODEL, EngineConfig(context=512, gpu_layers=0, mmap=False), Limits(1, 1, 0)),
            measure=machine(),
            free=lambda: {HOST: 5 * GIB},
        )


def with_snapshots(
    state: int,
    *,
    max_draft: int = 32,
    least_draft: int = 0,
    num_copies: int = 32,
    num_slots: int = 4,
    gpu_layers: int = -1,
) -> Fitted:
    """Of a recurrent model with states of so many bytes."""
    config = EngineConfig(context=TRAIN, ctx_checkpoints=num_copies, gpu_layers=gpu_layers)
    return fit(
        Part(MODEL, config, Limits(num_slots, num_slots, max_draft, least_draft)),
        measure=machine(is_recurrent=True, state=state),
        free=lambda: {"CUDA0": 40 * GIB, HOST: 64 * GIB},
    )


def test_snapshots_that_were_asked_for_take_an_eighth_of_free_memory_at_most() -> None:
    result = with_snapshots(GIB // 4, least_draft=32)
    assert 1 <= result.limits.max_draft <= 5
    assert f"at most {result.limits.max_draft} tokens" in result.remarks[0]
    assert fitted(20, max_draft=32).limits.max_draft == 32


@pytest.mark.parametrize("mib", [1, 4, 16, 20, 25, 64])
@pytest.mark.parametrize(("num_slots", "gpu_layers"), [(1, -1), (4, 0)])
def test_snapshots_that_nobody_asked_for_take_a_twentieth_of_the_caches_at_most(
    mib: int, num_slots: int, gpu_layers: int
) -> None:
    """A few of them are worth less than copies of the state, so then there are none."""
    each = num_slots * mib * MIB
    most = with_snapshots(mib * MIB, num_slots=num_slots, gpu_layers=gpu_layers).limits.max_draft
    assert most == 0 or 4 <= most <= 8
    caches = TRAIN * 256 * 1024 + (GIB // 4 if gpu_layers else 0) + each
    assert each * most <= caches / 20
    assert (most == 8) == (8 * each <= caches / 20)
    assert (most == 0) == (4 * each > caches / 20)


@pytest.mark.parametrize("mib", [4, 64, 128, 200, 400])
def test_snapshots_of_several_slots_take_a_sixteenth_of_a_gpus_free_memory_at_most(
    mib: int,
) -> None:
    """There copies of the state cost further passes, so two are worth more than copies."""
    most = with_snapshots(mib * MIB).limits.max_draft
    room = (40 - 10) * GIB / 16 / (4 * mib * MIB)
    assert most == (8 if mib <= 4 else 7 if mib == 64 else int(room) if room >= 2 else 0)


@pytest.mark.parametrize("gpu_gib", [18.6, 19.1, 19.6, 20.0, 24.0])
@pytest.mark.parametrize("context", [0, TRAIN])
def test_snapshots_of_several_slots_take_what_is_left_after_context_and_layers(
    gpu_gib: float, context: int
) -> None:
    found = []
    for num_slots, max_draft in ((4, 0), (4, 32)):
        result = fit(
            Part(MODEL, EngineConfig(context=context), Limits(num_slots, 4, max_draft)),
            measure=machine(is_recurrent=True, state=8 * MIB),
            free=lambda: {"CUDA0": int(gpu_gib * GIB), HOST: 64 * GIB},
        )
        found.append((result.config.gpu_layers, result.config.context // 1024))
    assert found[0][0] == found[1][0]
    assert found[1][1] >= found[0][1] - 1  # a copy of each state


def test_a_copy_of_each_recurrent_state_is_counted_where_drafts_are_taken_back() -> None:
    """libllama aborts where a device has no room for it."""
    without, wanted = (with_snapshots(GIB // 8, max_draft=most, num_slots=1) for most in (0, 32))
    more = {name: use.cache - without.uses[name].cache for name, use in wanted.uses.items()}
    assert more == {"CUDA0": GIB // 8, HOST: 0}


def test_drafters_that_need_snapshots_have_them() -> None:
    assert with_snapshots(GIB // 2, least_draft=3).limits.max_draft == 1
    assert with_snapshots(GIB // 8, least_draft=3, num_slots=1).limits.max_draft == 3
    assert with_snapshots(MIB, least_draft=3).limits.max_draft == 8
    assert with_snapshots(GIB // 8, num_copies=0, num_slots=1).limits.max_draft == 1
    assert with_snapshots(GIB // 8, max_draft=0).limits.max_draft == 0


def test_a_context_that_does_not_fit_is_told_what_would() -> None:
    config = EngineConfig(context=10 * TRAIN, fit="off")
    with pytest.raises(ConfigError, match=r"lower --context \(327680; (\d+) would fit\)") as told:
        fitted(15, config=config)
    most = int(str(told.value).partition("; ")[2].partition("(327680; ")[2].split()[0])
    assert fitted(15, config=EngineConfig(context=most, fit="off")).config.context == most
    with pytest.raises(ConfigError):
        fitted(15, config=EngineConfig(context=most + 512, fit="off"))


def test_a_draft_model_that_does_not_fit_is_named_with_its_flags() -> None:
    with pytest.raises(
        ConfigError,
        match=r"the draft model draft\.gguf does not fit beside big\.gguf: .* lower -cd "
        r"\(999936; \d+ would fit\), or leave out -md",
    ):
        fit(
            Part(MODEL, EngineConfig(context=4096), Limits(4, 4, 0)),
            lambda target: [
                Part(Path("draft.gguf"), EngineConfig(context=999936), Limits(4, 4, 0))
            ],
            measure=machine(),
            free=lambda: {"CUDA0": 24 * GIB, HOST: 64 * GIB},
        )


def test_a_draft_model_is_not_said_to_need_more_than_it_does_with_its_target() -> None:
    """Weights in files that are mapped are left out of both."""
    target, draft = (EngineConfig(context=n, gpu_layers=0) for n in (512, 999936))
    with pytest.raises(ConfigError) as told:
        fit(
            Part(MODEL, target, Limits(4, 4, 0)),
            lambda target: [Part(Path("draft.gguf"), draft, Limits(4, 4, 0))],
            measure=machine(),
            free=lambda: {"CUDA0": 24 * GIB, HOST: 64 * GIB},
        )
    sizes = re.search(r"they need ([\d.]+) GiB, the draft model ([\d.]+) GiB", str(told.value))
    assert sizes is not None
    assert float(sizes[2]) <= float(sizes[1])


def test_a_second_context_of_the_target_is_called_no_draft_model() -> None:
    """As of embeddings."""
    small, large = (Part(MODEL, EngineConfig(context=n), Limits(4, 4, 0)) for n in (512, 999936))
    with pytest.raises(ConfigError, match=r"big\.gguf does not fit: .* lower --"):
        fit(small, lambda _: [large], measure=machine(), free=lambda: {"CUDA0": 0, HOST: 64 * GIB})
