"""Where multi-token heads are found, and which are refused or left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.heads import WIDTH, only_heads, with_heads
from tests.models import tiny_llama
from tests.real.answers import Setting, open_setting
from tests.real.support import without_draft

from headstart.app.assemble import Models, build_scheduler
from headstart.app.loading import fit_models
from headstart.config import Config, EngineConfig, SpeculationConfig
from headstart.engine.drafters import find_heads
from headstart.engine.footprint import HOST, can_measure
from headstart.types.errors import ConfigError, ModelError


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


def test_a_file_of_heads_is_not_used_where_drafts_are_off(tmp_path: Path) -> None:
    trunk = with_heads(tmp_path / "trunk.gguf", "step35", 0)
    models = Models(trunk, only_heads(tmp_path / "heads.gguf", "step35", 1), is_demo=False)
    off = replace(config_of(), speculation=SpeculationConfig(spec="off", spec_state="none"))
    assert not build_scheduler(off, models)[0].drafting.speculators


def test_no_mtp_leaves_the_weights_of_the_heads_unloaded(tmp_path: Path) -> None:
    path = with_heads(tmp_path / "a.gguf", "step35", 2)
    if not can_measure():
        pytest.skip("this build of libllama does not tell what it takes")
    fitted = [
        fit_models(config_of(mtp=heads is not None), Models(path, None, False, drafter=heads))
        for heads in (find_heads(path), None)
    ]
    with_them, without = (fit.uses[HOST].weights for fit in fitted)
    assert without < 0.9 * with_them
    assert [fit.config.mtp for fit in fitted] == [True, False]


@pytest.mark.parametrize(
    ("architecture", "more", "says"),
    [
        ("mimo2", {}, "its architecture is mimo2 and the model's is step35"),
        ("step35", {"embedding_length": WIDTH}, "its width is 288 and the model's is"),
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
        open_setting(replace(Setting(exact=False), types="mtp"), without_draft(path))


def test_heads_that_libllama_would_abort_on_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sections = {"rope.dimension_sections": [8, 8, 8, 8]}
    path = with_heads(tmp_path / "a.gguf", "glm4moe", 1, more=sections)
    assert types_of(path) == ["suffix"]
    assert "heads of glm4moe models with several positions" in caplog.text
