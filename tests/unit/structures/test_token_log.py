"""A log of tokens survives being killed, and refuses what it cannot trust."""

from __future__ import annotations

import os
import struct
import sys
import time
from array import array
from pathlib import Path

import pytest

from headstart.structures.rolling import namespace_id
from headstart.structures.token_log import Record, TokenLog, VocabularyId
from headstart.testing import ByteVocab
from headstart.types.errors import ConfigError, ModelError

VOCABULARY = VocabularyId.of(ByteVocab())
HEADER_SIZE, RECORD_SIZE = 36, 28


def write_log(path: Path, *texts: list[int]) -> None:
    log = TokenLog(path, VOCABULARY)
    for text in texts:
        log.append(Record(namespace_id(""), array("i", text)))
    log.close()


def read_log(path: Path) -> list[list[int]]:
    log = TokenLog(path, VOCABULARY)
    texts = [record.tokens.tolist() for record in log.take_records()]
    log.close()
    return texts


def test_a_file_cut_anywhere_opens_with_every_whole_record(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    write_log(path, [1, 2, 3], [4, 5])
    whole = path.read_bytes()
    first_end = HEADER_SIZE + RECORD_SIZE + 12
    for size in range(0, len(whole), 3):
        path.write_bytes(whole[:size])
        assert read_log(path) == ([[1, 2, 3]] if size >= first_end else [])
        write_log(path, [6])  # and goes on behind them
        assert read_log(path)[-1] == [6]


@pytest.mark.parametrize("num_bytes", [5, 60])
def test_zeros_that_a_power_failure_left_at_the_end_are_dropped(
    tmp_path: Path, num_bytes: int
) -> None:
    path = tmp_path / "corpus"
    write_log(path, [1, 2, 3], [4, 5])
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(num_bytes))
    assert read_log(path) == [[1, 2, 3], [4, 5]]
    assert path.read_bytes() == whole
    # the head of the second record was written, its tokens not
    path.write_bytes(whole[:-8] + bytes(8))
    assert read_log(path) == [[1, 2, 3]]


def rewrite(log: TokenLog, *texts: list[int]) -> None:
    """All at once."""
    log.begin_rewrite(Record(namespace_id(""), array("i", text)) for text in texts)
    log.continue_rewrite(10**9)


def test_a_rewrite_in_slices_keeps_what_is_appended_in_the_meantime(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    write_log(path, [1, 2], [3])
    log = TokenLog(path, VOCABULARY)
    log.begin_rewrite(Record(namespace_id(""), array("i", [n, n, n])) for n in (5, 6, 7))
    slices = 0
    for text in ([8], [9, 10]):
        log.append(Record(namespace_id(""), array("i", text)))
        while log.is_rewriting and slices < 3:
            log.continue_rewrite(4)
            slices += 1
    log.continue_rewrite(40)
    assert not log.is_rewriting
    assert log.num_tokens == 9 + 3
    log.close()
    assert read_log(path) == [[5, 5, 5], [6, 6, 6], [7, 7, 7], [8], [9, 10]]
    assert [file.name for file in tmp_path.iterdir()] == ["corpus"]


def test_a_rewrite_that_was_not_finished_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    write_log(path, [1, 2], [3])
    log = TokenLog(path, VOCABULARY)
    log.begin_rewrite(Record(namespace_id(""), array("i", [5, 5])) for _ in range(3))
    log.continue_rewrite(2)
    log.append(Record(namespace_id(""), array("i", [4])))
    log.close()
    assert read_log(path) == [[1, 2], [3], [4]]
    assert [file.name for file in tmp_path.iterdir()] == ["corpus"]


def test_a_rewrite_goes_through_a_link_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "corpus")
    log = TokenLog(tmp_path / "link", VOCABULARY)
    rewrite(log, [1, 2])
    log.close()
    assert (tmp_path / "link").is_symlink()
    assert read_log(tmp_path / "disk" / "corpus") == [[1, 2]]


@pytest.mark.skipif(sys.platform == "win32", reason="no flock")
def test_a_file_that_is_replaced_while_it_is_opened_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the second process would hold a file without a name, and its texts would be lost."""
    path = tmp_path / "corpus"
    first = TokenLog(path, VOCABULARY)
    real_open, opened = os.open, []

    def slow_open(name: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = real_open(name, flags, mode)
        opened.append(name)
        if len(opened) == 1:  # between its open and its lock
            rewrite(first, [7])
            first.close()
        return descriptor

    monkeypatch.setattr(os, "open", slow_open)
    second = TokenLog(path, VOCABULARY)
    assert [record.tokens.tolist() for record in second.take_records()] == [[7]]
    second.append(Record(namespace_id(""), array("i", [8])))
    second.close()
    monkeypatch.undo()
    assert read_log(path) == [[7], [8]]


def test_a_damaged_byte_anywhere_refuses_the_file_by_name(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    write_log(path, [1, 2, 3], [4, 5])
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        with pytest.raises(ModelError, match="corpus"):
            TokenLog(path, VOCABULARY)
    path.write_bytes(whole)
    assert read_log(path) == [[1, 2, 3], [4, 5]]


def test_a_file_of_another_vocabulary_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    write_log(path, [1])
    before = path.read_bytes()
    for other in (VocabularyId(999, VOCABULARY.digest), VocabularyId(VOCABULARY.size, bytes(16))):
        with pytest.raises(ModelError, match="another vocabulary"):
            TokenLog(path, other)
    assert path.read_bytes() == before


def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "novel.txt"
    path.write_text("It was a dark and stormy night")
    with pytest.raises(ModelError, match=r"novel\.txt is not a corpus"):
        TokenLog(path, VOCABULARY)
    assert path.read_text().startswith("It was")


@pytest.mark.skipif(sys.platform == "win32", reason="no flock")
def test_two_processes_cannot_hold_one_file(tmp_path: Path) -> None:
    log = TokenLog(tmp_path / "corpus", VOCABULARY)
    with pytest.raises(ConfigError, match="in use"):
        TokenLog(tmp_path / "corpus", VOCABULARY, patience_seconds=0.0)
    log.close()
    TokenLog(tmp_path / "corpus", VOCABULARY).close()


@pytest.mark.skipif(sys.platform == "win32", reason="no flock")
def test_a_process_that_is_about_to_end_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine of a server that was killed holds the file until its step is over."""
    first = TokenLog(tmp_path / "corpus", VOCABULARY)
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            first.append(Record(namespace_id(""), array("i", [7])))
            first.close()

    monkeypatch.setattr(time, "sleep", nap)
    second = TokenLog(tmp_path / "corpus", VOCABULARY)
    assert [record.tokens.tolist() for record in second.take_records()] == [[7]]
    second.close()
    assert len(naps) == 3
    assert caplog.text.count("in use by another process; waiting for up to 10 s") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="no flock")
def test_a_disk_without_locks_is_refused_for_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("headstart.structures.token_log.fcntl.flock", fail)
    with pytest.raises(ConfigError, match="cannot be locked: No locks available; name a file"):
        TokenLog(tmp_path / "corpus", VOCABULARY)


def test_the_vocabulary_id_tells_spellings_apart() -> None:
    class Other(ByteVocab):
        def token_text(self, token: int) -> bytes:
            return super().token_text(token ^ 1 if token < 2 else token)

    assert VocabularyId.of(Other()).digest != VOCABULARY.digest
    assert struct.calcsize("<8sII16sI") == HEADER_SIZE
