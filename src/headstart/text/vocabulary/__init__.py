"""Translation between the vocabularies of a target and a draft model, on bytes."""

from headstart.text.vocabulary.comparison import Comparison, TranslationMode, compare
from headstart.text.vocabulary.templates import find_replacements
from headstart.text.vocabulary.trie import ByteTrie
from headstart.text.vocabulary.vocabulary_translator import (
    TranslatedSequence,
    TranslationOptions,
    VocabularyTranslator,
)

__all__ = [
    "ByteTrie",
    "Comparison",
    "TranslatedSequence",
    "TranslationMode",
    "TranslationOptions",
    "VocabularyTranslator",
    "compare",
    "find_replacements",
]
