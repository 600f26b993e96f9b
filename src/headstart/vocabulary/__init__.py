"""Translation between the vocabularies of a target and a draft model, on bytes."""

from headstart.vocabulary.comparison import Comparison, TranslationMode, compare
from headstart.vocabulary.templates import find_replacements
from headstart.vocabulary.trie import ByteTrie
from headstart.vocabulary.vocabulary_translator import (
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
