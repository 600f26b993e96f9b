"""How the suffix speculator weighs several places, and what it may leave out to be fast."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from random import Random
from typing import ClassVar
from weakref import WeakSet

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.unit.speculators.text_support import propose

from headstart.speculators.base_texts import agreeing_scores
from headstart.speculators.suffix import SuffixSpeculator
from headstart.structures import corpus
from headstart.structures.corpus import MAX_MATCH, SIZES
from headstart.structures.suffix_index import SuffixIndex


@pytest.mark.parametrize("weight", [1, 50, 4080, 4095, 9999])
def test_each_token_of_places_that_agree_adds_their_number_to_what_speaks_for_them(weight) -> None:
    expected = [total / (total + 1) for total in range(weight, weight + 3 * 9, 3)]
    assert list(agreeing_scores(weight, 3, 9)) == expected


@dataclass
class Voted:
    """What one text offers, by the rule and not by its short cuts."""

    tokens: list[int]
    match_scores: list[float]

    @property
    def worth(self) -> float:
        return sum(accumulate(self.match_scores, mul))


def vote(index: SuffixIndex, places: list[tuple[int, int]], max_tokens: int) -> Voted:
    """Token by token, among the copies that agree so far; the longest and then newest of the
    winners leads.
    """
    places = sorted(places, reverse=True)
    size = min(max_tokens, 4 * places[0][0])
    alive = [(length, index.copy(position, size)) for length, position in places]
    votes: dict[int, int] = {}
    for length, copy in alive:
        votes[copy[0]] = votes.get(copy[0], 0) + length
    winner = max(votes, key=votes.__getitem__)
    draft, match_scores = next(copy for _, copy in alive if copy[0] == winner), []
    for i, token in enumerate(draft):
        alive = [(length, copy) for length, copy in alive if i < len(copy)]
        total = sum(length + i for length, _ in alive)
        alive = [(length, copy) for length, copy in alive if copy[i] == token]
        match_scores.append(sum(length + i for length, _ in alive) / (total + 1))
    scores = [score for score in accumulate(match_scores, mul) if score >= 0.1]
    return Voted(draft[: len(scores)], match_scores[: len(scores)])


# matches of 4 and more
words = st.integers(0, 2**32).map(lambda seed: Random(seed).choices(range(3), k=30))


@given(words, st.lists(words, max_size=3), st.integers(1, 16))
def test_the_draft_is_that_of_the_text_whose_votes_are_worth_most(own, others, max_tokens) -> None:
    speculator = SuffixSpeculator()
    for other in others:
        speculator.corpus.add(other)
    speculator.begin(0, own)
    draft = propose(speculator, own, max_tokens)
    index = SuffixIndex(SIZES, MAX_MATCH)
    index.extend(own)
    best = Voted([], [])
    for text in (index, *speculator.corpus.indexes("")):
        places = text.find(index.tokens, 3)
        offer = vote(text, places, max_tokens) if places else best
        if offer.worth > best.worth + 1e-9:
            best = offer
        assume(offer is best or abs(offer.worth - best.worth) > 1e-9)
    assert list(draft.tokens) == best.tokens
    assert list(draft.confidence) == pytest.approx(best.match_scores)


class Watched(SuffixIndex):
    """An index that can be seen to be alive."""

    alive: ClassVar[WeakSet[Watched]] = WeakSet()

    def __init__(self, *arguments: int) -> None:
        super().__init__(*arguments)
        self.alive.add(self)


def answer_to(speculator: SuffixSpeculator, prompt: list[int], answer: list[int]) -> None:
    """One request from begin to end."""
    speculator.begin(0, [*prompt, answer[0]])
    speculator.accept(0, answer[1:], 0)
    speculator.go_on()
    speculator.end(0)


def test_indexes_that_were_replaced_are_not_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is as large as the corpus."""
    monkeypatch.setattr(corpus, "SuffixIndex", Watched)
    Watched.alive.clear()
    speculator = SuffixSpeculator(SuffixSpeculator.Options(corpus_tokens=200))
    for turn in range(100):
        answer_to(speculator, [turn * 10, 1, 2, 3], [turn * 10 + i for i in range(4, 10)])
        assert len(Watched.alive) == 1


def test_a_long_copy_goes_on_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other place can have a longer match, so the costliest part of a step is left out."""
    document = list(range(10, 60))
    speculator, history = SuffixSpeculator(), [*document, *document[:MAX_MATCH]]
    speculator.begin(0, history)
    propose(speculator, history)
    token = document[MAX_MATCH]
    history.append(token)
    speculator.accept(0, [token], 1)
    monkeypatch.setattr(SuffixIndex, "find", lambda *_: pytest.fail("searched"))
    assert propose(speculator, history, 4).tokens == document[MAX_MATCH + 1 : MAX_MATCH + 5]


def test_a_text_that_has_to_make_room_at_once_is_forgotten_quietly() -> None:
    speculator = SuffixSpeculator(SuffixSpeculator.Options(corpus_tokens=100))
    for seq_id, (start, size, tenant) in enumerate(((0, 60, "a"), (100, 70, "b"))):
        speculator.begin(seq_id, list(range(start, start + size)), tenant)
        speculator.end(seq_id)
    assert speculator.describe()["corpus_tokens"] <= 100
