"""For tests of speculators: `check_speculator`, and the fake model that it runs on."""

from headstart.extras.testing import (
    CONTRACT,
    ByteVocab,
    FakeEngine,
    FakeFilters,
    LetterVocab,
    RandomController,
    assert_lossless,
    check_speculator,
)

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
