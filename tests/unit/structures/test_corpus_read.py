"""Reading a corpus from outside: each text once, and only what a namespace may see."""

from __future__ import annotations

from array import array

import pytest

from headstart.structures.corpus import SuffixCorpus
from headstart.structures.suffix_index import SEPARATOR


def text(start: int, length: int = 100) -> list[int]:
    return list(range(start, start + length))


def read_all(corpus: SuffixCorpus, namespace: str, places=(), step: int = 64):
    """All texts behind these places, in parts of `step` tokens, and the places then."""
    tokens: list[int] = []
    while True:
        part = corpus.read(namespace, places, step)
        tokens += array("i", part.tokens)
        assert len(part.tokens) <= 4 * step
        places = part.places
        if part.is_complete:
            return tokens, places


@pytest.mark.parametrize("step", [1, 64, 10_000])
def test_every_text_that_may_be_seen_is_read_once(step):
    corpus = SuffixCorpus()
    corpus.add(text(1000), "me")
    corpus.add(text(2000), "you")
    corpus.add(text(3000))
    corpus.add_file(text(4000))
    mine, places = read_all(corpus, "me", step=step)
    assert sorted(t for t in mine if t != SEPARATOR) == text(1000) + text(3000) + text(4000)
    assert mine.count(SEPARATOR) == 3
    corpus.add(text(5000), "me")
    assert read_all(corpus, "me", places)[0] == [*text(5000), SEPARATOR]
    public = read_all(corpus, "")[0]
    assert set(public).isdisjoint({*text(1000), *text(2000), *text(5000)})


def test_texts_that_were_forgotten_before_they_were_read_are_left_out():
    corpus = SuffixCorpus(capacity=350)
    for i in range(40):
        corpus.add(text(1000 * i), "me")
    tokens, places = read_all(corpus, "me")
    assert tokens[-101:-1] == text(39_000)
    assert len(tokens) <= 350
    corpus.add(text(90_000), "me")
    assert read_all(corpus, "me", places)[0] == [*text(90_000), SEPARATOR]


def test_an_empty_corpus_has_nothing_and_says_so():
    part = SuffixCorpus().read("me", (), 100)
    assert (part.tokens, part.is_complete) == (b"", True)
