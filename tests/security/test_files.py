"""Files that are damaged, full or not files: said by name, and no reason to stay away."""

from __future__ import annotations

import errno
import os
from array import array
from pathlib import Path

import pytest

from headstart.app.hub import resolve_model
from headstart.config import ModelConfig
from headstart.structures.corpus import SuffixCorpus
from headstart.structures.token_log import Record, TokenLog, VocabularyId
from headstart.types.errors import ConfigError, ModelError

VOCABULARY = VocabularyId(100, bytes(16))


def corpus_file(folder: Path) -> Path:
    path = folder / "corpus"
    log = TokenLog(path, VOCABULARY)
    for number in range(5):
        log.append(Record(bytes(16), array("i", range(number, number + 20))))
    log.close()
    return path


def test_a_corpus_with_one_flipped_bit_is_used_up_to_there_and_kept_aside(tmp_path, caplog):
    path = corpus_file(tmp_path)
    whole = path.read_bytes()
    for position in range(8, len(whole), 37):
        damaged = bytearray(whole)
        damaged[position] ^= 4
        path.write_bytes(damaged)
        corpus = SuffixCorpus.open(path, VOCABULARY, keeps_damaged=True)
        assert corpus.num_texts < 5
        corpus.add([9] * 30)
        corpus.close()
        [copy] = tmp_path.glob("corpus.damaged-*")
        assert copy.read_bytes() == damaged
        assert str(copy) in caplog.text
        SuffixCorpus.open(path, VOCABULARY).close()  # whole again
        copy.unlink()


def test_several_copies_are_kept(tmp_path):
    path = corpus_file(tmp_path)
    whole = path.read_bytes()
    for _ in range(3):
        path.write_bytes(whole[:60] + b"\xff" + whole[61:])
        SuffixCorpus.open(path, VOCABULARY, keeps_damaged=True).close()
    assert len(list(tmp_path.glob("corpus.damaged-*"))) == 3


def test_without_that_wish_the_refusal_names_the_way_out(tmp_path):
    path = corpus_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"mv .*corpus .*corpus\.damaged"):
        SuffixCorpus.open(path, VOCABULARY)
    assert path.read_bytes() == data


def test_a_full_disk_names_the_new_corpus_file(tmp_path, monkeypatch):
    def no_room(descriptor, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", no_room)
    with pytest.raises(ConfigError, match=r"corpus file .*new-corpus cannot be .*[Nn]o space"):
        TokenLog(tmp_path / "new-corpus", VOCABULARY)


def test_a_folder_as_a_model_is_called_a_folder(tmp_path):
    for flag, config in (
        ("--draft-model", ModelConfig(draft_model=str(tmp_path))),
        ("--model", ModelConfig(model=str(tmp_path))),
    ):
        with pytest.raises(ModelError, match=rf"{flag} .* is a folder; name the GGUF file"):
            resolve_model(config, {})
