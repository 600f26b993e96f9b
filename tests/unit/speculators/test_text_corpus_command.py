"""`headstart corpus add` makes the file that the suffix speculator reads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from headstart.app import assemble
from headstart.app.cli.corpus import COMMAND
from headstart.app.cli.settings import all_settings
from headstart.speculators.suffix import SuffixSpeculator
from headstart.testing import ByteVocab
from headstart.types import DraftRequest
from headstart.types.errors import ConfigError


@pytest.fixture(autouse=True)
def _byte_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "find_models", lambda config: None)
    monkeypatch.setattr(
        assemble, "load_served_model", lambda config, models: SimpleNamespace(vocab=ByteVocab())
    )


def test_added_files_are_drafted_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("def frobnicate(): pass")
    corpus = str(tmp_path / "corpus.bin")
    assert COMMAND(["add", str(tmp_path / "a.py"), "--spec-corpus", corpus]) == 0
    assert "added 1 files with 22 tokens" in capsys.readouterr().out
    assert COMMAND(["add", str(tmp_path / "a.py"), "--spec-corpus", corpus]) == 0
    assert "added 0 files" in capsys.readouterr().out
    speculator = SuffixSpeculator(SuffixSpeculator.Options(file=corpus), ByteVocab())
    draft = speculator.propose([DraftRequest(0, list(b"call frobn"), 5, namespace="anyone")])[0]
    assert bytes(draft.tokens) == b"icate"
    speculator.close()


@pytest.mark.parametrize("argv", [[], ["add"], ["remove", "x", "--spec-corpus", "f"], ["add", "x"]])
def test_an_incomplete_command_shows_the_complete_one(argv: list[str]) -> None:
    with pytest.raises(ConfigError, match="headstart corpus add PATH"):
        COMMAND(argv)


def test_paths_and_flags_come_in_any_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.py").write_text("def frobnicate(): pass")
    assert COMMAND(["add", "--spec-corpus", str(tmp_path / "corpus"), str(tmp_path / "a.py")]) == 0
    assert "added 1 files" in capsys.readouterr().out


def test_the_corpus_has_one_name_for_serve_and_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {setting.environment_name for setting in all_settings()}
    assert "HEADSTART_SPEC_SUFFIX_FILE" in names
    monkeypatch.setenv("HEADSTART_SPEC_SUFFIX_FILE", str(tmp_path / "corpus"))
    (tmp_path / "a.py").write_text("def frobnicate(): pass")
    assert COMMAND(["add", str(tmp_path / "a.py")]) == 0
    assert f"tokens to {tmp_path / 'corpus'}" in capsys.readouterr().out


@pytest.mark.parametrize("tokens", ["0", "-5"])
def test_a_corpus_without_room_is_refused(tmp_path: Path, tokens: str) -> None:
    (tmp_path / "a.py").write_text("x")
    with pytest.raises(ConfigError, match=f"is {tokens} but must be at least 1"):
        COMMAND(
            [
                "add",
                str(tmp_path / "a.py"),
                "--spec-corpus",
                "f",
                "--spec-suffix-corpus-tokens",
                tokens,
            ]
        )


def test_files_that_could_not_be_read_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(7):
        (tmp_path / f"{number}").symlink_to(tmp_path / "nowhere")
    assert COMMAND(["add", str(tmp_path), "--spec-corpus", str(tmp_path / ".corpus")]) == 0
    out = capsys.readouterr().out
    assert "7 unreadable" in out
    assert out.count("not read: ") == 5
    assert "and 2 more" in out
