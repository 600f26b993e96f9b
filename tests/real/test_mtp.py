"""Multi-token heads of tiny real models: the same text, and where the heads predict exactly, every
draft accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.equality import Setting as BaseSetting
from benchmarks.equality import generate, open_setting
from tests.heads import (
    HEAD_ARCHITECTURES,
    INDEXED_TOKENS,
    WIDTH,
    aligned,
    continuation,
    only_heads,
    with_heads,
)
from tests.models import tiny_llama
from tests.real.recorded_rows import NOT_DISCRETE, ROUNDING, RecordedRows
from tests.real.support import byte_requests, without_draft

from headstart.app.assemble import Models, build_scheduler
from headstart.app.loading import find_heads, fit_models
from headstart.config import Config, EngineConfig, SpeculationConfig
from headstart.engine.footprint import HOST, can_measure
from headstart.sampling import SamplingParams
from headstart.scheduler.scheduler import Scheduler
from headstart.types.errors import ConfigError, ModelError
from headstart.types.request import Request


class Setting(BaseSetting):
    """With a cache of F32: hybrid models and mixtures of experts cannot be deterministic, and in
    F16 what they round differently is now and then enough to choose another token.
    """

    def config(self) -> Config:
        config = super().config()
        engine = replace(config.engine, cache_type_k="f32", cache_type_v="f32")
        return replace(config, engine=engine)


PLAIN = Setting(deterministic=False)
RECURRENT = ("qwen35", "qwen35moe", "qwen3next", "nemotron_h_moe")
# one head and several, a pre-norm and a post-norm state, windows, a hybrid, a mixture of experts
ALIGNED = [("step35", 1), ("step35", 3), ("mimo2", 2), ("hy_v3", 1), ("qwen35", 1), ("glm4moe", 1)]


def open_heads(path: Path, **settings: object) -> Scheduler:
    fields = {"types": "mtp", "length": 3, "num_slots": 4, **settings}
    return open_setting(replace(PLAIN, **fields), without_draft(path))


def text_after(name: str, prompt: Sequence[int], **fields: object) -> Request:
    sampling = SamplingParams(temperature=0.8, seed=1, ignore_eos=True)
    return Request(
        request_id=name, prompt=tuple(prompt), sampling=sampling, **{"max_tokens": 17, **fields}
    )


def prompt_of(seed: int, size: int) -> list[int]:
    """Tokens in an order that the model would not write."""
    return [(seed * 31 + i * i) % 250 for i in range(size)]


def ask(scheduler: Scheduler, *requests: Request) -> None:
    """Aligned models know one continuation of each token."""
    for name, result in generate(scheduler, requests).items():
        request = next(r for r in requests if r.request_id == name)
        assert list(result.tokens) == continuation(request.prompt[-1], len(result.tokens))


def assert_all_right(scheduler: Scheduler) -> None:
    guarded = scheduler.drafting.speculators["mtp"]
    assert not guarded.failure
    assert guarded.stats.num_accepted == guarded.stats.num_drafted > 0
    details = guarded.describe()
    assert (details["missing_states"], details["lost"]) == (0, {})


@pytest.mark.parametrize(("architecture", "num_heads"), ALIGNED)
def test_heads_that_predict_exactly_are_always_right(
    architecture: str, num_heads: int, tmp_path: Path
) -> None:
    """After chunked prompts, shared prefixes, turns, prompts from main memory, a cancelled request:
    a row that was read with another row's state would be a wrong draft.
    """
    scheduler = open_heads(aligned(tmp_path / "a.gguf", architecture, num_heads), num_slots=2)
    scheduler.config = replace(scheduler.config, prefill_chunk=7, prefill_ms=0.0)
    ask(scheduler, *(text_after(f"{i}", prompt_of(i, 5 + 20 * i)) for i in range(4)))
    first = prompt_of(9, 90)
    ask(scheduler, text_after("first", first))
    ask(scheduler, text_after("again", first), text_after("branch", [*first[:50], 3, 4]))
    scheduler.submit(text_after("gone", [*first, 5]))
    for _ in range(5):
        scheduler.step()
    scheduler.cancel("gone")
    scheduler.take_events()
    ask(scheduler, text_after("turn", [*first, 5, *continuation(5, 3), 8]))
    for seed in (20, 21, 22, 9):
        ask(scheduler, text_after(f"back{seed}", prompt_of(seed, 90)))
    if architecture != "qwen35":  # a hybrid model's prompt is shorter than a checkpoint's distance
        assert scheduler.counters.prompts_restored > 0
    assert_all_right(scheduler)


@pytest.mark.parametrize("architecture", ["step35", "qwen35"])
def test_they_are_right_after_a_preemption(architecture: str, tmp_path: Path) -> None:
    path = aligned(tmp_path / "a.gguf", architecture, 1)
    scheduler = open_heads(path, num_slots=4, context=256)
    requests = [text_after(f"{i}", prompt_of(i, 60), max_tokens=60) for i in range(4)]
    ask(scheduler, *requests)
    assert scheduler.counters.preemptions > 0
    assert_all_right(scheduler)


def test_a_mixture_with_text_speculators_is_right_too(tmp_path: Path) -> None:
    path = aligned(tmp_path / "a.gguf", "mimo2", 1)
    scheduler = open_heads(path, types="suffix,mtp")
    ask(scheduler, *(text_after(f"{i}", prompt_of(i, 30), max_tokens=60) for i in range(6)))
    stats = {name: one.stats for name, one in scheduler.drafting.speculators.items()}
    assert stats["suffix"].num_accepted > 0
    assert stats["mtp"].num_accepted == stats["mtp"].num_drafted > 0


@pytest.mark.parametrize("architecture", HEAD_ARCHITECTURES)
def test_only_rounding_differs_with_heads_of_any_architecture(
    architecture: str, tmp_path: Path
) -> None:
    """Every token is the choice from a row that computed this very text, and with drafts those rows
    are the same but for what the width of a batch rounds otherwise.
    """
    path = with_heads(tmp_path / "a.gguf", architecture, HEAD_ARCHITECTURES[architecture])
    plain, scheduler = open_setting(PLAIN, without_draft(path)), open_heads(path)
    expected_rows, rows = RecordedRows(plain.engine), RecordedRows(scheduler.engine)
    for temperature in (0.0, 0.8, 1.5):
        requests = byte_requests(5, temperature)
        generate(plain, requests)
        results = generate(scheduler, requests)
        for request in requests:
            assert len(results[request.request_id].tokens) > 0
            assert rows.unchosen(request, results[request.request_id].tokens) == []
    differences = expected_rows.differences(rows)
    assert len(differences) > 100
    assert np.quantile(differences, NOT_DISCRETE) < ROUNDING
    guarded = scheduler.drafting.speculators["mtp"]
    assert not guarded.failure
    assert guarded.stats.num_drafted > 0
    assert guarded.describe()["missing_states"] == 0


@pytest.mark.parametrize("architecture", [a for a in HEAD_ARCHITECTURES if a not in RECURRENT])
def test_the_text_is_the_same_in_the_deterministic_mode(architecture: str, tmp_path: Path) -> None:
    """Also behind prompts that are longer than what sparse attention looks at."""
    path = with_heads(tmp_path / "a.gguf", architecture, HEAD_ARCHITECTURES[architecture])
    requests = [*byte_requests(6, 0.0), *byte_requests(15, 1.5)[6:]]
    assert len(requests[-1].prompt) > INDEXED_TOKENS
    expected = generate(open_setting(Setting(), without_draft(path)), requests)
    scheduler = open_heads(path, deterministic=True)
    results = generate(scheduler, requests)
    assert {k: r.key for k, r in results.items()} == {k: r.key for k, r in expected.items()}
    assert scheduler.drafting.stats.num_drafted > scheduler.drafting.stats.num_accepted > 0


def config_of(**engine: object) -> Config:
    settings = EngineConfig(**{"context": 256, "threads": 1, "gpu_layers": 0, **engine})
    return Config(engine=settings, speculation=SpeculationConfig(spec_state="none"))


def types_of(target: Path, draft: Path | None = None, **engine: object) -> list[str]:
    models = Models(target, draft, is_demo=False)
    return list(build_scheduler(config_of(**engine), models)[0].drafting.speculators)


def test_heads_are_found_in_the_model_or_beside_it_or_where_they_are_named(tmp_path: Path) -> None:
    inside = with_heads(tmp_path / "inside.gguf", "step35", 1)
    assert types_of(inside) == ["suffix", "mtp"]
    assert types_of(inside, mtp=False) == ["suffix"]
    trunk = with_heads(tmp_path / "trunk.gguf", "step35", 0)
    assert types_of(trunk) == ["suffix"]
    heads = only_heads(tmp_path / "heads.gguf", "step35", 1)
    assert types_of(trunk, heads) == ["suffix", "mtp"]
    heads.rename(tmp_path / "mtp-trunk.gguf")
    assert types_of(trunk) == ["suffix", "mtp"]


def test_no_mtp_leaves_the_weights_of_the_heads_unloaded(tmp_path: Path) -> None:
    path = with_heads(tmp_path / "a.gguf", "step35", 2)
    if not can_measure():
        pytest.skip("this build of libllama does not tell what it takes")
    fitted = [
        fit_models(config_of(mtp=heads is not None), Models(path, None, is_demo=False, heads=heads))
        for heads in (find_heads(path, None), None)
    ]
    with_them, without = (fit.uses[HOST].weights for fit in fitted)
    assert without < 0.9 * with_them
    assert [fit.config.mtp for fit in fitted] == [True, False]


@pytest.mark.parametrize(
    ("architecture", "more", "says"),
    [
        ("mimo2", {}, "their architecture is mimo2 and the model's is step35"),
        ("step35", {"embedding_length": WIDTH}, "their state is 288 and the model's is"),
    ],
)
def test_heads_of_another_model_are_refused_by_name(
    architecture: str, more: dict[str, int], says: str, tmp_path: Path
) -> None:
    target = with_heads(tmp_path / "target.gguf", "step35", 0)
    path = only_heads(tmp_path / "other.gguf", architecture, 1, more=more)
    with pytest.raises(ModelError, match=says):
        types_of(target, path)


def test_naming_heads_that_are_not_there_is_refused(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "llama.gguf")
    with pytest.raises(ConfigError, match="the model has no multi-token heads"):
        open_setting(replace(PLAIN, types="mtp"), without_draft(path))


def test_heads_that_libllama_would_abort_on_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sections = {"rope.dimension_sections": [8, 8, 8, 8]}
    path = with_heads(tmp_path / "a.gguf", "glm4moe", 1, more=sections)
    assert types_of(path) == ["suffix"]
    assert "heads of glm4moe models with several positions" in caplog.text
