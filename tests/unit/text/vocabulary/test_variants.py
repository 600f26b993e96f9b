"""A word that was replaced in one spelling is replaced in the others."""

from __future__ import annotations

import pytest

from headstart.testing import ByteVocab
from headstart.text.vocabulary.variants import Variants

TOKENS = [
    b"(",
    b" ",
    b".",
    b"count",
    b" count",
    b"(count",
    b"total",
    b" total",
    b"(",
    b"un",
    b"ts",
    b"+",
    b"1",
]


class GreedyVocab(ByteVocab):
    """Longest token first; words of letters that it does not know are spelled byte by byte."""

    def __init__(self) -> None:
        self.words = list(dict.fromkeys(TOKENS + [bytes([i]) for i in range(256)]))

    def tokenize(self, text: str | bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        ids: list[int] = []
        rest = text.encode() if isinstance(text, str) else text
        while rest:
            best = max((word for word in self.words if rest.startswith(word)), key=len)
            ids.append(self.words.index(best))
            rest = rest[len(best) :]
        return ids

    def token_bytes(self, token: int) -> bytes:
        return self.words[token]


VOCAB = GreedyVocab()


def spell(text: bytes) -> list[int]:
    return VOCAB.tokenize(text, add_special=False, parse_special=False)


@pytest.fixture
def variants() -> Variants:
    return Variants(VOCAB)


def test_every_spelling_of_the_word_follows_from_one(variants: Variants) -> None:
    found = list(variants(spell(b" count"), spell(b" total")))
    assert (spell(b"count"), spell(b"total")) in found
    assert (spell(b"(count"), spell(b"(total")) in found


def test_common_tokens_in_front_are_not_part_of_a_replacement(variants: Variants) -> None:
    for old, new in variants(spell(b" count"), spell(b" total")):
        assert old[0] != new[0]


def test_a_word_that_only_grew_leaves_nothing_to_replace(variants: Variants) -> None:
    assert spell(b" counts")[0] == spell(b" count")[0]
    assert all(old and new for old, new in variants(spell(b" count"), spell(b" counts")))


@pytest.mark.parametrize(
    ("old", "new"),
    [(b" +", b" total"), (b"count", b"1+1"), (b"count", b""), (b"  count", b"total")],
)
def test_what_is_not_a_word_for_a_word_has_no_other_spelling(
    variants: Variants, old: bytes, new: bytes
) -> None:
    assert list(variants(spell(old), spell(new))) == []
