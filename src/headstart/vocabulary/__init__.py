"""Translation between the vocabularies of a target and a draft model, on bytes."""

from headstart.vocabulary.bridge import BridgeOptions, BridgeSequence, VocabularyBridge
from headstart.vocabulary.comparison import Comparison, Way, compare
from headstart.vocabulary.templates import find_replacements
from headstart.vocabulary.trie import ByteTrie

__all__ = [
    "BridgeOptions",
    "BridgeSequence",
    "ByteTrie",
    "Comparison",
    "VocabularyBridge",
    "Way",
    "compare",
    "find_replacements",
]
