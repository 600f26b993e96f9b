"""Files that are damaged, full or not files: said by name, and no reason to stay away."""

from __future__ import annotations

import sqlite3
from array import array
from pathlib import Path

import pytest

from headstart.app.model_files import find_models
from headstart.config import Config, ModelConfig
from headstart.structures.corpus import SuffixCorpus
from headstart.structures.text_store import TextStore
from headstart.structures.vocabulary_id import VocabularyId
from headstart.types.errors import ConfigError, ModelError

VOCABULARY = VocabularyId(100, bytes(16))


def corpus_file(folder: Path) -> Path:
    path = folder / "corpus"
    store = TextStore(path, VOCABULARY)
    for number in range(5):
        store.add(bytes(16), array("i", range(number, number + 20)))
    store.close()
    return path


def damaged(path: Path) -> bytes:
    """The file with a flipped bit in its last text, which stands first in its page."""
    data = bytearray(path.read_bytes())
    data[data.rindex(array("i", range(4, 24)).tobytes())] ^= 4
    path.write_bytes(data)
    return bytes(data)


def test_a_corpus_with_one_flipped_bit_is_used_up_to_there_and_kept_aside(tmp_path, caplog):
    path = corpus_file(tmp_path)
    data = damaged(path)
    corpus = SuffixCorpus(store=TextStore(path, VOCABULARY))
    assert corpus.num_texts == 4
    corpus.add([9] * 30)
    corpus.close()
    [copy] = tmp_path.glob("corpus.damaged-*")
    assert copy.read_bytes() == data
    assert str(copy) in caplog.text
    again = SuffixCorpus(store=TextStore(path, VOCABULARY))  # whole again
    assert again.num_texts == 5
    again.close()


def test_a_corpus_with_any_flipped_bit_opens_without_a_wrong_text(tmp_path):
    path = corpus_file(tmp_path)
    whole = path.read_bytes()
    for position in range(16, len(whole), 137):
        data = bytearray(whole)
        data[position] ^= 4
        path.write_bytes(data)
        try:
            corpus = SuffixCorpus(store=TextStore(path, VOCABULARY))
        except (ConfigError, ModelError) as error:
            assert str(path) in str(error)  # noqa: PT017
            continue
        assert corpus.num_texts == 5 or [*tmp_path.glob("corpus.damaged-*")]
        for text in (range(number, number + 20) for number in range(5)):
            if not corpus.add([*text]):
                break  # it is known as it was
        else:
            assert [*tmp_path.glob("corpus.damaged-*")]
        corpus.close()


def test_several_copies_are_kept(tmp_path):
    path = corpus_file(tmp_path)
    whole = path.read_bytes()
    for _ in range(3):
        path.write_bytes(whole)
        damaged(path)
        SuffixCorpus(store=TextStore(path, VOCABULARY)).close()
    assert len(list(tmp_path.glob("corpus.damaged-*"))) == 3


def test_a_full_disk_names_the_new_corpus_file(tmp_path, monkeypatch):
    def no_room(store):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(TextStore, "_make_tables", no_room)
    with pytest.raises(ConfigError, match=r"corpus file .*new-corpus cannot be .*disk is full"):
        TextStore(tmp_path / "new-corpus", VOCABULARY)


def test_a_folder_as_a_model_is_called_a_folder(tmp_path):
    for flag, config in (
        ("--draft-model", ModelConfig(draft_model=str(tmp_path))),
        ("--model", ModelConfig(model=str(tmp_path))),
    ):
        with pytest.raises(ModelError, match=rf"{flag} .* is a folder; name the GGUF file"):
            find_models(Config(model=config), {})
