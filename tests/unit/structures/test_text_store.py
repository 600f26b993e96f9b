"""The file of a corpus survives being killed, and refuses what it cannot trust."""

from __future__ import annotations

import sqlite3
import threading
from array import array
from pathlib import Path

import pytest

from headstart.structures.checkpoints import Checkpoints, pack, unpack
from headstart.structures.suffix_index import SEPARATOR
from headstart.structures.tenants import namespace_id
from headstart.structures.text_store import TextStore, spelling_digest
from headstart.testing import ByteVocab, LetterVocab
from headstart.types import Checkpoint, SavedState
from headstart.types.errors import ConfigError, ModelError

VOCAB = ByteVocab()
TEXTS = [[1, 2, 3], [4, SEPARATOR, 5], [SEPARATOR, *[6] * 2000]]  # two with images


def write_texts(path: Path, *texts: list[int]) -> None:
    store = TextStore(path, VOCAB)
    for text in texts:
        store.add(namespace_id(""), array("i", text))
    store.close()


def read_texts(path: Path) -> list[list[int]]:
    store = TextStore(path, VOCAB)
    texts = [tokens.tolist() for *_, tokens in store.texts]
    store.close()
    return texts


def test_texts_come_back_in_their_order_without_those_that_were_dropped(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    store = TextStore(path, VOCAB)
    rows = [store.add(namespace_id(""), array("i", text)) for text in TEXTS]
    store.drop(rows[1:2])
    store.close()
    assert read_texts(path) == [TEXTS[0], TEXTS[2]]
    assert [file.name for file in tmp_path.iterdir()] == ["corpus"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_cut_anywhere_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    write_texts(path, *TEXTS)
    whole = path.read_bytes()
    for size in range(1024, len(whole), 511):
        path.write_bytes(whole[:size])
        assert read_texts(path) == []
        assert (tmp_path / "corpus.damaged").read_bytes() == whole[:size]
    for place in (16, 21, 100):  # what SQLite says of the file and its first page
        path.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
        assert read_texts(path) == []
    path.write_bytes(b"")  # it was killed before anything was written
    assert read_texts(path) == []


def test_a_file_goes_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "corpus")
    write_texts(tmp_path / "link", [1, 2])
    assert (tmp_path / "link").is_symlink()
    assert read_texts(tmp_path / "disk" / "corpus") == [[1, 2]]


def test_a_file_of_another_vocabulary_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    write_texts(path, [1])
    before = path.read_bytes()
    with pytest.raises(ModelError, match=r"another vocabulary \(258 tokens, the model has 32"):
        TextStore(path, LetterVocab())
    assert path.read_bytes() == before


def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "novel.txt"
    path.write_text("It was a dark and stormy night")
    with pytest.raises(ModelError, match=r"novel\.txt is not a corpus"):
        TextStore(path, VOCAB)
    assert path.read_text().startswith("It was")
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE letters (text)")
    db.close()
    with pytest.raises(ModelError, match=r"other\.db is not a corpus"):
        TextStore(other, VOCAB)


def test_two_processes_cannot_hold_one_file(tmp_path: Path) -> None:
    store = TextStore(tmp_path / "corpus", VOCAB)
    with pytest.raises(ConfigError, match="in use"):
        TextStore(tmp_path / "corpus", VOCAB, patience_seconds=0.0)
    store.close()
    TextStore(tmp_path / "corpus", VOCAB).close()


def test_a_process_that_is_about_to_end_is_waited_for(tmp_path, monkeypatch) -> None:
    """The engine of a server that was killed holds the file until its step is over."""
    first, lock = TextStore(tmp_path / "corpus", VOCAB), TextStore._lock
    first.add(namespace_id(""), array("i", [7]))

    def wait(store: TextStore) -> None:
        threading.Timer(0.05, first.close).start()
        lock(store)

    monkeypatch.setattr(TextStore, "_lock", wait)
    second = TextStore(tmp_path / "corpus", VOCAB)
    assert [tokens.tolist() for *_, tokens in second.texts] == [[7]]
    second.close()


def test_the_digest_tells_spellings_apart() -> None:
    class Other(ByteVocab):
        def token_text(self, token: int) -> bytes:
            return super().token_text(token ^ 1 if token < 2 else token)

    assert spelling_digest(Other()) != spelling_digest(VOCAB)


def made(length: int, size: int = 10) -> Checkpoint:
    return Checkpoint(length, bytes(size))


def filled(lengths: list[int], per_sequence: int = 8, max_bytes: int = 1000) -> Checkpoints:
    checkpoints = Checkpoints(per_sequence, max_bytes)
    for length in lengths:
        checkpoints.add(0, made(length))
    return checkpoints


def lengths_of(checkpoints: Checkpoints, seq_id: int = 0) -> list[int]:
    return [c.length for c in checkpoints.of(seq_id)]


def test_the_longest_that_fits_is_found() -> None:
    checkpoints = filled([30, 10, 20])
    best = checkpoints.best(0, 29)
    assert best is not None
    assert best.length == 20
    assert checkpoints.best(0, 9) is None
    assert checkpoints.best(1, 100) is None


def test_a_cut_sequence_loses_the_longer_ones_and_its_copies_keep_theirs() -> None:
    checkpoints = filled([10, 20, 30])
    checkpoints.share(0, 1, 25)
    checkpoints.cut(0, 15)
    assert lengths_of(checkpoints) == [10]
    assert lengths_of(checkpoints, 1) == [10, 20]


def test_what_is_shared_counts_once() -> None:
    checkpoints = filled([10, 20])
    checkpoints.share(0, 1, 20)
    assert checkpoints.num_bytes == 20


def test_too_many_lose_the_one_that_saves_fewest_tokens_but_never_the_newest() -> None:
    assert lengths_of(filled([100, 200, 205, 300], per_sequence=3)) == [100, 200, 300]
    assert lengths_of(filled([100, 200, 300, 301], per_sequence=3)) == [200, 300, 301]


def test_bytes_of_all_sequences_are_bounded() -> None:
    checkpoints = Checkpoints(8, 55)
    for length in range(1, 40):
        checkpoints.add(length % 4, made(10 * length))
        assert checkpoints.num_bytes <= 55
        assert checkpoints.has(length % 4, 10 * length)
    checkpoints.add(0, made(1000, size=56))
    assert not checkpoints.has(0, 1000)


def test_none_are_kept_where_none_are_wanted() -> None:
    assert lengths_of(filled([10], per_sequence=0)) == []


def test_packed_sequences_come_back_and_other_bytes_do_not() -> None:
    saved = SavedState(b"state", (Checkpoint(3, b"abc"), Checkpoint(9, b"")), b"text")
    back = unpack(b"".join(pack(saved)))
    assert back is not None
    assert len(back) == len(saved) == 12
    assert [bytes(part) for part in back.parts] == saved.parts
    assert [c.length for c in back.checkpoints] == [3, 9]


@pytest.mark.parametrize("cut", [0, 5, 24, 25, 40, -1])
def test_damaged_bytes_are_refused(cut: int) -> None:
    packed = b"".join(pack(SavedState(b"state", (Checkpoint(3, b"abc"),))))
    assert unpack(packed[:cut]) is None
    assert unpack(bytes(len(packed))) is None
