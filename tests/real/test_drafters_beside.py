"""What drafts for a model and stands beside it, at the hub or on this disk, is found and used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.drafters import eagle3, target
from tests.heads import WIDTH, only_heads, with_heads
from tests.models import tiny_llama
from tests.real.answers import Setting, open_setting
from tests.real.support import without_draft
from tests.unit.app.hub.fake_hub import FakeHub

from headstart.app.assemble import Models, build_scheduler, check, find_models
from headstart.app.loading import fit_models
from headstart.config import Config, EngineConfig, ModelConfig, SchedulerConfig, SpeculationConfig
from headstart.engine import binding
from headstart.engine.drafters import find_heads
from headstart.engine.footprint import HOST, can_measure
from headstart.types.errors import ConfigError, ModelError

REPO = "someone/Model-GGUF"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A model without heads, one with, and heads for the first."""
    folder = tmp_path_factory.mktemp("files")
    paths = {
        "trunk": with_heads(folder / "trunk.gguf", "step35", 0),
        "whole": with_heads(folder / "whole.gguf", "step35", 1),
        "heads": only_heads(folder / "heads.gguf", "step35", 1),
        "other": only_heads(folder / "other.gguf", "mimo2", 1),
    }
    return {name: path.read_bytes() for name, path in paths.items()}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub.serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "cache"))
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        yield server


def config_of(spec_type: str | None = None, *, mtp: bool = True, **model: object) -> Config:
    return Config(
        model=ModelConfig(**{"hf_repo": REPO, **model}),  # type: ignore[arg-type]
        engine=EngineConfig(gpu_layers=0, threads=1, context=256, mtp=mtp),
        scheduler=SchedulerConfig(parallel=1),
        speculation=SpeculationConfig(spec_type=spec_type, spec_state="none"),
    )


def drafts_of(config: Config) -> tuple[list[str], str]:
    """Which speculators draft, and what is said of heads."""
    check(config)
    info = build_scheduler(config, find_models(config))[1]
    heads = info.speculation["heads"]
    return info.speculation["types"], heads["words"] if heads else ""


def test_heads_beside_a_model_of_the_hub_are_downloaded_and_used_by_themselves(
    hub: FakeHub, files: dict[str, bytes], caplog, monkeypatch
) -> None:
    hub.repos[REPO] = {"a-Q8_0.gguf": files["trunk"], "mtp-a-Q8_0.gguf": files["heads"]}
    caplog.set_level("INFO")
    assert drafts_of(config_of(mtp=False)) == (["suffix"], "")
    assert drafts_of(config_of("suffix")) == (["suffix"], "")
    assert hub.downloads == ["a-Q8_0.gguf"]
    expected = "1 multi-token head of mtp-a-Q8_0.gguf"
    assert drafts_of(config_of()) == (["suffix", "mtp"], expected)
    assert hub.downloads == ["a-Q8_0.gguf", "mtp-a-Q8_0.gguf"]
    assert "mtp-a-Q8_0.gguf was found in the repository of a-Q8_0.gguf" in caplog.text
    assert expected in caplog.text
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    for is_offline in (True, False):
        config = config_of("draft-mtp", offline=is_offline)
        assert drafts_of(config) == (["mtp"], expected)


def test_a_model_with_heads_of_its_own_needs_none_beside_it(hub: FakeHub, files: dict[str, bytes]):
    hub.repos[REPO] = {"a-Q8_0.gguf": files["whole"], "mtp-a-Q8_0.gguf": files["heads"]}
    assert drafts_of(config_of()) == (["suffix", "mtp"], "1 multi-token head of its own")
    assert hub.downloads == ["a-Q8_0.gguf"]


