"""Mistakes are found before a model is downloaded or loaded, and name the flag that was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.app.assemble import check
from headstart.app.cli.command import read_flags
from headstart.app.cli.settings import all_settings
from headstart.config import Config
from headstart.types.errors import ConfigError

SETTINGS = all_settings()


def config(*argv: str) -> Config:
    return read_flags("serve", "About.", SETTINGS, argv)[0].config()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--spec-suffix-min-share", "2"], "suffix needs .*min-share"),
        (
            ["--spec-type", "ngram-mod", "--spec-ngram-mod-table-bits", "99"],
            "table-bits from 10 to 28",
        ),
        (["-m", "x.gguf", "--spec-type", "draft-model"], "add --draft-model FILE"),
        (["-m", "x.gguf", "--spec-type", "draft-simple"], "add --draft-model FILE"),
        (["-m", "x.gguf", "-md", "d.gguf", "--spec-type", "suffix"], "does not name draft-model"),
        (["--spec-type", "draft-mtp", "--no-mtp"], "mtp but the model has no multi-token heads"),
        (
            ["--chat-template-file", "/nowhere/template"],
            "--chat-template-file /nowhere/template cannot be read",
        ),
    ],
)
def test_a_mistake_is_found_before_anything_is_loaded(argv: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check(config(*argv))


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["-hf", "user/repo"],
        ["--spec-type", "draft-simple,suffix"],  # the embedded pair
        ["--spec-type", "suffix"],
        ["-m", "x.gguf", "-md", "d.gguf", "--spec-type", "draft-simple"],
        ["--spec", "off"],
        ["--chat-template", "chatml"],
        ["--chat-template", "without a message"],
    ],
    ids=str,
)
def test_what_may_work_passes_without_a_look_at_the_models(argv: list[str]) -> None:
    check(config(*argv))


def test_a_template_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "template").write_text("{{ messages[0].content }}")
    check(config("--chat-template-file", str(tmp_path / "template")))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["-td", "0"], "--draft-threads is 0 but must be at least 1"),
        (["-tbd", "-2"], "--draft-threads-batch is -2 but must be at least 1"),
        (["-ngld", "-5"], "--draft-gpu-layers is -5 but must be at least -1"),
        (["-cd", "8"], "--draft-context is 8"),
        (["-ctvd", "q8_0", "-fa", "off"], "--draft-cache-type-v q8_0 needs flash attention"),
    ],
)
def test_a_wrong_value_for_the_draft_model_names_its_own_flag(argv: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config(*argv)
