"""`headstart corpus add` makes the file that the suffix speculator reads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from headstart import assemble
from headstart.cli.corpus import run
from headstart.errors import ConfigError
from headstart.speculators.suffix import SuffixSpeculator
from headstart.structures.token_log import VocabularyId
from headstart.testing import ByteVocab
from headstart.types import DraftRequest


@pytest.fixture(autouse=True)
def _byte_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "find_models", lambda config: None)
    monkeypatch.setattr(assemble, "load_served_model", lambda config, models: SimpleNamespace(vocab=ByteVocab()))


def test_added_files_are_drafted_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("def frobnicate(): pass")
    corpus = str(tmp_path / "corpus.bin")
    assert run(["add", str(tmp_path / "a.py"), "--spec-corpus", corpus]) == 0
    assert "added 1 files with 22 tokens" in capsys.readouterr().out
    assert run(["add", str(tmp_path / "a.py"), "--spec-corpus", corpus]) == 0
    assert "added 0 files" in capsys.readouterr().out
    speculator = SuffixSpeculator(SuffixSpeculator.Options(file=corpus), VocabularyId.of(ByteVocab()))
    draft = speculator.propose([DraftRequest(0, list(b"call frobn"), 5, namespace="anyone")])[0]
    assert bytes(draft.tokens) == b"icate"
    speculator.close()


@pytest.mark.parametrize("argv", [[], ["add"], ["remove", "x", "--spec-corpus", "f"], ["add", "x"]])
def test_an_incomplete_command_shows_the_complete_one(argv: list[str]) -> None:
    with pytest.raises(ConfigError, match="headstart corpus add PATH"):
        run(argv)
