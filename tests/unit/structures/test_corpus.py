"""The corpus keeps namespaces apart, memory bounded and nothing from being lost on disk."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from headstart.errors import ConfigError, ModelError
from headstart.structures.corpus import SIZES, SuffixCorpus
from headstart.structures.corpus_files import MAX_FILE_BYTES, AddReport, add_files
from headstart.structures.rolling import namespace_id
from headstart.structures.suffix_index import SuffixIndex
from headstart.structures.token_log import Record, TokenLog, VocabularyId
from headstart.testing import ByteVocab

VOCABULARY = VocabularyId.of(ByteVocab())
HEADER_SIZE, RECORD_SIZE = 36, 28


def look_up(corpus: SuffixCorpus, tail: list[int], namespace: str = "") -> list[int]:
    """Tokens that followed `tail` wherever this namespace may look."""
    query = SuffixIndex(SIZES)
    query.extend(tail)
    found = [
        index.tokens[position]
        for index in corpus.indexes(namespace)
        for _, position in index.find(query.tail(), limit=50)
    ]
    return sorted(found)


def test_a_namespace_sees_its_own_and_the_public_texts_only() -> None:
    corpus = SuffixCorpus()
    corpus.add([1, 2, 3], "alice")
    corpus.add([1, 2, 4], "bob")
    corpus.add([1, 2, 5])
    assert look_up(corpus, [1, 2], "alice") == [3, 5]
    assert look_up(corpus, [1, 2], "bob") == [4, 5]
    assert look_up(corpus, [1, 2], "carol") == [5]
    assert look_up(corpus, [1, 2]) == [5]


def test_the_fullest_namespace_loses_its_oldest_text() -> None:
    corpus = SuffixCorpus(capacity=100)
    corpus.add([7, 8, 9], "quiet")
    for first in range(100, 200, 10):
        corpus.add(list(range(first, first + 19)), "busy")
    assert len(corpus) <= 100
    assert look_up(corpus, [7, 8], "quiet") == [9]
    assert look_up(corpus, [100, 101], "busy") == []
    assert 192 in look_up(corpus, [190, 191], "busy")


def test_memory_does_not_grow_with_what_was_forgotten() -> None:
    corpus = SuffixCorpus(capacity=1000)
    sizes = []
    for turn in range(200):
        corpus.add([turn * 50 + i for i in range(50)])
        sizes.append(corpus.num_bytes)
    assert max(sizes[100:]) <= max(sizes[:100])
    assert len(corpus) <= 1000


def test_the_turns_of_a_chat_are_held_once() -> None:
    corpus = SuffixCorpus()
    chat: list[int] = []
    for turn in range(10):
        chat += [turn * 200 + i for i in range(200)]
        assert corpus.add(chat)
    assert len(corpus) < 1.6 * len(chat)
    assert look_up(corpus, [198, 199]) == [200]


def test_the_same_text_is_not_added_again() -> None:
    corpus = SuffixCorpus()
    assert corpus.add([1, 2, 3])
    assert not corpus.add([1, 2, 3])
    assert not corpus.add([])
    assert corpus.add([1, 2, 3], "other")


def test_texts_survive_closing_and_opening(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    corpus = SuffixCorpus.open(path, VOCABULARY)
    corpus.add([1, 2, 3], "alice")
    corpus.add([1, 2, 4])
    corpus.close()
    assert b"alice" not in path.read_bytes()
    corpus = SuffixCorpus.open(path, VOCABULARY)
    assert look_up(corpus, [1, 2], "alice") == [3, 4]
    assert not corpus.add([1, 2, 4])
    corpus.close()


def test_a_file_of_texts_long_forgotten_is_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    corpus = SuffixCorpus.open(path, VOCABULARY, capacity=100)
    for turn in range(50):
        corpus.add([(turn * 7 + i) % 250 for i in range(19)])
    corpus.close()
    assert path.stat().st_size < 4 * 2 * 100 + 40 * RECORD_SIZE
    reopened = SuffixCorpus.open(path, VOCABULARY, capacity=100)
    assert len(reopened) == len(corpus)
    reopened.close()
    assert [file.name for file in tmp_path.iterdir()] == ["corpus"]


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
def test_zeros_that_a_power_failure_left_at_the_end_are_dropped(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "corpus"
    write_log(path, [1, 2, 3], [4, 5])
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(num_bytes))
    assert read_log(path) == [[1, 2, 3], [4, 5]]
    assert path.read_bytes() == whole
    path.write_bytes(whole[:-8] + bytes(8))  # the head of the second record was written, its tokens not
    assert read_log(path) == [[1, 2, 3]]


def test_a_rewrite_goes_through_a_link_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "corpus")
    log = TokenLog(tmp_path / "link", VOCABULARY)
    log.rewrite([Record(namespace_id(""), array("i", [1, 2]))])
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
            first.rewrite([Record(namespace_id(""), array("i", [7]))])
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
        TokenLog(tmp_path / "corpus", VOCABULARY)
    log.close()
    TokenLog(tmp_path / "corpus", VOCABULARY).close()


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "corpus"
    corpus = SuffixCorpus.open(path, VOCABULARY)
    corpus.add([1, 2, 3])
    real_write = os.write

    def full_disk(descriptor: int, data: bytes) -> int:
        if len(data) > 10:
            return real_write(descriptor, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full_disk)
    corpus.add([4, 5, 6])
    monkeypatch.undo()
    assert look_up(corpus, [4, 5]) == [6]
    corpus.close()
    assert read_log(path) == [[1, 2, 3]]


WRITER = """
import sys
from pathlib import Path
from headstart.structures.corpus import SuffixCorpus
from headstart.structures.token_log import VocabularyId
from headstart.testing import ByteVocab
corpus = SuffixCorpus.open(Path(sys.argv[1]), VocabularyId.of(ByteVocab()), capacity=3000)
for turn in range(10**9):
    corpus.add([turn % 251, turn // 251 % 251] + [(turn + i) % 256 for i in range(100)])
    print(turn, flush=True)
"""


def test_kill_9_while_writing_loses_nothing_that_was_added(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for _ in range(300):  # compactions included
        line = writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    last = int(([line, *writer.stdout.readlines()])[-1])
    writer.wait()
    writer.stdout.close()
    corpus = SuffixCorpus.open(path, VOCABULARY, capacity=3000)
    for turn in range(last - 20, last + 1):
        text = [turn % 251, turn // 251 % 251] + [(turn + i) % 256 for i in range(100)]
        assert not corpus.add(text), f"text {turn} of {last} was lost"
    corpus.close()


def test_files_of_a_project_are_added_without_binaries_and_huge_ones(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("def alpha(): pass\n")
    (tmp_path / "src" / "copy.py").write_text("def alpha(): pass\n")
    (tmp_path / "logo.png").write_bytes(b"\x89PNG\xff\xfe")
    (tmp_path / "zeros.bin").write_bytes(bytes(10))
    (tmp_path / "huge.txt").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("secret")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    corpus = SuffixCorpus()
    (tmp_path / "nothing").touch()
    report = add_files(corpus, list, [tmp_path])
    assert report == AddReport(
        num_added=1,
        num_known=1,
        num_empty=1,
        num_binary=2,
        num_huge=1,
        num_unreadable=1,
        num_tokens=18,
        unread=(tmp_path / "gone", tmp_path / "huge.txt"),
    )
    assert look_up(corpus, list(b"def alph")) == [ord("a")]


def test_nothing_is_added_when_a_path_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def alpha(): pass\n")
    corpus = SuffixCorpus()
    with pytest.raises(ConfigError, match="absent is neither a file nor a folder, nothing was added"):
        add_files(corpus, list, [tmp_path / "a.py", tmp_path / "absent"])
    assert len(corpus) == 0


def test_a_folder_that_cannot_be_read_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    real_scandir = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real_scandir(path)

    monkeypatch.setattr(os, "scandir", scandir)
    report = add_files(SuffixCorpus(), list, [tmp_path])
    assert report == AddReport(num_unreadable=1, unread=(tmp_path / "closed",))


def test_the_vocabulary_id_tells_spellings_apart() -> None:
    class Other(ByteVocab):
        def token_text(self, token: int) -> bytes:
            return super().token_text(token ^ 1 if token < 2 else token)

    assert VocabularyId.of(Other()).digest != VOCABULARY.digest
    assert struct.calcsize("<8sII16sI") == HEADER_SIZE
