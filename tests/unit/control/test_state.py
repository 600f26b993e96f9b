"""The state file: whom it is for, what a failure leaves behind, and what of it is used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from headstart.control.controller import Controller
from headstart.control.state import StateFile
from headstart.structures.model_id import ModelId
from headstart.types.errors import ConfigError

SMALL, BIG, DRAFT = (
    ModelId("11", "small.gguf"),
    ModelId("22", "big.gguf"),
    ModelId("33", "draft.gguf"),
)
TARGET = {"target": SMALL}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a state file may be, in a folder of its own."""
    return tmp_path / "control" / "state.json"


def learned(path: Path, models: dict[str, ModelId]) -> None:
    """As a server leaves it."""
    Controller().save(StateFile(path, models))


def test_a_state_of_another_model_is_refused_by_name_with_the_remedy_and_left_alone(path: Path):
    learned(path, TARGET | {"draft model": DRAFT})
    before = path.read_bytes()
    with pytest.raises(
        ConfigError, match=r"for the target small\.gguf \(11\), not for big\.gguf.*name another"
    ):
        StateFile(path, {"target": BIG})
    with pytest.raises(
        ConfigError, match=r"learned for the draft model draft\.gguf \(33\), not for big\.gguf"
    ):
        StateFile(path, TARGET | {"draft model": BIG})
    assert path.read_bytes() == before


def test_two_servers_of_different_models_cannot_both_start_with_one_new_file(path: Path) -> None:
    StateFile(path, TARGET).check()
    with pytest.raises(ConfigError, match="for the target"):
        StateFile(path, {"target": BIG})
    assert not Controller().load(StateFile(path, TARGET))


def test_a_draft_model_may_come_and_go_and_stays_known(path: Path) -> None:
    learned(path, TARGET)
    before = StateFile(path, {}).state
    learned(path, TARGET | {"draft model": DRAFT})
    learned(path, TARGET)
    assert StateFile(path, TARGET | {"draft model": DRAFT}).state == before
    with pytest.raises(ConfigError, match="draft model"):
        StateFile(path, TARGET | {"draft model": BIG})
    assert path.read_bytes().startswith(b'{"version":')


@pytest.mark.parametrize(
    "content", ['{"version":1,"cost":{}}', '{"version":0}', '{"version":1,"learned_for":7}', "{"]
)
def test_a_state_that_cannot_be_read_or_names_no_model_is_not_used_and_replaced(path, content):
    path.parent.mkdir()
    path.write_text(content)
    assert StateFile(path, TARGET).why_not
    assert path.read_text() == content
    learned(path, TARGET)
    assert not StateFile(path, TARGET).why_not


def test_a_model_is_known_by_its_content_wherever_it_lies(tmp_path: Path) -> None:
    content = os.urandom(500_000)
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "b").write_bytes(content)
    (tmp_path / "c").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    (tmp_path / "d").write_bytes(content[:-1])
    (tmp_path / "empty").touch()
    a, b, c, d, empty = (ModelId.of(tmp_path / name) for name in ("a", "b", "c", "d", "empty"))
    assert a == b
    assert len({a.digest, c.digest, d.digest, empty.digest}) == 4
    assert str(b).startswith("b (")


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)


def no_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: object, target: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)


@pytest.mark.parametrize("failure", [full_disk, no_rename])
def test_a_failed_write_leaves_the_old_state_and_nothing_beside_it(path, monkeypatch, failure):
    learned(path, TARGET)
    before = path.read_bytes()
    failure(monkeypatch)
    with pytest.raises(OSError, match=r"No space|Input/output"):
        StateFile(path, TARGET).write({"cost": {}})
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_written_later_is_noticed_at_once_and_not_touched(path, monkeypatch):
    learned(path, TARGET)
    before, inode = path.read_bytes(), path.stat().st_ino
    for place in (path, path.parent):
        monkeypatch.setattr(os, "access", lambda asked, mode, place=place: Path(asked) != place)
        with pytest.raises(PermissionError):
            StateFile(path, TARGET).check()
    assert (path.read_bytes(), path.stat().st_ino) == (before, inode)


@pytest.mark.parametrize("number", ["0.5", "1" + "0" * 400, "[" * 100_000])
def test_a_number_that_was_changed_or_that_python_cannot_hold_is_a_damaged_file(path: Path, number):
    learned(path, TARGET)
    path.write_text(path.read_text().replace('"level":0.0', f'"level":{number}'))
    assert Controller().load(StateFile(path, TARGET))


def test_a_device_or_pipe_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        StateFile(pipe, TARGET).check()
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_file_that_is_somebody_elses_is_not_replaced_where_it_was_named(tmp_path: Path) -> None:
    notes, touched = tmp_path / "notes.txt", tmp_path / "touched"
    notes.write_text("do not lose this")
    touched.touch()
    with pytest.raises(OSError, match="would be replaced"):
        StateFile(notes, TARGET).check()
    StateFile(notes, TARGET).check(replaces_others=True)
    StateFile(touched, TARGET).check()


def test_a_folder_that_cannot_be_looked_into_is_named_and_ends_nothing(path: Path, monkeypatch):
    def refuse(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", refuse)
    assert "Permission denied" in StateFile(path, TARGET).why_not


def test_scores_are_what_the_class_says_now_not_what_it_said_when_the_state_was_saved(tmp_path):
    before, now = Controller(), Controller()
    before.trust_scores("text")
    before.save(StateFile(tmp_path / "state", {}))
    assert now.load(StateFile(tmp_path / "state", {})) == ""
    assert now.survival("text", [0.9], 1) == Controller().survival("text", [0.9], 1)
