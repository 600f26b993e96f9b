"""Files that cannot be used are refused in words, and the process lives on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models import BROKEN_KINDS, Broken, broken
from tests.real.answers import Setting, open_setting

from headstart.app import demo
from headstart.app.assemble import find_models
from headstart.config import Config, EngineConfig, ModelConfig
from headstart.engine.model import Model
from headstart.types.errors import HeadstartError, ModelError


@pytest.mark.parametrize("kind", BROKEN_KINDS)
def test_a_broken_gguf_is_a_model_error_that_names_the_file_and_the_reason(
    kind: Broken, tmp_path: Path
) -> None:
    path = broken(tmp_path / "bad.gguf", kind)
    with pytest.raises(ModelError, match=r"bad\.gguf") as caught:
        Model(path, EngineConfig(gpu_layers=0))
    assert "gave no reason" not in str(caught.value)
    assert Model(demo.path(demo.DRAFT), EngineConfig(gpu_layers=0)).vocab.size == 4096


def test_a_missing_file_an_empty_one_and_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "nothing.gguf").touch()
    with pytest.raises(ModelError, match=r"nothing\.gguf is empty; download it again"):
        Model(tmp_path / "nothing.gguf", EngineConfig())
    with pytest.raises(ModelError, match=r"nowhere\.gguf cannot be read: No such file"):
        Model(tmp_path / "nowhere.gguf", EngineConfig())
    with pytest.raises(ModelError, match="cannot be read: Is a directory"):
        Model(tmp_path, EngineConfig())


def test_a_missing_draft_file_stops_the_start(tmp_path: Path) -> None:
    config = Config(model=ModelConfig(draft_model=str(tmp_path / "nowhere.gguf")))
    with pytest.raises(HeadstartError, match=r"nowhere\.gguf"):
        open_setting(Setting("draft-model"), find_models(config))
