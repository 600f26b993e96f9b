"""The file of a corpus survives being killed, and refuses what it cannot trust."""

from __future__ import annotations

import sqlite3
from array import array
from pathlib import Path

import pytest

from headstart.structures.rolling import namespace_id
from headstart.structures.text_store import TextStore
from headstart.structures.vocabulary_id import VocabularyId
from headstart.testing import ByteVocab
from headstart.types.errors import ConfigError, ModelError

VOCABULARY = VocabularyId.of(ByteVocab())
TEXTS = [[1, 2, 3], [4, 5], [6] * 2000]


def write_texts(path: Path, *texts: list[int]) -> None:
    store = TextStore(path, VOCABULARY)
    for text in texts:
        store.add(namespace_id(""), array("i", text))
    store.close()


def read_texts(path: Path) -> list[list[int]]:
    store = TextStore(path, VOCABULARY)
    texts = [text.tokens.tolist() for text in store.take_texts()]
    store.close()
    return texts


def test_texts_come_back_in_their_order_without_those_that_were_dropped(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    store = TextStore(path, VOCABULARY)
    rows = [store.add(namespace_id(""), array("i", text)) for text in TEXTS]
    store.drop(rows[1:2])
    store.close()
    assert read_texts(path) == [TEXTS[0], TEXTS[2]]
    assert [file.name for file in tmp_path.iterdir()] == ["corpus"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_cut_anywhere_is_refused_or_whole(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    write_texts(path, *TEXTS)
    whole = path.read_bytes()
    for size in range(17, len(whole), 511):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"corpus file .* is damaged"):
            read_texts(path)
    path.write_bytes(b"")  # it was killed before anything was written
    assert read_texts(path) == []


def test_a_file_goes_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "corpus")
    write_texts(tmp_path / "link", [1, 2])
    assert (tmp_path / "link").is_symlink()
    assert read_texts(tmp_path / "disk" / "corpus") == [[1, 2]]


def test_a_damaged_byte_never_changes_a_text(tmp_path: Path) -> None:
    """Some bytes of an SQLite file mean nothing: then the texts are as they were."""
    path = tmp_path / "corpus"
    write_texts(path, *TEXTS)
    whole, num_refused = path.read_bytes(), 0
    for position in [*range(100), *range(100, len(whole), 61)]:
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        try:
            assert read_texts(path) == TEXTS
        except (ConfigError, ModelError) as error:
            assert str(path) in str(error)  # noqa: PT017
            num_refused += 1
    assert num_refused > 8000 / 61, "most of what the longest text takes"


def test_a_file_of_another_vocabulary_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    write_texts(path, [1])
    before = path.read_bytes()
    for other in (VocabularyId(999, VOCABULARY.digest), VocabularyId(VOCABULARY.size, bytes(16))):
        with pytest.raises(ModelError, match="another vocabulary"):
            TextStore(path, other)
    assert path.read_bytes() == before


def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "novel.txt"
    path.write_text("It was a dark and stormy night")
    with pytest.raises(ModelError, match=r"novel\.txt is not a corpus"):
        TextStore(path, VOCABULARY)
    assert path.read_text().startswith("It was")
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE letters (text)")
    db.close()
    with pytest.raises(ModelError, match=r"other\.db is not a corpus"):
        TextStore(other, VOCABULARY)


def test_two_processes_cannot_hold_one_file(tmp_path: Path) -> None:
    store = TextStore(tmp_path / "corpus", VOCABULARY)
    with pytest.raises(ConfigError, match="in use"):
        TextStore(tmp_path / "corpus", VOCABULARY, patience_seconds=0.0)
    store.close()
    TextStore(tmp_path / "corpus", VOCABULARY).close()


def test_a_process_that_is_about_to_end_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine of a server that was killed holds the file until its step is over."""
    first = TextStore(tmp_path / "corpus", VOCABULARY)
    lock, calls = TextStore._lock, []

    def wait(store: TextStore) -> None:
        calls.append(store)
        if len(calls) == 2:
            first.add(namespace_id(""), array("i", [7]))
            first.close()
        lock(store)

    monkeypatch.setattr(TextStore, "_lock", wait)
    second = TextStore(tmp_path / "corpus", VOCABULARY)
    assert [text.tokens.tolist() for text in second.take_texts()] == [[7]]
    second.close()
    assert caplog.text.count("in use by another process; waiting for up to 10 s") == 1


def test_the_vocabulary_id_tells_spellings_apart() -> None:
    class Other(ByteVocab):
        def token_text(self, token: int) -> bytes:
            return super().token_text(token ^ 1 if token < 2 else token)

    assert VocabularyId.of(Other()).digest != VOCABULARY.digest
