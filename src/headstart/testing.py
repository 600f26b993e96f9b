"""For tests of speculators: `check_speculator`, and the fake model that it runs on."""

from headstart.extras.testing.contract import CONTRACT, check_speculator
from headstart.extras.testing.fakes import ByteVocab, FakeEngine, FakeFilters, LetterVocab
from headstart.extras.testing.lossless import RandomController, assert_lossless

__all__ = [
    "CONTRACT",
    "ByteVocab",
    "FakeEngine",
    "FakeFilters",
    "LetterVocab",
    "RandomController",
    "assert_lossless",
    "check_speculator",
]
