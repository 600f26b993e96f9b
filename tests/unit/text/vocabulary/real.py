"""Real vocabularies for tests: the embedded models', and llama.cpp's test vocabularies where they
are present; and random texts of the kinds that break tokenizers.

The latter vocabularies are in the source package of llama-cpp-python but not in its wheel; `make
test` brings them, and so does `python tests/fetch_vocabs.py`. HEADSTART_VOCABS names another folder
with `ggml-vocab-*.gguf`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.fetch_vocabs import NAMES, folder_of_vocabularies, has_all, vocabulary_file

import headstart
from headstart.engine.model import Model
from headstart.text.vocabulary.draft_tokenizer import Preference
from headstart.text.vocabulary.translated_sequence import TranslatedSequence
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


def sequence(translator: VocabularyTranslator) -> TranslatedSequence:
    """A text that begins."""
    return TranslatedSequence(translator, Preference())


_CODE = Path(__file__).with_name("test_vocabulary_translator.py").read_text()
_PROSE = (
    "Speculative decoding doesn't change what is said, only when: a small model guesses, the large "
    "one checks. "
    "It's 3.14159 times as fast (sometimes), and costs 1,000,000 multiplications -- or more -- per "
    "token. "
)
_CJK = (
    "深度学习模型的推理速度取决于内存带宽，因此投机解码可以显著加速。"  # noqa: RUF001
    "日本語のテキストも扱えます。한국어 문장도 있습니다。ภาษาไทยไม่มีช่องว่าง "
)
_EMOJI = "😀👩‍👩‍👧‍👦 🇩🇪 ❤️‍🔥 café naïve Ünïcödé Ελληνικά русский текст "
_SPELLINGS = (
    b"<|im_start|>",
    b"</s>",
    b"<start_of_turn>user\n",
    b"<eos>",
    b"<|endoftext|>",
    b"<s>",
    b"<|im_end|>",
)
_NEVER_IN_UTF8 = (0xC0, 0xC1, *range(0xF5, 0x100))  # some vocabularies have no tokens for these


def random_text(rng: random.Random) -> bytes:
    """One to five pieces of code, prose, CJK, emoji, white space, digits, spelled markers and
    broken UTF-8.
    """
    pieces = (
        _slice(_CODE),
        _slice(_PROSE),
        _slice(_CJK),
        _slice(_EMOJI),
        _spaces,
        _broken,
        _digits,
        _spelling,
    )
    return b"".join(rng.choice(pieces)(rng) for _ in range(rng.randrange(1, 6)))


def _slice(source: str) -> Callable[[random.Random], bytes]:
    def piece(rng: random.Random) -> bytes:
        start = rng.randrange(len(source))
        return source[start : start + rng.randrange(2, 200)].encode()

    return piece


def _spaces(rng: random.Random) -> bytes:
    return "".join(rng.choice(" \n\t ") for _ in range(rng.randrange(1, 20))).encode()


def _broken(rng: random.Random) -> bytes:
    return bytes(byte for byte in rng.randbytes(rng.randrange(1, 6)) if byte not in _NEVER_IN_UTF8)


def _digits(rng: random.Random) -> bytes:
    return str(rng.randrange(10 ** rng.randrange(1, 30))).encode()


def _spelling(rng: random.Random) -> bytes:
    return rng.choice(_SPELLINGS)
