"""What the speculators that guess from text promise, whatever they copy from."""

from __future__ import annotations

import gc
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness import SIZE, endless, make_speculators, sequence_of
from tests.pictures import with_pictures
from tests.planted import noted
from tests.unit.speculators.text_support import accept, propose, tokens_of

from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.speculators.base import Speculator
from headstart.speculators.base_texts import TextSpeculator
from headstart.speculators.ngram_map import (
    NgramMapK4vSpeculator,
    NgramMapKSpeculator,
    NgramMapOptions,
)
from headstart.speculators.ngram_mod import PIECE, NgramModSpeculator, NgramTable
from headstart.speculators.ngram_simple import NgramSimpleSpeculator
from headstart.speculators.suffix import SuffixSpeculator
from headstart.structures.prefix import common_prefix_length
from headstart.testing import ByteVocab
from headstart.types import DraftRequest


def make(name: str) -> Speculator:
    """Each with n-grams short enough for short texts."""
    return make_speculators([name])[0]


NAMES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache", "suffix")
all_speculators = pytest.mark.parametrize("name", NAMES)


pieces = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=8)


@pytest.mark.parametrize("name", ["ngram-simple", "ngram-cache"])  # the others learn on the way
@given(prompt=st.lists(st.integers(0, 2), min_size=1, max_size=30), steps=pieces)
def test_state_fed_step_by_step_equals_state_made_from_the_whole(name, prompt, steps) -> None:
    speculator = make(name)
    speculator.begin(0, prompt)
    history = list(prompt)
    for step in steps:
        propose(speculator, history)
        history += step
        speculator.accept(0, step, 0)
    assert tokens_of(speculator, history) == tokens_of(make(name), history)


@all_speculators
def test_the_text_of_a_request_that_ended_is_freed_at_once(name: str) -> None:
    """Not by the collector, which comes late because loaded objects are frozen."""
    speculator, history = make(name), [5, 6, 7] * 20
    gc.disable()
    try:
        propose(speculator, history)
        accept(speculator, history, [5, 6])
        assert isinstance(speculator, TextSpeculator)
        kind = type(speculator.histories[0])
        num_before = sum(type(one) is kind for one in gc.get_objects())
        speculator.end(0)
        assert sum(type(one) is kind for one in gc.get_objects()) == num_before - 1
    finally:
        gc.enable()


@all_speculators
def test_a_sequence_id_used_again_starts_anew(name: str) -> None:
    speculator, fresh = make(name), make(name)
    speculator.begin(0, [5, 6, 7, 5, 6], "a")
    speculator.end(0)
    for one in (speculator, fresh):
        one.begin(0, [5, 6], "b")
    assert propose(speculator, [5, 6]) == propose(fresh, [5, 6])


@all_speculators
@given(prompt=st.lists(st.integers(0, 2), min_size=1, max_size=30), steps=pieces)
def test_every_draft_is_well_formed(name: str, prompt: list[int], steps: list[list[int]]) -> None:
    speculator = make(name)
    history = list(prompt)
    for i, step in enumerate(steps):
        draft = propose(speculator, history, max_tokens=1 + i)
        assert len(draft.tokens) == len(draft.confidence) <= 1 + i
        assert all(0 < score <= 1 for score in draft.confidence)
        assert not (draft.tokens and draft.reason)
        history += step
        speculator.accept(0, step, 0)


@all_speculators
@pytest.mark.parametrize("period", [1, 2, 3, 5])
def test_a_loop_shorter_than_the_draft_is_drafted_on(name: str, period: int) -> None:
    speculator = make(name)
    loop = list(range(10, 10 + period))
    text = [1, 2, 3, *loop * 12]
    speculator.begin(0, text)
    draft = propose(speculator, text, 4)
    assert list(draft.tokens) == (loop * 4)[:4]


@all_speculators
@pytest.mark.parametrize("num_again", [5, 8])
def test_a_draft_ends_before_an_image(name: str, num_again: int) -> None:
    line = list(range(10, 18))
    text, media = with_pictures([*line * 3, *line[:num_again]], (8, 0), (21, 0), (34, 0))
    sequence = sequence_of(replace(endless(text), media=media))
    guarded = GuardedSpeculator(make(name), SIZE)
    tokens = sequence.text_tokens
    guarded.begin(0, tokens, "")
    (draft,) = guarded.propose([DraftRequest(0, tokens, 8)])
    assert list(draft.tokens) == line[num_again:]
    assert not guarded.failure


@pytest.mark.parametrize("cls", [NgramSimpleSpeculator, NgramMapKSpeculator, NgramMapK4vSpeculator])
def test_a_loop_shorter_than_the_ngram_is_drafted_with_default_options(cls) -> None:
    speculator = cls()
    text = [7, 8, 9] * 6
    speculator.begin(0, text)
    assert tokens_of(speculator, text, 6) == [7, 8, 9, 7, 8, 9]


def test_all_namespaces_draft_from_the_public_corpus() -> None:
    speculator = SuffixSpeculator()
    speculator.corpus.add([1, 2, 3, 4, 5])
    speculator.begin(0, [9, 1, 2], "bob")
    assert tokens_of(speculator, [9, 1, 2]) == [3, 4, 5]


