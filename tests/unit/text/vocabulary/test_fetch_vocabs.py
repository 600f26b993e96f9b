"""The vocabularies of tests come out of a source package, and their absence breaks nothing."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from tests import fetch_vocabs


@pytest.fixture
def sdist(tmp_path: Path) -> Path:
    """A source package with all vocabularies and another file."""
    path = tmp_path / "llama_cpp_python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in (*(f"ggml-vocab-{name}.gguf" for name in fetch_vocabs.NAMES), "other.gguf"):
            member = tarfile.TarInfo(f"llama_cpp_python/../models/{name}")
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
    return path


def test_the_vocabularies_are_taken_out_of_the_package_and_nothing_else(
    sdist: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    assert not fetch_vocabs.has_all(folder)
    assert fetch_vocabs.main([str(folder), "--sdist", str(sdist)]) == 0
    assert fetch_vocabs.has_all(folder)
    names = {path.name for path in folder.iterdir()}
    assert names == {f"ggml-vocab-{name}.gguf" for name in fetch_vocabs.NAMES}


def test_what_is_there_is_not_fetched_again(
    sdist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    fetch_vocabs.extract(sdist, folder)
    monkeypatch.setattr(fetch_vocabs, "download", lambda folder: pytest.fail("downloaded again"))
    assert fetch_vocabs.main([str(folder), "--if-missing"]) == 0


@pytest.mark.parametrize(("flags", "code"), [(["--if-missing"], 0), ([], 1)])
def test_a_package_that_cannot_be_had_fails_only_where_it_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], code: int
) -> None:
    absent = ["--sdist", str(tmp_path / "absent.tar.gz")]
    assert fetch_vocabs.main([str(tmp_path / "kept"), *absent, *flags]) == code
    assert "the tests that need them are skipped" in capsys.readouterr().out
