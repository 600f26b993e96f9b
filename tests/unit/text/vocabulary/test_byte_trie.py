"""The byte trie against a brute-force twin, and healing with it."""

from __future__ import annotations

import random

import pytest
from tests.unit.text.vocabulary import real

from headstart.text.vocabulary.trie import ByteTrie


@pytest.mark.parametrize("seed", range(20))
def test_ranges_equal_a_scan_of_all_tokens(seed: int) -> None:
    rng = random.Random(seed)
    alphabet = b"ab\xfe\xff"
    pieces = [bytes(rng.choices(alphabet, k=rng.randrange(5))) for _ in range(60)]
    trie = ByteTrie(pieces)
    for _ in range(40):
        text = bytes(rng.choices(alphabet, k=rng.randrange(5)))
        continuing = {
            token for token, piece in enumerate(pieces) if piece and piece.startswith(text)
        }
        beginning = {
            token
            for token, piece in enumerate(pieces)
            if piece and text.startswith(piece) and piece != text
        }
        assert set(trie.continuations(text).tolist()) == continuing
        assert set(trie.prefixes_of(text).tolist()) == beginning
        assert sorted(trie.allowed(text).tolist()) == sorted(continuing | beginning)


def test_any_choice_among_the_allowed_tokens_spells_the_pending_bytes() -> None:
    translator = real.translator("demo-target", "demo-draft-other")
    rng = random.Random(1)
    for pending in (b" return", b"\n        x", "中文".encode(), "😀".encode()[:3], b"\xff\x80"):
        for _ in range(10):
            rest, spelled = pending, b""
            while rest:
                piece = translator.draft.pieces[rng.choice(translator.allowed(rest).tolist())]
                spelled += piece
                rest = rest[len(piece) :]
            assert spelled.startswith(pending)
