"""Passages that texts share, told from their digests."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headstart.structures.passages import WINDOW, Digest, PassageSet, hashes


def text_of(seed: int, size: int = 20_000) -> bytes:
    return random.Random(seed).randbytes(size)


def digest_of(*texts: bytes, capacity: int = 4096) -> Digest:
    passages = PassageSet(capacity)
    passages.add(texts)
    return passages.digest()


def test_equal_windows_have_equal_hashes_wherever_they_stand():
    text = text_of(1, 200)
    moved = hashes(b"before it " + text + b" and behind")
    assert np.array_equal(moved[10 : 10 + 200 - WINDOW + 1], hashes(text))
    assert len(np.unique(hashes(text))) == 200 - WINDOW + 1
    assert len(hashes(b"short")) == 0


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_the_share_of_a_text_that_is_known_is_told(share):
    known, new = text_of(1), text_of(2)
    cut = int(share * len(known))
    asked = hashes(known[:cut] + new[cut:])
    assert digest_of(known).share_of(asked) == pytest.approx(share, abs=0.06)


def test_a_digest_stays_small_and_still_tells():
    texts = [text_of(seed) for seed in range(20)]
    digest = digest_of(*texts, capacity=512)
    assert len(digest.passages) <= 512
    assert digest.shift > 4
    assert digest.share_of(hashes(b"".join(texts[3:5]))) == 1.0
    assert digest.share_of(hashes(b"".join(map(text_of, (91, 92))))) < 0.1


def test_a_digest_survives_its_way_as_json():
    digest = digest_of(text_of(1))
    read = Digest.from_json(digest.to_json())
    assert read is not None
    assert read.shift == digest.shift
    assert np.array_equal(read.passages, digest.passages)


@pytest.mark.parametrize(
    "change", [{"window": 8}, {"shift": 99}, {"shift": "4"}, {"passages": "?"}, {"passages": None}]
)
def test_a_digest_of_another_kind_is_not_used(change):
    assert Digest.from_json(digest_of(text_of(1)).to_json() | change) is None


def test_nothing_is_known_of_short_texts_or_by_empty_corpora():
    assert Digest().share_of(hashes(text_of(1))) == 0.0
    assert digest_of(text_of(1)).share_of(hashes(b"short")) == 0.0