def test_longer_matches_draft_longer_and_with_more_confidence() -> None:
    speculator = SuffixSpeculator()
    text = list(range(50))
    short = propose(speculator, [*text, 60, 8, 9], 32)
    speculator.end(0)
    long = propose(speculator, [*text, 60, 5, 6, 7, 8, 9], 32)
    assert (len(short.tokens), len(long.tokens)) == (8, 20)
    assert list(short.confidence) == pytest.approx([(1 + i) / (2 + i) for i in range(1, 9)])
    assert list(long.confidence) == pytest.approx([(4 + i) / (5 + i) for i in range(1, 21)])


def test_a_long_copy_is_not_lost_in_a_passage_that_occurs_everywhere() -> None:
    common = [5] * 12
    document = list(range(10, 40)) + common + list(range(40, 60))
    text = document + [x for i in range(20) for x in (*common, 100 + i)] + document[:30]
    speculator = SuffixSpeculator()
    speculator.begin(0, text)
    history = list(text)
    for token in document[30:]:
        draft = propose(speculator, history, 4)
        history.append(token)
        speculator.accept(0, [token], 1)
    assert list(draft.tokens)[:1] == [59]


def test_the_corpus_file_is_written_at_the_end_of_a_request(tmp_path):
    options = SuffixSpeculator.Options(file=str(tmp_path / "corpus"))
    speculator = SuffixSpeculator(options, ByteVocab())
    speculator.begin(0, [1, 2])
    speculator.accept(0, [3, 4, 5], 0)
    speculator.end(0)
    speculator.close()
    again = SuffixSpeculator(options, ByteVocab())
    assert tokens_of(again, [9, 1, 2]) == [3, 4, 5]
    again.close()


@pytest.mark.parametrize(
    ("speculator", "tokens", "reason"),
    [
        (NgramMapKSpeculator(NgramMapOptions(2, 2, 2)), [1, 2, 3, 4, 1, 2],
         "fewer hits than min-hits"),
        (NgramMapK4vSpeculator(NgramMapOptions(2, 2)), [1, 2, 3, 4, 1, 2, 8, 9, 1, 2],
         "no continuation dominates"),
    ],
)  # fmt: skip
def test_a_text_that_is_known_and_not_drafted_from_says_why(speculator, tokens, reason) -> None:
    speculator.begin(0, tokens[:4])
    assert propose(speculator, tokens).reason == reason


def test_ngram_mod_drops_drafts_shorter_than_n_min() -> None:
    speculator = NgramModSpeculator(NgramModSpeculator.Options(n_match=2, n_min=3, table_bits=12))
    speculator.begin(0, [1, 2, 3, 4])
    assert propose(speculator, [9, 1, 2], 8, seq_id=1).reason == "shorter than n-min"
    speculator.begin(2, [3, 4, 5, 6])
    assert tokens_of(speculator, [8, 1, 2], 8, seq_id=3) == [3, 4, 5, 6]


def test_ngram_mod_learns_a_long_prompt_in_pieces_that_no_step_notices(monkeypatch) -> None:
    random = Random(5)
    prompt, expected = [random.randrange(9) for _ in range(20_000)], NgramTable(4, 12)
    expected.learn(prompt, 0)

    sizes = noted(monkeypatch, NgramTable, "learn", note=lambda _, tokens, salt: len(tokens))
    speculator = NgramModSpeculator(NgramModSpeculator.Options(n_match=4, table_bits=12))
    speculator.begin(0, prompt)
    for _ in range(20_000 // PIECE):
        speculator.go_on()
    assert max(sizes) <= PIECE + 4
    assert (speculator._table._entries == expected._entries).all()


def test_suffix_drafts_through_a_rename_that_it_has_seen():
    old, new = [7], [70, 71]
    parts = [([10 + 3 * i, 11 + 3 * i], [12 + 3 * i]) for i in range(10)]
    prompt = [token for before, after in parts for token in before + old + after]
    answer = [token for before, after in parts for token in before + new + after]
    speculator, history, lengths = SuffixSpeculator(), [*prompt, 5, *answer[:2]], []
    speculator.begin(0, history)
    rest = answer[2:]
    while rest:
        draft = tokens_of(speculator, history, max_tokens=16)
        right = common_prefix_length(draft, rest)
        accept(speculator, history, rest[: right + 1])
        lengths.append(right)
        rest = rest[right + 1 :]
    assert max(lengths) == 16, "five lines of the text are drafted at once, renamed"
    assert sum(lengths) >= 35, "only around the first two renames there is something to find out"


# what follows was seen many times, so each token given those before it is as sure as the first
LOOP = [1, 2, 3, 4, 5, 6, 7, 8] * 40


@all_speculators
def test_scores_do_not_fall_along_a_draft_that_is_as_sure_at_its_end(name: str) -> None:
    speculator = make(name)
    speculator.begin(0, LOOP)
    draft = propose(speculator, LOOP, 6)
    assert len(draft.tokens) >= 4
    assert all(b >= 0.99 * a for a, b in zip(draft.confidence, draft.confidence[1:], strict=False))
