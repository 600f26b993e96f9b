"""What control learned belongs to the models it was learned with; where it is kept is found out at
the start.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from tests.models import SMALLER, tiny_llama

from headstart.app.assemble import Models, build_scheduler
from headstart.config import Config, EngineConfig, SchedulerConfig, SpeculationConfig
from headstart.control.state import VERSION
from headstart.types.errors import ConfigError, ModelError
from headstart.types.report import WorkerInfo


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "one": tiny_llama(folder / "one.gguf"),
        "other": tiny_llama(folder / "other.gguf", seed=1),
        "draft": tiny_llama(folder / "draft.gguf", shape=SMALLER),
    }


def start_and_stop(target: Path, state: Path | None, draft: Path | None = None) -> WorkerInfo:
    config = Config(
        engine=EngineConfig(context=256, batch=64, threads=1, gpu_layers=0),
        scheduler=SchedulerConfig(parallel=1),
        speculation=SpeculationConfig(spec_state=None if state is None else str(state)),
    )
    scheduler, info = build_scheduler(config, Models(target, draft, is_demo=False))
    scheduler.drafting.save()
    scheduler.drafting.close()
    return info


def test_a_state_file_serves_its_models_again_and_no_others(models: dict[str, Path], tmp_path):
    state = tmp_path / "deep" / "state.json"
    info = start_and_stop(models["one"], state)
    assert info.speculation["state"] == str(state)
    moved = shutil.copy(models["one"], tmp_path / "moved.gguf")
    assert start_and_stop(moved, state).speculation["state_not_used"] == ""
    start_and_stop(models["one"], state, models["draft"])
    says = r"state\.json was learned for the target .*\.gguf .*, not for other\.gguf"
    with pytest.raises(ConfigError, match=says):
        start_and_stop(models["other"], state)
    says = r"learned for the draft model draft\.gguf .*, not for other\.gguf"
    with pytest.raises(ConfigError, match=says):
        start_and_stop(models["one"], state, models["other"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f'{{"version":{VERSION},"state":{{}}}}', "checksum"),
        ('{"version":1,"cost":7}', f"reads version {VERSION}"),
    ],
)
def test_a_damaged_state_is_not_used_and_says_so(
    models: dict[str, Path], tmp_path, caplog, text: str, reason: str
) -> None:
    state = tmp_path / "state.json"
    state.write_text(text)
    with caplog.at_level(logging.WARNING, "headstart"):
        info = start_and_stop(models["one"], state)
    assert reason in info.speculation["state_not_used"]
    assert any("what control learned is not used" in record.message for record in caplog.records)
    assert start_and_stop(models["one"], state).speculation["state_not_used"] == ""


def test_a_named_file_that_cannot_be_written_stops_the_start(models: dict[str, Path], tmp_path):
    (tmp_path / "file").touch()
    says = r"--spec-state .*state\.json cannot be written: .*; name another file, or none"
    with pytest.raises(ConfigError, match=says):
        start_and_stop(models["one"], tmp_path / "file" / "state.json")
    (tmp_path / "file").write_text("do not lose this")
    with pytest.raises(ConfigError, match="not what headstart writes and would be replaced"):
        start_and_stop(models["one"], tmp_path / "file")
    assert (tmp_path / "file").read_text() == "do not lose this"


def test_a_cache_folder_that_cannot_be_written_is_a_warning_at_the_start(
    models: dict[str, Path], tmp_path, monkeypatch, caplog
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADSTART_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "headstart"):
        start_and_stop(models["one"], None)
    assert "what control learns will not be kept" in caplog.records[0].message


def test_a_model_that_cannot_be_read_is_named_as_the_model(tmp_path: Path) -> None:
    (tmp_path / "novel.gguf").write_text("It was a dark and stormy night")
    with pytest.raises(ModelError, match=r"novel\.gguf is not a GGUF file"):
        start_and_stop(tmp_path / "novel.gguf", tmp_path / "state.json")
    assert not (tmp_path / "state.json").exists()
