"""Real vocabularies for tests: the embedded models', and llama.cpp's test vocabularies where they
are present.

The latter are in the source package of llama-cpp-python but not in its wheel; `make test` brings
them, and so does `python tests/fetch_vocabs.py`. HEADSTART_VOCABS names another folder with
`ggml-vocab-*.gguf`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.fetch_vocabs import NAMES, folder_of_vocabularies, has_all, vocabulary_file

import headstart
from headstart.engine.model import Model
from headstart.text.vocabulary.vocabulary_translator import VocabularyTranslator
from headstart.types import Vocab

DEMO = ("demo-target", "demo-draft-other")
FETCHED = NAMES


def fetched_folder() -> Path:
    return folder_of_vocabularies()


def has_fetched() -> bool:
    return has_all(fetched_folder())


def _path(name: str) -> Path:
    if name.startswith("demo"):
        return Path(headstart.__file__).parent / "app/demo" / f"{name}.gguf"
    return vocabulary_file(fetched_folder(), name)


@cache
def vocab(name: str) -> Vocab:
    return Model(_path(name)).vocab


@cache
def translator(target: str, draft: str) -> VocabularyTranslator:
    return VocabularyTranslator(vocab(target), vocab(draft))
