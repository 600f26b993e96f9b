"""The corpus agrees with lists of texts, whatever is added, forgotten and moved to a new index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.structures.test_suffix_index import brute_places

from headstart.structures import corpus as corpus_module
from headstart.structures.corpus import SIZES, KeptText, SuffixCorpus
from headstart.structures.suffix_index import SEPARATOR, SuffixIndex

# small, so that short texts have several blocks and long matches
BLOCK, MAX_MATCH = 4, max(6, *SIZES)
ALL = 10**9
Text = tuple[int, ...]


@dataclass(eq=False)
class Held:
    """A text that is kept, and the beginnings that are known as long as it is."""

    tokens: Text
    beginnings: set[Text] = field(default_factory=set)


class Twin:
    """A list of texts for each namespace, and nothing clever."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.texts: dict[str, list[Held]] = {}

    def add(self, name: str, tokens: Sequence[int]) -> Held | None:
        text = tuple(tokens)[max(0, len(tokens) - self.capacity + 1) :]
        known = {beginning for held in self.texts.get(name, ()) for beginning in held.beginnings}
        ends = [*range(BLOCK, len(text), BLOCK), len(text)] if text else []
        num_known = next((i for i, end in enumerate(ends) if text[:end] not in known), None)
        if num_known is None:
            return None
        part = text[max(0, num_known * BLOCK - MAX_MATCH) :]
        if part in known:
            return None
        held = Held(part, {*(text[:end] for end in ends), part} - known)
        self.texts.setdefault(name, []).append(held)
        while self.size > self.capacity:
            fullest = max(self.texts, key=self.size_of)
            del self.texts[fullest][0]
            if not self.texts[fullest]:
                del self.texts[fullest]
        return held

    @property
    def size(self) -> int:
        return sum(map(self.size_of, self.texts))

    def size_of(self, name: str) -> int:
        return sum(len(held.tokens) + 1 for held in self.texts[name])

    def seen_by(self, name: str) -> list[list[int]]:
        """The tokens that a namespace may look into, in the order of the indexes."""
        names = [n for n in dict.fromkeys((name, "")) if n in self.texts]
        return [
            [token for held in self.texts[n] for token in (*held.tokens, SEPARATOR)] for n in names
        ]


def check_view(corpus: SuffixCorpus, twin: Twin, name: str, tail: list[int]) -> None:
    indexes, texts = corpus.indexes(name), twin.seen_by(name)
    assert [index.tokens[index.floor :].tolist() for index in indexes] == texts
    query = SuffixIndex(SIZES, MAX_MATCH)
    query.extend(tail)
    for index, text in zip(indexes, texts, strict=True):
        found = [
            (length, position - index.floor) for length, position in index.find(query.tail(), ALL)
        ]
        assert found == brute_places(text, tail, SIZES, MAX_MATCH)


def check_answer(corpus: SuffixCorpus, twin: Twin, answer: KeptText, held: Held) -> None:
    found = corpus.where(answer)
    is_alive = any(one is held for namespace in twin.texts.values() for one in namespace)
    assert (found is not None) == is_alive
    if found is not None:
        index, span = found
        assert index.tokens[span.start : span.stop].tolist() == [*held.tokens, SEPARATOR]


runs = st.lists(st.integers(0, 2), max_size=14)
additions = st.tuples(
    st.sampled_from(["", "a", "b"]),
    st.integers(0, 30),  # which earlier text it begins like, if there are so many
    st.integers(0, 20),  # for so many tokens
    runs,
)


@given(st.integers(5, 70), st.lists(additions, max_size=40), runs)
def test_texts_and_answers_are_those_of_lists_of_texts(
    capacity: int, steps: list[tuple[str, int, int, list[int]]], tail: list[int]
) -> None:
    """Known beginnings, eviction, new indexes, namespaces and where an answer stands."""
    with (
        patch.object(corpus_module, "_BLOCK", BLOCK),
        patch.object(corpus_module, "MAX_MATCH", MAX_MATCH),
    ):
        corpus, twin = SuffixCorpus(capacity), Twin(capacity)
        earlier: list[list[int]] = []
        answers: list[tuple[KeptText, Held]] = []
        for name, which, size, run in steps:
            text = [*(earlier[which][:size] if which < len(earlier) else []), *run]
            earlier.append(text)
            answer, held = corpus.add(text, name), twin.add(name, text)
            assert (answer is None) == (held is None)
            assert len(corpus) == twin.size <= capacity
            assert corpus.num_texts == sum(map(len, twin.texts.values()))
            if answer is not None and held is not None:
                answers.append((answer, held))
            for answer, held in answers:
                check_answer(corpus, twin, answer, held)
            for name in ("", "a", "b", "c"):
                check_view(corpus, twin, name, [*text, *tail])
