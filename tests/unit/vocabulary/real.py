"""Real vocabularies for tests: the embedded models', and llama.cpp's test vocabularies where they
are present.

The latter are in the source package of llama-cpp-python but not in its wheel; `python
tests/fetch_vocabs.py` brings them. HEADSTART_VOCABS names another folder with `ggml-vocab-*.gguf`.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from tests.fetch_vocabs import default_folder

import headstart
from headstart.config import EngineConfig
from headstart.engine.model import Model
from headstart.types import Vocab
from headstart.vocabulary import TranslationOptions, VocabularyTranslator

DEMO = ("demo-target", "demo-draft-other")
FETCHED = (
    "qwen2",
    "llama-bpe",
    "llama-spm",
    "gemma-4",
    "gpt-2",
    "phi-3",
    "deepseek-llm",
    "deepseek-coder",
)


def fetched_folder() -> Path:
    return Path(os.environ.get("HEADSTART_VOCABS") or default_folder())


def has_fetched() -> bool:
    return all(_path(name).exists() for name in FETCHED)


def _path(name: str) -> Path:
    if name.startswith("demo"):
        return Path(headstart.__file__).parent / "demo" / f"{name}.gguf"
    return fetched_folder() / f"ggml-vocab-{name}.gguf"


@cache
def vocab(name: str) -> Vocab:
    return Model(_path(name), EngineConfig(), vocab_only=True).vocab


@cache
def translator(target: str, draft: str, *, heals: bool = True) -> VocabularyTranslator:
    return VocabularyTranslator(vocab(target), vocab(draft), TranslationOptions(heals=heals))
