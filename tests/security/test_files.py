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
from headstart.testing import ByteVocab
from headstart.types.errors import ConfigError, ModelError

VOCAB = ByteVocab()


def corpus_file(folder: Path) -> Path:
    path = folder / "corpus"
    store = TextStore(path, VOCAB)
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


def test_a_corpus_with_one_flipped_bit_is_moved_aside(tmp_path, caplog):
    path, aside = corpus_file(tmp_path), tmp_path / "corpus.damaged"
    for _ in range(2):
        data = damaged(path)
        corpus = SuffixCorpus(store=TextStore(path, VOCAB))
        assert corpus.num_texts == 0
        corpus.add([*range(4, 24)])
        corpus.close()
        assert aside.read_bytes() == data
    assert str(aside) in caplog.text
    again = SuffixCorpus(store=TextStore(path, VOCAB))  # whole again
    assert again.num_texts == 1
    again.close()


def test_a_corpus_with_any_flipped_bit_opens_without_a_wrong_text(tmp_path):
    path = corpus_file(tmp_path)
    whole = path.read_bytes()
    for position in range(16, len(whole), 137):
        data = bytearray(whole)
        data[position] ^= 4
        path.write_bytes(data)
        try:
            store = TextStore(path, VOCAB)
        except (ConfigError, ModelError) as error:
            assert str(path) in str(error)  # noqa: PT017
            continue
        for _, _, tokens in store.texts:
            assert tokens.tolist() == [*range(tokens[0], tokens[0] + 20)]
        store.close()


def test_a_full_disk_names_the_new_corpus_file(tmp_path, monkeypatch):
    def no_room(store):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(TextStore, "_make_tables", no_room)
    with pytest.raises(ConfigError, match=r"corpus file .*new-corpus cannot be .*disk is full"):
        TextStore(tmp_path / "new-corpus", VOCAB)


def test_a_folder_as_a_model_is_called_a_folder(tmp_path):
    for flag, config in (
        ("--draft-model", ModelConfig(draft_model=str(tmp_path))),
        ("--model", ModelConfig(model=str(tmp_path))),
    ):
        with pytest.raises(ModelError, match=rf"{flag} .* is a folder; name the GGUF file"):
            find_models(Config(model=config), {})