def test_what_nobody_asked_for_and_is_of_no_use_does_not_keep_a_model_from_starting(
    hub: FakeHub, files: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    hub.repos[REPO] = {"a-Q8_0.gguf": files["trunk"], "mtp-a-Q8_0.gguf": files["other"]}
    assert drafts_of(config_of()) == (["suffix"], "")
    assert "its architecture is mimo2 and the model's is step35" in caplog.text
    hub.repos[REPO] = {"a-Q8_0.gguf": files["trunk"], "mtp-b-00001-of-00002.gguf": b""}
    assert drafts_of(config_of()) == (["suffix"], "")
    assert "mtp-b-00002-of-00002.gguf is missing" in caplog.text
    with pytest.raises(ModelError, match=r"mtp-b-00002-of-00002\.gguf is missing"):
        find_models(config_of("mtp"))


def test_another_drafter_beside_the_model_is_used_when_its_type_is_named(hub: FakeHub, tmp_path):
    model, draft = target(tmp_path / "a.gguf"), eagle3(tmp_path / "b.gguf")
    hub.repos[REPO] = {"a-Q8_0.gguf": model.read_bytes(), "eagle3-a-Q8_0.gguf": draft.read_bytes()}
    assert drafts_of(config_of())[0] == ["suffix"]
    assert drafts_of(config_of("draft-eagle3"))[0] == ["eagle3"]
    assert hub.downloads == ["a-Q8_0.gguf", "eagle3-a-Q8_0.gguf"]
    with pytest.raises(ConfigError, match="names dflash but no draft model is given"):
        drafts_of(config_of("draft-dflash"))


def test_heads_in_a_folder_that_this_libllama_cannot_compute_are_named(
    files: dict[str, bytes], tmp_path, caplog, monkeypatch
) -> None:
    for name, content in (("a", "trunk"), ("mtp-a", "heads"), ("mtp-b", "other")):
        (tmp_path / f"{name}.gguf").write_bytes(files[content])
    why = "this libllama does not export llama_x"
    monkeypatch.setattr(binding, "why_not", lambda words: why if "nextn" in words else None)
    config = config_of(hf_repo=None, model=str(tmp_path / "a.gguf"))
    assert drafts_of(config) == (["suffix"], "")
    assert f"heads in {tmp_path}/mtp-a.gguf are not used: {why}" in caplog.text
    assert "mtp-b" not in caplog.text


def test_of_several_files_of_heads_in_a_folder_the_models_own_are_used(files, tmp_path) -> None:
    for name, content in (
        ("Big-Q4_0", "trunk"),
        ("mtp-Aim-Q4_0", "heads"),
        ("mtp-Big-Q4_0", "heads"),
        ("mtp-Big-Q4_0-v2", "other"),
    ):
        (tmp_path / f"{name}.gguf").write_bytes(files[content])
    config = config_of(hf_repo=None, model=str(tmp_path / "Big-Q4_0.gguf"))
    assert drafts_of(config) == (["suffix", "mtp"], "1 multi-token head of mtp-Big-Q4_0.gguf")


def engine_config(**engine: object) -> Config:
    settings = EngineConfig(**{"context": 256, "threads": 1, "gpu_layers": 0, **engine})
    return Config(engine=settings, speculation=SpeculationConfig(spec_state="none"))


def types_of(target: Path, draft: Path | None = None, **engine: object) -> list[str]:
    models = Models(target, draft, is_demo=False)
    return list(build_scheduler(engine_config(**engine), models)[0].drafting.speculators)


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


def test_a_broken_file_beside_a_model_is_left_out_by_name(
    tmp_path: Path, files: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    (trunk := tmp_path / "trunk.gguf").write_bytes(files["trunk"])
    for name, size in (("empty", 0), ("header", 1000), ("tensors", len(files["heads"]) - 1)):
        (tmp_path / f"mtp-{name}.gguf").write_bytes(files["heads"][:size])
    (tmp_path / "mtp-gone.gguf").symlink_to(tmp_path / "none.gguf")
    assert find_heads(trunk) is None
    for name in ("empty", "header", "tensors", "gone"):
        assert f"mtp-{name}.gguf" in caplog.text


def test_a_file_of_heads_is_not_used_where_drafts_are_off(tmp_path: Path) -> None:
    trunk = with_heads(tmp_path / "trunk.gguf", "step35", 0)
    models = Models(trunk, only_heads(tmp_path / "heads.gguf", "step35", 1), is_demo=False)
    off = replace(engine_config(), speculation=SpeculationConfig(spec="off", spec_state="none"))
    assert not build_scheduler(off, models)[0].drafting.speculators


def test_no_mtp_leaves_the_weights_of_the_heads_unloaded(tmp_path: Path) -> None:
    path = with_heads(tmp_path / "a.gguf", "step35", 2)
    if not can_measure():
        pytest.skip("this build of libllama does not tell what it takes")
    fitted = [
        fit_models(engine_config(mtp=heads is not None), Models(path, None, False, drafter=heads))
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
def test_heads_of_another_model_are_refused_by_name(architecture, more, says, tmp_path) -> None:
    target = with_heads(tmp_path / "target.gguf", "step35", 0)
    path = only_heads(tmp_path / "other.gguf", architecture, 1, more=more)
    with pytest.raises(ModelError, match=says):
        types_of(target, path)


def test_naming_heads_that_are_not_there_is_refused(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "llama.gguf")
    with pytest.raises(ConfigError, match="the model has no multi-token heads"):
        open_setting(replace(Setting(exact=False), types="mtp"), without_draft(path))


def test_heads_that_libllama_would_abort_on_are_left_out(tmp_path, caplog) -> None:
    sections = {"rope.dimension_sections": [8, 8, 8, 8]}
    path = with_heads(tmp_path / "a.gguf", "glm4moe", 1, more=sections)
    assert types_of(path) == ["suffix"]
    assert "heads of glm4moe models with several positions" in caplog.text
